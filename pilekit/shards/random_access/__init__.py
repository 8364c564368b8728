"""Documents by number: the index tells their frames, which are decoded and held for their neighbours.

document_reader.py gives the documents of one shard. Lines come from lines_by_number.py, rows (Parquet) from
rows_by_number.py. Both hold decoded frames in frame_lru.py, and keep remote frames on disk in frame_cache.py.
open_readers.py serves a corpus of many shards, selected_lines.py says which of their lines are chosen, and
pile_documents.py is the list of all.
"""
