"""Records of scored documents, in memory (`records.py`) and on disk (`result_folder.py`), and their figures.

`tabulate.py` turns records into scores (`scores.py`) with intervals (`intervals.py`). With published figures, and with
the paper's constants in its variant (both in `published.py`), they make a result (`result.py`). `compare.py` compares
results: a `difference.py` each.
"""
