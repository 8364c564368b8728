"""Decontamination in plain Python, written from the rule: slow, and short enough to be read in a minute."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

Place = tuple[str, int, int]
"""A word, and where its piece of the text begins and ends."""


@cache
def word_of(piece: str) -> str:
    return "".join(c for c in piece.lower() if unicodedata.category(c)[0] not in "PS")


def words_of(text: str) -> list[Place]:
    kept = [(word_of(match[0]), match.start(), match.end()) for match in re.finditer(r"\S+", text)]
    return [(word, begin, end) for word, begin, end in kept if word]


def ngrams_of(text: str, ngram: int = 13, fewest: int = 8) -> list[tuple[str, ...]]:
    words = words_alone(text)
    size = ngram if len(words) >= ngram else max(len(words), min(fewest, ngram))
    return [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]


def spans(text: str, wanted: set[tuple[str, ...]], ngram: int = 13) -> list[tuple[int, int, set[tuple[str, ...]]]]:
    """(begin, end, n-grams) of each span of a text."""
    words, found = words_of(text), []
    only_words = [word for word, _, _ in words]
    for at in range(len(words)):
        for size in range(min(5, ngram), ngram + 1):
            hit = tuple(only_words[at : at + size])
            if len(hit) == size and hit in wanted:
                found.append((at, at + size, {hit}))
    joined: list[tuple[int, int, set[tuple[str, ...]]]] = []
    for begin, end, hits in found:
        if joined and begin <= joined[-1][1]:
            first, before, others = joined.pop()
            begin, end, hits = first, max(before, end), others | hits
        joined.append((begin, end, hits))
    return [(words[begin][1], words[end - 1][2], hits) for begin, end, hits in joined]


def common(texts: Sequence[str], wanted: set[tuple[str, ...]], limit: int, ngram: int = 13) -> set[tuple[str, ...]]:
    counts = Counter(hit for text in texts for hit in set().union(*(hits for *_, hits in spans(text, wanted, ngram))))
    return {hit for hit, documents in counts.items() if limit and documents > limit}


def pieces(text: str, cut: Sequence[tuple[int, int]], window: int = 200) -> list[str]:
    gone = [False] * len(text)
    for begin, end in cut:
        begin, end = max(0, begin - window), min(len(text), end + window)
        while begin > 0 and not text[begin].isspace() and not text[begin - 1].isspace():
            begin -= 1
        while end < len(text) and not text[end].isspace() and not text[end - 1].isspace():
            end += 1
        gone[begin:end] = [True] * (end - begin)
    edges = [at + 1 for at, (one, other) in enumerate(pairwise(gone)) if one != other]
    found = [text[begin:end].strip() for begin, end in pairwise([0, *edges, len(text)]) if not gone[begin]]
    left = [piece for piece in found if len(piece) >= 200]
    return left if len(left) <= 10 else []


def words_alone(text: str) -> list[str]:
    return [word for word, _, _ in words_of(text)]


def verdict(
    text: str, span: tuple[int, int], question: str, answers: Sequence[str], ignored: set[tuple[str, ...]], reach: int
) -> str:
    """ "leak", "question", or "" if the span of a text has no n-gram of the question that is not ignored."""
    words, only_words, items = words_of(text), words_alone(text), set(ngrams_of(question, fewest=5))
    hits = [(at, at + len(item)) for item in items for at in places(only_words, item)]
    own = {at for begin, end in hits for at in range(begin, end)}
    asked = [
        (words[begin][1], words[end - 1][2])
        for begin, end in hits
        if tuple(only_words[begin:end]) not in ignored and span[0] <= words[begin][1] <= words[end - 1][2] <= span[1]
    ]
    if not asked:
        return ""
    first, last = min(begin for begin, _ in asked) - reach, max(end for _, end in asked) + reach
    for answer in answers:
        wanted = tuple(words_alone(answer)[:13])
        for at in places(only_words, wanted) if wanted else []:
            begin, end = words[at][1], words[at + len(wanted) - 1][2]
            is_near = (span[0] <= begin and end <= span[1]) or (first <= begin and end <= last)
            if is_near and not own.issuperset(range(at, at + len(wanted))):
                return "leak"
    return "question"


def places(words: Sequence[str], wanted: tuple[str, ...]) -> list[int]:
    return [at for at in range(len(words) - len(wanted) + 1) if tuple(words[at : at + len(wanted)]) == wanted]
