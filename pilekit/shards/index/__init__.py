"""The index of a shard: a row per document and a place per frame, its format and how it is built."""
