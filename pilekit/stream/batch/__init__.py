"""From rows to batches: `build_batches.py` takes rows from the lanes in turn, and `batch.py` turns them into tensors.

`write_columns.py` copies the tokens, `mlm.py` masks them, and `attention_mask.py` says which tokens of a batch attend
to each other. `peek.py` computes one step alone.
"""
