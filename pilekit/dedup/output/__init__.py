"""Output: proofs, masks, clean shards and the summary.

decisions.py holds the removed documents and the reasons. removed_table.py writes them to `removed.parquet`, masks.py
writes a bit for each line, clean_shards.py copies the kept lines, and summary.py checks that no document got lost.
"""
