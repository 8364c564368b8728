"""Output: decisions.py holds what is removed and why, by document. removed_table.py writes it as `removed.parquet`,
masks.py as a bit for each line; clean_shards.py copies the kept lines, and summary.py checks that no document got lost.
"""
