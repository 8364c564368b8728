"""Text is cut out of documents: what evaluations hold (`decontaminate`).

evaluation_texts reads the records; words says what a word is; ngrams finds their n-grams in a corpus; hits keeps what
was found and joins it to spans; cut_shards writes the corpus without them; decontaminated does it in a pipeline.
"""
