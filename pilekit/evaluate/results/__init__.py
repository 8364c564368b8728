"""Records of scored documents on disk, and the figures, intervals and comparisons made from them."""
