"""Reading a lane's documents.

`read_plan.py` decides between random access and reading shard after shard, and `mixture.py` how often the documents of
a subset are used. `document_selection.py` numbers the documents to read. `random_access.py` reads them through the
shards' indexes, and `sequential.py` shard after shard. Both give `LaneDocuments`, documents with their place in the
lane.
"""
