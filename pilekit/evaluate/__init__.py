"""Bits per byte: how well a model predicts text, per subset.

`bits_per_byte.py` scores a corpus. `protocol.py` finds and checks all that a figure depends on before weights are read.
`select_documents.py` picks the documents of each rank, `ranks.py` lets ranks score apart and meet, `progress.py` tells
how far they are. `training_copies.py` counts scored documents that training shards hold too.

model/     a model folder read whole or refused; what scoring and training need of a causal model
masked/    the same of a masked model, and its pseudo-log-likelihoods
score/     the window rule, and the negative log-likelihoods of windows
results/   records on disk; figures, intervals and comparisons made of them; published figures
show/      figures as tables and plots

    documents -> select_documents -> score/ or masked/ -> results/ records -> tabulate -> show/
"""
