"""From documents to rows: a lane's documents are tokenized, gathered into windows, and each window is packed alone.

`tokenized.py` encodes what `read/` gives, `window.py` gathers documents and lays them out with a packing
(`best_fit.py`, `concat.py`, `rows.py`), and `lane.py` hands out the rows of one window after another. `pack_stage.py`
is the same for token batches of any pipeline.
"""
