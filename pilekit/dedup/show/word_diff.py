"""Where two texts differ, word by word: `difflib` over a bounded piece of each.

    for part in word_diff("one two three", "one 2 three").parts:
        part.alike, part.one, part.other

Words are the words of the similarity (shingles.py): spaces, punctuation and the case of ASCII letters make no
difference. A character beyond ASCII is a word of its own here, so that texts without spaces show their differences.
`difflib` takes up to the square of the length, so at most `MOST_CHARACTERS` of each text are compared, from shortly
before the first difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from operator import attrgetter

MOST_CHARACTERS = 50_000

_BLOCK = 4096
_BACK = 256

_BETWEEN = r"[\x00-/:-@\[-^`{-\x7f]*"
_WORD = re.compile(rf"(\A{_BETWEEN}|)([A-Za-z0-9_]+|[^\x00-\x7f])({_BETWEEN})")


@dataclass(frozen=True, slots=True)
class Part:
    """Words of each text, each with the spaces and punctuation after it; if `alike`, the words are equal."""

    alike: bool
    one: list[str]
    other: list[str]


@dataclass(frozen=True, slots=True)
class WordDiff:
    """The two texts as parts, alike and different in turn.

    before   equal characters at the beginning that the parts leave out
    after    characters at the end of each text that were not compared
    """

    parts: list[Part]
    before: int
    after: tuple[int, int]


def word_diff(one: str, other: str, most: int = MOST_CHARACTERS) -> WordDiff:
    """Compare two texts, at most `most` characters of each."""
    before = 0
    if max(len(one), len(other)) > most:
        while before < len(one) and one[before : before + _BLOCK] == other[before : before + _BLOCK]:
            before += _BLOCK
        before = max(0, min(before, len(one), len(other)) - _BACK)
    pieces = [text[before : before + most] for text in (one, other)]
    (ours, keys), (theirs, other_keys) = map(_words, pieces)
    codes = SequenceMatcher(None, keys, other_keys).get_opcodes()
    parts = [Part(tag == "equal", ours[i:i_end], theirs[j:j_end]) for tag, i, i_end, j, j_end in codes]
    left = (len(one) - before, len(other) - before)
    if len(parts) > 1 and not parts[-1].alike and left != (len(pieces[0]), len(pieces[1])):
        parts.pop()  # The rest of one text may follow in the part of the other that was cut off.
    one_size, other_size = (
        sum(len(word) for part in parts for word in words(part)) for words in (attrgetter("one"), attrgetter("other"))
    )
    return WordDiff(parts, before, (left[0] - one_size, left[1] - other_size))


def _words(text: str) -> tuple[list[str], list[str]]:
    """The words with the characters around them, and the keys by which words are equal."""
    found = _WORD.findall(text)
    if not found:
        return [text] * bool(text), [text] * bool(text)  # A text without words is compared by its raw text.
    # A space in the key ends a word: "ab" is another word than "a b".
    keys = [(word.lower() if word.isascii() else word) + (" " if behind else "") for _, word, behind in found]
    keys[-1] = keys[-1].rstrip(" ") + " "
    return ["".join(word) for word in found], keys
