"""Records of scored documents, in memory (`records.py`) and on disk (`result_folder.py`), and their figures.

`tabulate.py` turns records into scores (`scores.py`) with intervals (`intervals.py`) or in the paper's variant
(`paper.py`); with published figures (`published.py`) they make a result (`result.py`). `compare.py` compares results: a
`difference.py` each.
"""
