"""Near-duplicate removal with proof.

run.py is `dedup_corpus`, from top to bottom: sketch/ reads each shard once, document_table.py numbers and ranks the
documents, matching.py finds copies and candidates, shingle_store.py keeps the candidates' shingle sets, resolve.py
computes exact similarities and decides, and output/ writes proofs, masks and clean shards. on_cluster.py runs matching
and deciding on the nodes of a cluster. result.py is the result of a run, previous_runs.py finds the runs behind
`against`, and show/ serves `pilekit duplicates`. Of the stages, drop_duplicates.py uses a finished run and
near_duplicates.py needs none.
"""
