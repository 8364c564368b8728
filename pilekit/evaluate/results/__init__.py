"""Records of scored documents, in memory (`records.py`) and on disk (`result_folder.py`), and their figures.

`tabulate.py` turns records into a result (`result.py`), with intervals (`intervals.py`), the paper's variant
(`paper.py`) and published figures (`published.py`). `compare.py` compares results.
"""
