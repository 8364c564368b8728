"""Reading a lane's documents.

`plan.py` decides between random access and reading shard after shard. `document_selection.py` numbers the documents to
read. `lane_source.py` chooses the lanes' source: `random_access.py`, which uses the shards' indexes, or
`sequential.py`. Both give `LaneDocuments`, documents with their place in the lane.
"""
