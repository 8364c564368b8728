"""Results and comparisons: `tables.py` for notebooks, `output.py` for the terminal, `plot.py` for figures in files."""
