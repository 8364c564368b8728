"""From documents to negative log-likelihoods: the window rule and batches of windows."""
