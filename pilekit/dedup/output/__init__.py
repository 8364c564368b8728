"""From decisions to files: removed.parquet, keep masks, clean shards, the summary."""
