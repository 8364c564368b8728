"""Masked models: `model.py` proves that a model predicts from both sides, `pseudo_nll.py` scores documents with it."""
