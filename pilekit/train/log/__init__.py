"""Records of a run: figures of each step, warnings, and where time goes.

The trainer adds up a step over all ranks (step/losses.py) and passes the figures to `open_logs` (logs.py). Rank 0 then
writes metrics.jsonl (metrics.py), shows the figures in TensorBoard and Weights & Biases, and warns of stalls,
divergence and growing memory (alerts.py) with a command that shows the step's documents (peek.py).
profile.py measures where some steps spend time.
"""
