"""Matching: from sketches to candidates. document_table.py numbers the documents and gives each a rank in keeper order.
exact.py finds copies by hash; candidates.py finds the documents that share a band key. Both let repeated.py drop the
values that occur once, and sort the rest with external_sort.py, in bounded memory.
"""
