"""Bits per byte: how well a model predicts text, per subset.

model_folder.py   a model folder, read whole or refused
causal_lm.py      a model as what scoring and training need, and the proof that it is one
windows.py        which tokens are predicted from which: the published rule
scoring.py        negative log-likelihoods of windows, batched by length
protocol.py       everything that a figure depends on
result.py         the figures, result.json
bits_per_byte.py  documents in, figures out
table.py          the figures as a table
"""
