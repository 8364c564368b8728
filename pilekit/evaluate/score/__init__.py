"""Documents to negative log-likelihoods.

`windows.py` cuts a document into windows, `batching.py` puts windows of similar length into batches and splits batches
that do not fit into memory, and `causal_nll.py` scores a batch.
"""
