"""Bits per byte: how well a model predicts text, per subset.

`bits_per_byte.py` scores a corpus. Before weights are read, `score_plan.py` checks the settings (`settings.py`), and
describes everything that a figure depends on. `scoring_run.py` scores the documents that `select_documents.py` picks
for each rank, and `score_ranks.py` lets each rank work alone and wait. `training_copies.py` counts scored documents
that are in training shards too. By the same steps `embed_corpus.py` makes a vector for each document, and
`exposure/memorised.py` counts the sequences that a model continues word for word. `embeddings.py` holds and searches
vectors.

score/     the window rule, batches of windows, and their negative log-likelihoods, and a masked model's pseudo ones;
           sequences of a prompt and its continuation
results/   records on disk, perhaps with numbers of each document; figures, intervals and comparisons; published figures
show/      figures as tables and plots

    documents -> select_documents -> score/ -> results/ records -> tabulate -> show/
"""
