"""Where given texts stand in a corpus: counts of many phrases, and the passages of texts, each in one pass.

phrases reads the phrases and checks them; phrase_table prepares them for the search, whose compiled code is in
phrase_kernel; subset_counts counts what is found in a shard; count_phrases is the job on all shards; phrase_counts has
its result.

given_texts reads texts; run_automaton finds their strings of windows in documents; shard_passages keeps what a shard
holds, and maximal_passages adds the shards up; trace_texts is the job on all shards; traced_passages has its result.
result_file is the Parquet file of either.
"""
