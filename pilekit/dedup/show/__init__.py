"""`pilekit duplicates`: removed_pairs.py picks pairs from `removed.parquet` and reads their texts, word_diff.py
compares these, and side_by_side.py shows them beside each other with differing words marked.
"""
