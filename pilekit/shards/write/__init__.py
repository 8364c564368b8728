"""From documents to stored bytes: shard_writer cuts lines into frames, frame_writer compresses them, seek_table ends
the file. parquet_writer writes the same documents as a table. `reframe` copies whole shards: read -> cut_at_lines ->
frame_writer -> read back.
"""
