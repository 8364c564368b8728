"""One pass over a shard: exact hashes, shingles, MinHash signatures and band keys of its documents."""
