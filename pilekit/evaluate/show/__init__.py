"""Results and comparisons as tables and plots."""
