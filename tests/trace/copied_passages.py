"""The passages of a text that documents have, found by comparing all words with all words: slow, and plainly right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pilekit.cutting.words import compacted


class Passage(NamedTuple):
    """Words `begin` to `end` of a text, and the indices of the documents that have them."""

    begin: int
    end: int
    documents: list[int]


def words_of(text: str) -> list[str]:
    """The words that are compared."""
    return compacted(text)[0].decode().split()


def copied_passages(text: str, documents: Sequence[str], least: int) -> list[Passage]:
    """The maximal passages of at least `least` words, by their first word."""
    words, others = words_of(text), [words_of(document) for document in documents]
    held = dict[tuple[int, int], list[int]]()
    for begin in range(len(words)):
        having = list(range(len(others)))
        for end in range(begin + 1, len(words) + 1):  # Whoever has a passage has its beginning.
            having = [index for index in having if _has(others[index], words[begin:end])]
            if not having:
                break
            if end - begin >= least:
                held[begin, end] = having
    return [
        Passage(*span, held[span])
        for span in sorted(held)
        if not any(span != other and other[0] <= span[0] and span[1] <= other[1] for other in held)
    ]


def _has(words: list[str], passage: list[str]) -> bool:
    size = len(passage)
    return any(words[at : at + size] == passage for at in range(len(words) - size + 1))
