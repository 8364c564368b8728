"""How a corpus is stored: zstd frames, lines, records; reading and writing shards."""
