"""The order of the documents.

`unit_sequence.py` shuffles the selected documents in units for all lanes together, and says how often each document is
used. `lane_grid.py` says which lanes a step reads and which rank and worker reads them. `topology.py` finds the rank.
"""
