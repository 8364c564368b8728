"""Output: proofs, masks, clean shards and the summary.

removed_table.py has all candidates compared, holds the removed documents and the reasons, and writes them to
`removed.parquet`, which removed_format.py describes. clean_shards.py writes a bit for each line, and copies the kept
lines. summary.py checks that no document got lost.
"""
