"""From documents to stored bytes: checksummed frames, the seek table, Parquet, and `reframe`."""
