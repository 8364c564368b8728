"""A vector for each document: `embed_corpus.py` makes them with a model, `embeddings.py` holds and searches them."""
