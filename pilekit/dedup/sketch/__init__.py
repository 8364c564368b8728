"""Sketches: one pass over each shard computes exact hashes, shingles, MinHash signatures and band keys.

shingles.py makes 64-bit hashes of word n-grams from bytes, minhash.py reduces them to a signature, bands.py chooses how
to cut signatures into keys. sketch_shard.py writes hashes and keys as a Parquet file in the format of sketch_format.py.
"""
