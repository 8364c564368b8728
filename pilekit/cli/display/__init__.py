"""Output in addition to a result's own table: skipped lines, the live line of training, rows of a stream."""
