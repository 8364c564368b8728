"""Text is cut out of documents: what evaluations hold (`decontaminate`), what earlier documents have (`substrings`).

cut_job has the steps that both share, cut_shards cuts by a table of spans, cut_result is what they return.
decontaminate: evaluation_texts reads the records; words says what a word is; ngrams finds their n-grams in a corpus;
hits joins them to spans; decontaminated drops documents in a pipeline. substrings: windows finds what may be repeated;
repeats sorts it into runs; cut_repeats makes cuts of whole words; passages counts the most frequent.
"""
