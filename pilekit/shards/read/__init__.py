"""From stored bytes to documents. `shard_blocks` (blocks.py) is the one way from a shard to blocks of its lines or
rows: it opens the shard (open, change_check), decompresses it in a thread (zstd_frames, prefetch) and cuts lines
(lines), or decodes rows (parquet). json_records parses blocks into batches, which `read` (reader) gives; the index's
`document_rows` makes rows of them. read_errors has the bad lines and the damage that they find.
"""
