"""The definition of dedup in its plainest form: sets of tuples of bytes, every pair compared, nothing hashed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Literal, NamedTuple

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


def similar_pairs(texts: Sequence[str], threshold: float, ngram: int = 5) -> dict[tuple[int, int], float]:
    """(i, j), i < j -> the similarity of texts i and j, of all pairs that reach the threshold."""
    sets = [shingles(text, ngram) for text in texts]
    similarities = {pair: jaccard(sets[pair[0]], sets[pair[1]]) for pair in combinations(range(len(texts)), 2)}
    return {pair: similarity for pair, similarity in similarities.items() if similarity >= threshold}


def keeper_order(texts: Sequence[str], keep: Keep) -> list[int]:
    """The documents in keeper order: of two similar documents, the earlier is kept."""
    if keep == "first":
        return list(range(len(texts)))
    return sorted(range(len(texts)), key=lambda i: (-len(texts[i].encode()), i))


class Removal(NamedTuple):
    kept: int
    similarity: float
    reason: Literal["exact", "near"]


def deduplicate(
    texts: Sequence[str],
    pairs: dict[tuple[int, int], float],
    keep: Keep = "longest",
) -> dict[int, Removal]:
    """Removed document -> reason, given the known similar pairs: `similar_pairs`, or fewer.

    Of equal texts only the first in keeper order takes part in the comparison of pairs; the others follow it.
    """
    order = keeper_order(texts, keep)
    place = {document: number for number, document in enumerate(order)}
    first_of: dict[str, int] = {}
    for document in order:
        first_of.setdefault(texts[document], document)
    removed: dict[int, Removal] = {}
    for document in order:
        if first_of[texts[document]] != document:
            continue
        similar = [
            (-similarity, place[other], other)
            for pair, similarity in pairs.items()
            if document in pair
            for other in pair
            if other != document
            and place[other] < place[document]
            and other not in removed
            and first_of[texts[other]] == other
        ]
        if similar:
            similarity, _, kept = min(similar)
            removed[document] = Removal(kept, -similarity, "near")
    for document in order:
        first = first_of[texts[document]]
        if first != document:
            removed[document] = removed[first] if first in removed else Removal(first, 1.0, "exact")
    return removed
