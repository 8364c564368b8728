"""Show results and comparisons: `table.py` and `comparison_table.py` in the terminal, `plot.py` as figures in files.

Results and comparisons show themselves in notebooks with `figures_table.py` and `differences_table.py`.
"""
