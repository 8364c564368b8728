"""From stored bytes to documents: `read` opens a shard, decompresses it in a thread, cuts the text into lines, and
parses the lines into batches. Each step is a generator in its own file: open (with change_check), zstd_frames,
prefetch, lines, json_records; reader joins them. A Parquet shard goes from open through parquet to json_records.
records gives all fields of both. read_errors has the bad lines and the damage that they find.
"""
