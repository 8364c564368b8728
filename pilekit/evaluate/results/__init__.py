"""Records of scored documents, on disk (`result_folder.py`) and in memory (`records.py`), and what is made of them.

`tabulate.py` makes the figures of a `result.py` from records, with `intervals.py`, the `paper.py`'s variant and
`published.py` figures beside them; `compare.py` compares results.
"""
