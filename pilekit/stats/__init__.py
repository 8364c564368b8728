"""Counting a corpus: documents, bytes, sizes, tokens and copies per subset; as a table, as JSON, as a figure.

counting.py counts one shard, from its index or by reading it. summary.py joins the shards in order: sizes are
histograms (histogram.py), and hashes of texts show copies. result.py holds the figures.
"""
