"""Which documents come when: the shuffled sequence of units, the lane grid, repeats, the selection."""
