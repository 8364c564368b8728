"""Where a lane's documents come from.

`plan.py` decides whether shards can be entered anywhere. `document_selection.py` holds what is read, and makes the
lanes' source: `random_access.py` jumps through the index, `sequential.py` reads shard after shard. Both give
`LaneDocuments`, documents with their place in the lane.
"""
