"""Near-duplicate removal with proof.

run.py is `deduplicate`, from top to bottom: sketch/ reads each shard once, match/ finds candidates, compare/ computes
exact similarities and decides, output/ writes proofs, masks and clean shards. result.py is what a run returns,
previous_runs.py finds the runs behind `against`, and show/ serves `pilekit duplicates`. The stages deduplicated.py and
near_duplicates.py use a finished run, or need none.
"""
