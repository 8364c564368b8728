"""The exact Jaccard similarity of candidate pairs, from their shingle sets on disk."""
