"""Counting a corpus: documents, bytes, sizes, tokens and copies per subset; as a table, as JSON, as a figure.

Rows of documents come from an index, the compiled scan or a reader (count_shard.py). They are added up per shard
(counting.py, histogram.py), and shards are joined in order (summary.py, copies.py).
"""
