"""Counting in plain Python: slow, and obviously right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.cutting.reference import words_of

Counts = dict[str, tuple[int, int]]
"""Occurrences and documents by subset."""


def occurrences(text: bytes, phrase: bytes) -> int:
    """How often `text` holds `phrase`; occurrences may overlap."""
    return sum(text.startswith(phrase, at) for at in range(len(text)))


def words(text: str) -> bytes:
    """The words of a text, each between spaces."""
    return "".join(f" {word}" for word, _, _ in words_of(text)).encode() + b" "


def counts(documents: Iterable[tuple[str, str]], phrases: Sequence[str], by_words: bool = False) -> dict[str, Counts]:
    """The counts of each phrase in documents, given as (subset, text)."""
    form = words if by_words else str.encode
    sums: dict[str, dict[str, list[int]]] = {phrase: defaultdict(lambda: [0, 0]) for phrase in phrases}
    for subset, text in documents:
        for phrase in phrases:
            if number := occurrences(form(text), form(phrase)):
                sums[phrase][subset][0] += number
                sums[phrase][subset][1] += 1
    return {
        phrase: {subset: (number, held) for subset, (number, held) in by_subset.items()}
        for phrase, by_subset in sums.items()
    }
