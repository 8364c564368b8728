"""Comparing: store_shingles.py reads the candidates' texts again and writes their shingle sets.
shingle_store.py maps the sets into memory. resolve.py goes through the candidates in keeper order and, with
jaccard_kernels.py, removes each document that is similar enough to a kept one.
"""
