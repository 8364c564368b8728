"""Cut text out of documents: text of evaluations (`decontaminate`), or text of earlier documents (`substrings`).

job has the steps that both share, shards reads the documents and cuts by a table of spans, result has the results.
decontaminate: record_fields says what a record's fields are, evaluation_texts reads the records; words defines a word;
ngrams finds n-grams in a corpus, answers and answer_places find the answers near them, hits both in a shard; verdicts
judges and joins them.
substrings: windows finds possible repeats; repeat_cuts sorts them into runs and makes cuts of whole words; passages
counts the most frequent. cut_folder reads the tables of a finished run, cut_texts the texts.
"""
