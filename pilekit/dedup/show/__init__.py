"""`pilekit duplicates`: removed_pairs.py picks pairs from `removed.parquet`, word_diff.py compares their texts, and
side_by_side.py shows them beside each other with differing words marked.
"""
