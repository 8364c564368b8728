"""Commands about finished models: score, embed, prune."""
