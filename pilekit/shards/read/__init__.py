"""From stored bytes to documents: open, decompress, cut into lines, parse records."""
