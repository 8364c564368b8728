"""Documents to negative log-likelihoods.

`windows.py` cuts a document, `batching.py` puts windows of like length into batches, `causal_nll.py` scores a batch,
and `fitting.py` splits batches that memory does not hold.
"""
