"""From rows to batches: `build_batches.py` takes rows from the lanes in turn, and can make the batches of one step.

`batch.py` turns rows into tensors, and `mlm.py` masks their tokens. `attention_mask.py` says which tokens of a batch
attend to each other.
"""
