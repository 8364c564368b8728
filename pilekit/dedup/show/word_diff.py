"""Where two texts differ, word by word, in a bounded piece of each.

    for part in word_diff("one two three", "one 2 three").parts:
        part.alike, part.first, part.second

Words are the words of the similarity (shingles.py): spaces, punctuation and the case of ASCII letters make no
difference. A character beyond ASCII is a word of its own here, so that texts without spaces show their differences.

`difflib` takes up to the square of the length. So long texts are first cut at runs of words that each of them has once,
in the same order: runs of 32 words, then between these of 8, and of 2. `difflib` compares what is left between them, a
window of each text at a time if it is still long.

At most `MOST_CHARACTERS` of each text are compared, from shortly before the first difference.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import numpy as np

from pilekit.dedup.sketch.shingles import Int64
from pilekit.errors import counted

MOST_CHARACTERS = 50_000
CONTEXT = 12
"""Equal words shown before and after a difference."""

_BLOCK = 4096
_BACK = 256
_RUNS = (32, 8, 2)
_WINDOW = 2_000
"""Words of each text that `difflib` compares at once."""
_BASE = np.uint64(0x9E6C63D0676A9A99)

_BETWEEN = r"[\x00-/:-@\[-^`{-\x7f]*"
_WORD = re.compile(rf"(\A{_BETWEEN}|)([A-Za-z0-9_]+|[^\x00-\x7f])({_BETWEEN})")


@dataclass(frozen=True, slots=True)
class Part:
    """Words of each text, each with the spaces and punctuation after it; if `alike`, the words are equal."""

    alike: bool
    first: list[str]
    second: list[str]


@dataclass(frozen=True, slots=True)
class WordDiff:
    """The two texts as parts, alike and different in turn.

    before   equal characters at the beginning that the parts leave out
    after    characters at the end of each text that were not compared
    """

    parts: list[Part]
    before: int
    after: tuple[int, int]


def word_diff(first: str, second: str, most: int = MOST_CHARACTERS) -> WordDiff:
    """Compare two texts, at most `most` characters of each."""
    before = 0
    if max(len(first), len(second)) > most:
        while before < len(first) and first[before : before + _BLOCK] == second[before : before + _BLOCK]:
            before += _BLOCK
        before = max(0, min(before, len(first), len(second)) - _BACK)
    pieces = [text[before : before + most] for text in (first, second)]
    (ours, keys), (theirs, their_keys) = map(_words, pieces)
    numbers = {key: place for place, key in enumerate(dict.fromkeys([*keys, *their_keys]))}
    numbered = [np.array([numbers[key] for key in text_keys], np.int64) for text_keys in (keys, their_keys)]
    parts = list(_parts(ours, theirs, _equal_runs(numbered[0], numbered[1])))
    sizes = (len(first) - before, len(second) - before)
    if len(parts) > 1 and not parts[-1].alike and sizes != (len(pieces[0]), len(pieces[1])):
        parts.pop()  # The rest of one text may follow in the part of the other that was cut off.
    first_size = sum(len(word) for part in parts for word in part.first)
    second_size = sum(len(word) for part in parts for word in part.second)
    return WordDiff(parts, before, (sizes[0] - first_size, sizes[1] - second_size))


def folded(parts: Iterable[Part]) -> Iterator[tuple[Literal["alike", "differs", "folded"], list[str], list[str]]]:
    """The parts for a reader: of a long equal part, its ends are apart from the many words to fold between them."""
    for part in parts:
        if not part.alike:
            yield "differs", part.first, part.second
        elif len(part.first) <= 3 * CONTEXT:
            yield "alike", part.first, part.second
        else:
            yield "alike", part.first[:CONTEXT], part.second[:CONTEXT]
            yield "folded", part.first[CONTEXT:-CONTEXT], part.second[CONTEXT:-CONTEXT]
            yield "alike", part.first[-CONTEXT:], part.second[-CONTEXT:]


def words_in(words: Sequence[str]) -> str:
    """The number of words, as text: "97 words"."""
    return counted(sum(any(map(str.isalnum, word)) for word in words), "word")


def _parts(ours: list[str], theirs: list[str], runs: Iterable[tuple[int, int, int]]) -> Iterator[Part]:
    """The parts of both texts around equal runs; runs without a word between them are one part."""
    begin = i = j = 0  # `begin` to `i` are the words of runs that have no part yet
    for first, second, size in [*runs, (len(ours), len(theirs), 0)]:
        if (first, second) != (i, j) or not size:
            if begin < i:
                yield Part(True, ours[begin:i], theirs[j - (i - begin) : j])
            if (first, second) != (i, j):
                yield Part(False, ours[i:first], theirs[j:second])
            begin = first
        i, j = first + size, second + size


def _equal_runs(ours: Int64, theirs: Int64, runs: Sequence[int] = _RUNS) -> Iterator[tuple[int, int, int]]:
    """(place in ours, place in theirs, number of words) of equal runs, in the order of both."""
    if len(ours) * len(theirs) <= _WINDOW**2:
        yield from SequenceMatcher(None, ours.tolist(), theirs.tolist()).get_matching_blocks()[:-1]
        return
    shorter = min(len(ours), len(theirs))
    head = _equal_words(ours[:shorter], theirs[:shorter])
    tail = _equal_words(ours[::-1][: shorter - head], theirs[::-1][: shorter - head])
    ends = len(ours) - tail, len(theirs) - tail
    between = ours[head : ends[0]], theirs[head : ends[1]]
    if head or tail:
        inner_runs = [(head + at, head + there, words) for at, there, words in _equal_runs(*between, runs)]
        yield from (run for run in [(0, 0, head), *inner_runs, (*ends, tail)] if run[2])
    elif runs:
        i = j = 0
        for first, second, size in [*_unique_runs(ours, theirs, runs[0]), (*ends, 0)]:
            inner = _equal_runs(ours[i:first], theirs[j:second], runs[1:])
            yield from ((i + at, j + there, words) for at, there, words in inner)
            yield from [(first, second, size)] * bool(size)
            i, j = first + size, second + size
    else:
        i = j = 0
        while i < len(ours) and j < len(theirs):
            equal = list(_equal_runs(ours[i : i + _WINDOW], theirs[j : j + _WINDOW]))
            yield from ((i + at, j + there, words) for at, there, words in equal)
            at, there, words = equal[-1] if equal else (0, 0, 0)
            i, j = i + max(at + words, _WINDOW // 4), j + max(there + words, _WINDOW // 4)


def _equal_words(first: Int64, second: Int64) -> int:
    """The number of equal words before the first difference of two texts of equal length."""
    differs = first != second
    return int(differs.argmax()) if differs.any() else len(first)


def _unique_runs(ours: Int64, theirs: Int64, size: int) -> Iterator[tuple[int, int, int]]:
    """Equal runs made of runs of `size` words that each text has once: as many as have the same order in both."""
    if min(len(ours), len(theirs)) < size:
        return
    (hashes, places), (their_hashes, their_places) = _hashed_once(ours, size), _hashed_once(theirs, size)
    _, index, their_index = np.intersect1d(hashes, their_hashes, assume_unique=True, return_indices=True)
    order = np.argsort(places[index])
    at, there = places[index][order], their_places[their_index][order]
    chosen = _longest_increasing(there.tolist())
    at, there = at[chosen], there[chosen]
    breaks = np.flatnonzero((np.diff(at) != 1) | (np.diff(there) != 1)) + 1
    i = j = 0
    for run in np.split(np.arange(len(at)), breaks) if len(at) else []:
        first, second, words = int(at[run[0]]), int(there[run[0]]), len(run) + size - 1
        inside = max(0, i - first, j - second)  # words of the run before
        first, second, words = first + inside, second + inside, words - inside
        if words > 0 and np.array_equal(ours[first : first + words], theirs[second : second + words]):
            yield first, second, words
            i, j = first + words, second + words


def _hashed_once(words: Int64, size: int) -> tuple[Int64, Int64]:
    """The hashes of the runs of `size` words that occur once, and their places."""
    hashes = np.zeros(len(words) - size + 1, np.uint64)
    for place in range(size):
        hashes = hashes * _BASE + words[place : place + len(hashes)].astype(np.uint64)
    values, places, counts = np.unique(hashes, return_index=True, return_counts=True)
    return values[counts == 1].view(np.int64), places[counts == 1]


def _longest_increasing(values: Sequence[int]) -> list[int]:
    """The places of a longest increasing subsequence of different values."""
    ends, places, before = list[int](), list[int](), list[int]()
    for place, value in enumerate(values):
        length = bisect_left(ends, value)
        before.append(places[length - 1] if length else -1)
        if length == len(ends):
            ends.append(value)
            places.append(place)
        ends[length], places[length] = value, place
    chosen = list[int]()
    place = places[-1] if places else -1
    while place >= 0:
        chosen.append(place)
        place = before[place]
    return chosen[::-1]


def _words(text: str) -> tuple[list[str], list[str]]:
    """The words with the characters around them, and the keys by which words are equal."""
    matches = _WORD.findall(text)
    if not matches:
        return [text] * bool(text), [text] * bool(text)  # A text without words is compared by its raw text.
    # A space in the key ends a word: "ab" is another word than "a b".
    keys = [(word.lower() if word.isascii() else word) + (" " if behind else "") for _, word, behind in matches]
    keys[-1] = keys[-1].rstrip(" ") + " "
    return ["".join(word) for word in matches], keys
