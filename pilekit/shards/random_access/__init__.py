"""Documents by number, through the index: single ones, many in order, or as a list (`PileDocuments`)."""
