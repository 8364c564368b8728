"""Bits per byte: how well a model predicts text, per subset.

causal_lm.py      loading a model, and proving that it is one that can be scored
windows.py        which tokens are predicted from which: the published rule
scoring.py        negative log-likelihoods of windows, batched by length
result.py         the figures, their protocol, result.json
bits_per_byte.py  documents in, figures out
table.py          the figures as a table
"""
