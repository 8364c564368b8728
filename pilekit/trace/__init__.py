"""Where given texts stand in a corpus: counts of many phrases in one pass.

phrases reads the phrases and checks them; phrase_table prepares them for the search, whose compiled code is in
phrase_kernel; subset_counts counts what is found in a shard; count_phrases is the job on all shards; phrase_counts has
its result.
"""
