"""Commands about models: train, score, embed, prune."""
