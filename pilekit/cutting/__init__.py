"""Cut text out of documents: text of evaluations (`decontaminate`), or text of earlier documents (`substrings`).

job has the steps that both share, shards reads the documents and cuts by a table of spans, result has the results.
decontaminate: evaluation_texts reads the records; words defines a word; ngrams finds their n-grams in a corpus; hits
joins them to spans. substrings: windows finds possible repeats; repeat_cuts sorts them into runs and makes cuts of
whole words; passages counts the most frequent. cut_folder reads the tables of a finished run, cut_texts the texts.
"""
