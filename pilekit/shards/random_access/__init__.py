"""Documents by number: the index gives the frame that holds a document, and only that frame is decoded.

`DocumentReader` (document_reader.py) reads the documents of one shard. Lines come from lines_by_number.py, rows of
Parquet from rows_by_number.py. frame_cache.py keeps decoded frames in memory, and stored frames of remote shards on
disk. `OpenReaders` serves all shards of a corpus, `LineBitmap` says which lines of a shard are chosen, and
`PileDocuments` is the list of all documents.
"""
