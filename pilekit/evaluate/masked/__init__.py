"""Masked models: `model.py` proves that a model is one, `pseudo_nll.py` scores documents with it."""
