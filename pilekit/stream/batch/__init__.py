"""From rows to batches: `build_batches.py` takes rows from the lanes in turn, also of one step alone, and `batch.py` turns them into tensors.

`write_columns.py` copies the tokens, `mlm.py` masks them, and `attention_mask.py` says which tokens of a batch attend
to each other.
"""
