"""From documents to rows: a lane's documents are tokenized, gathered into windows, and each window is packed alone.

`tokenized.py` encodes the documents from `read/`, `window.py` gathers them and packs them by one of the packings
(`packings.py`), and `lane.py` hands out the rows of one window after another. `pack_stage.py` packs the token batches
of any pipeline in the same way.
"""
