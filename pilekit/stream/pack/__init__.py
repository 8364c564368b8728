"""From documents to rows: a lane's documents are tokenized and gathered into windows, and each window is packed alone.

`lane.py` encodes the documents from `read/` and hands out the rows of one window after another. `window.py` gathers the
documents of a window and packs them by one of the packings (`packings.py`). `pack_stage.py` packs the token batches of
any pipeline in the same way.
"""
