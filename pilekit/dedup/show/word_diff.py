"""Where two texts differ, word by word, in time that is bounded whatever they are.

    for part in word_diff("one two three", "one 2 three"):
        part.alike, part.one, part.other

Runs of words that occur once in either text, and in the same order in both, are alike for certain; they cut the texts
into small gaps (as in a patience diff), and only those are compared by `difflib`, whose time grows with the square. A
gap too large for it is shown as wholly different. Of long texts a piece is compared, from where they begin to differ.

What is a word, and which are equal, is what it is to the similarity (shingles.py): spaces, marks and the case of ASCII
letters make no difference. So texts whose words are the same are alike from end to end. Only long words, and those in
scripts without spaces, are compared in pieces, to show what differs in them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from operator import itemgetter

MOST_CHARACTERS = 500_000
"""So much of each text is compared; it takes about half a second, and 3 s for texts made to be slow."""

_ANCHOR_WORDS = 5
_LARGEST_GAP = 400
_BLOCK = 1 << 16
_BACK = 256

_IN_WORDS = r"A-Za-z0-9_\x80-\U0010ffff"
_IN_NO_WORD = "".join(character for character in map(chr, range(128)) if not re.match(f"[{_IN_WORDS}]", character))
# A word with what is behind it and in no word; the first one also with what is before it. Letters stay together up to a
# limit; ideographs and the like, and marks beyond ASCII, are pieces of one character.
_WORDS = re.compile(rf"(\A[^{_IN_WORDS}]*|)([^\W\u2e80-\U0010ffff]{{1,64}}|[{_IN_WORDS}])([^{_IN_WORDS}]*)")
# The end of a text ends a word, as what is in no word does.
_GOES_ON = "\0"


Step = tuple[bool, int, int]
"""Whether the words up to two places, one in each text, are alike."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of words of each text, each with what is behind it and in no word; if `alike`, those words are equal."""

    alike: bool
    one: tuple[str, ...]
    other: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WordDiff:
    """The two texts as parts, alike and different ones by turns.

    before       characters at the beginning, the same in both, that the parts leave out
    after        characters at the end of each text that were not compared
    """

    parts: tuple[Part, ...]
    before: int
    after: tuple[int, int]


def word_diff(one: str, other: str, most: int = MOST_CHARACTERS, *, unseen: tuple[int, int] = (0, 0)) -> WordDiff:
    """Compare two texts; `most` characters of each, if they are longer. `unseen` more characters follow each."""
    before = 0
    if max(len(one), len(other)) > most:
        before = max(0, _common_beginning(one, other) - _BACK)
    ends = [min(len(text), before + most) for text in (one, other)]
    (ours, keys), (theirs, other_keys) = (
        _words(text[before:end]) for text, end in zip((one, other), ends, strict=True)
    )
    parts: list[Part] = []
    i = j = 0
    for alike, steps in groupby(_steps(keys, other_keys), itemgetter(0)):
        last = list(steps)[-1]
        parts.append(Part(alike, tuple(ours[i : last[1]]), tuple(theirs[j : last[2]])))
        i, j = last[1:]
    lengths = len(one) + unseen[0], len(other) + unseen[1]
    if len(parts) > 1 and not parts[-1].alike and tuple(ends) != lengths:
        cut = parts.pop()  # It says nothing: what one text has there may follow in the other.
        ends = [end - sum(map(len, words)) for end, words in zip(ends, (cut.one, cut.other), strict=True)]
    return WordDiff(tuple(parts), before, (lengths[0] - ends[0], lengths[1] - ends[1]))


def _words(text: str) -> tuple[list[str], list[str]]:
    """The words, each with what is in no word around it, and what has to be equal for two of them to be."""
    words = ["".join(parts) for parts in _WORDS.findall(text)]
    if not words and text:
        return [text], [text]  # With no word it is compared by its raw text.
    # Lower case of ASCII changes no length and no class of a character, so words are found in the same places.
    lower = text.encode(errors="surrogatepass").lower().decode(errors="surrogatepass")
    found = _WORDS.findall(lower)
    keys = [word if behind else word + _GOES_ON for _, word, behind in found]
    if keys:
        keys[-1] = found[-1][1]
    return words, keys


def around_words(text: str) -> tuple[str, str, str]:
    """(what is before the first word, the words, what is behind the last one); with no word all is in the middle."""
    words = text.strip(_IN_NO_WORD)
    if not words:
        return "", text, ""
    begin = len(text) - len(text.lstrip(_IN_NO_WORD))
    return text[:begin], words, text[begin + len(words) :]


def _common_beginning(one: str, other: str) -> int:
    """How many characters are the same, to the block."""
    at = 0
    while at < min(len(one), len(other)) and one[at : at + _BLOCK] == other[at : at + _BLOCK]:
        at += _BLOCK
    return min(at, len(one), len(other))


def _steps(one: Sequence[str], other: Sequence[str]) -> Iterator[Step]:
    """The way through both texts; each step goes further in one of them at least."""
    i = j = 0
    for at_i, at_j in [*_anchors(one, other), (len(one), len(other))]:
        if at_i < i or at_j < j:
            continue  # lies in what is known to be alike
        for alike, a, b in _gap(one[i:at_i], other[j:at_j]):
            yield alike, i + a, j + b
        i, j = at_i, at_j
        count = _same(one, other, i, j)
        if count:
            i, j = i + count, j + count
            yield True, i, j


def _anchors(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """Where runs of words begin that each text has once, as many as are in the same order in both."""
    places = [_once(words) for words in (one, other)]
    pairs = [(place, places[1][run]) for run, place in places[0].items() if run in places[1]]
    # The longest increasing subsequence of the places in `other`, those in `one` being in order.
    lasts: list[int] = []
    chains: list[int] = []
    before = [-1] * len(pairs)
    for number, (_, place) in enumerate(pairs):
        length = bisect_left(lasts, place)
        lasts[length : length + 1] = [place]
        chains[length : length + 1] = [number]
        before[number] = chains[length - 1] if length else -1
    found = []
    number = chains[-1] if chains else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


def _once(words: Sequence[str]) -> dict[tuple[str, ...], int]:
    """Run of words -> where it begins, of the runs that occur once, in their order."""
    places: dict[tuple[str, ...], int] = {}
    several = set()
    for place, run in enumerate(zip(*(words[shift:] for shift in range(_ANCHOR_WORDS)), strict=False)):
        if places.setdefault(run, place) != place:
            several.add(run)
    return {run: place for run, place in places.items() if run not in several}


def _gap(one: Sequence[str], other: Sequence[str]) -> Iterator[Step]:
    """The steps through what lies between two anchors."""
    front = _same(one, other)
    back = _same(one[front:][::-1], other[front:][::-1])
    ends = len(one) - back, len(other) - back
    if front:
        yield True, front, front
    if max(ends) - front <= _LARGEST_GAP:
        for tag, _, a, _, b in SequenceMatcher(
            None, one[front : ends[0]], other[front : ends[1]], autojunk=False
        ).get_opcodes():
            yield tag == "equal", front + a, front + b
    else:
        yield False, *ends
    if back:
        yield True, len(one), len(other)


def _same(one: Sequence[str], other: Sequence[str], i: int = 0, j: int = 0) -> int:
    """How many words are the same from places `i` and `j` on."""
    count = 0
    while i + count < len(one) and j + count < len(other) and one[i + count] == other[j + count]:
        count += 1
    return count
