"""PileStream: raw shards to packed batches.

Data passes through the folders in this order:

order/   decides the order: the shared sequence of units, repeats, the lane grid
read/    selects the documents, and reads a lane's documents from any place, under one of two plans
pack/    turns a lane's documents into tokens, windows and rows
batch/   turns rows of several lanes into a `Batch`; also masks, untokenized documents, and `peek`

`settings.py` describes each setting of a stream, and `pile_stream.py` makes a stream from its settings. `iteration.py`
gives the batches, and records in a `Record` (`record.py`) which batches were handed out. `finite_pass.py` makes the
batches of a pass that ends, and `loader.py` is a DataLoader. `state.py` writes the record as JSON and checks whether a
state fits a stream.
"""
