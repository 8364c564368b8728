"""Masked models: the same proof, and pseudo-log-likelihoods."""
