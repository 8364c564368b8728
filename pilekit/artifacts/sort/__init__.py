"""Sorting in bounded memory, for all steps that compare documents with all others.

external_sort.py sorts rows of 64-bit numbers on disk. repeated_values.py keeps values that occur once, mostly nearly
all, out of the sort. scratch_files.py has arrays and flags in files, with a value for each document. memory_limit.py
says how much memory a sort takes by default.
"""

MAX_DOCUMENTS = 1 << 32
"""A row names a document by 32 bits, so that the name shares a word with a size or a place."""
