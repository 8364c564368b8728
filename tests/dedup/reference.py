"""The definition of dedup in its plainest form: sets of tuples of bytes, every pair compared, nothing hashed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

Shingle = tuple[bytes, ...]
Keep = Literal["longest", "first"]


def words(text: str) -> list[bytes]:
    return [word.lower() for word in re.findall(rb"[A-Za-z0-9_\x80-\xff]+", text.encode())]


def shingles(text: str, ngram: int = 5) -> frozenset[Shingle]:
    found = words(text)
    if not found:
        return frozenset({(text.encode(),)})  # No word has these bytes, so it is no word n-gram.
    if len(found) < ngram:
        return frozenset({tuple(found)})
    return frozenset(tuple(found[i : i + ngram]) for i in range(len(found) - ngram + 1))


def jaccard(one: frozenset[Shingle], other: frozenset[Shingle]) -> float:
    return len(one & other) / len(one | other)


def similar_pairs(texts: Sequence[str], threshold: float) -> dict[tuple[int, int], float]:
    """(i, j), i < j -> the similarity of texts i and j, of all pairs that reach the threshold."""
    sets = [shingles(text) for text in texts]
    similarities = {pair: jaccard(sets[pair[0]], sets[pair[1]]) for pair in combinations(range(len(texts)), 2)}
    return {pair: similarity for pair, similarity in similarities.items() if similarity >= threshold}
