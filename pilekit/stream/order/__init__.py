"""Which documents come when.

`selection.py` numbers the documents that take part, `unit_sequence.py` shuffles them in units for all lanes together,
`repeats.py` says how often each is used, and `lane_grid.py` says which lanes a step reads and which rank and worker
reads them. `shuffle.py` holds the two functions that everything random rests on, `topology.py` finds the rank.
"""
