"""Matching: from sketches to candidates. population.py numbers the documents and gives each a rank in keeper order.
exact.py finds copies by hash; candidates.py finds the documents that share a band key. Both let repeated.py drop the
values that occur once, and sort the rest with external_sort.py, in bounded memory. on_cluster.py gives each node of a
cluster a range of the hash, and a share of the bands.
"""
