"""Show results and comparisons: `table.py` and `comparison_table.py` in the terminal, `plot.py` as figures in files."""
