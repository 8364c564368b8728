"""Where a lane's documents come from: random access through the index, or shard after shard."""
