"""Words as decontamination compares them: pieces of `text.split()`, lower-cased, without punctuation and symbols.

`normalised` is the rule. The kernels find the same words, but hash them more coarsely: all forms of a sigma are one,
and U+0307, which `str.lower` adds to a dotted capital I, counts for nothing. So equal words have equal hashes, whatever
`str.lower` makes of the letters beside them. Callers compare the words of equal hashes.
"""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np
import numpy.typing as npt

from pilekit.kernels import compiled
from pilekit.pipeline.rules.scanned_texts import decoded

Bytes = npt.NDArray[np.uint8]
UInt32 = npt.NDArray[np.uint32]

_CASED = 0x20000
"""From this character on, none is white space, punctuation or a symbol, and none has a lower case."""
_SPACE, _DELETED, _UNHASHED = np.uint32(0xFFFFFFFF), np.uint32(0xFFFFFFFE), np.uint32(0xFFFFFFFD)
_ASCII = np.uint8(0x80)


@cache
def _deletions() -> dict[int, None]:
    """For `str.translate`: all characters of the Unicode categories P and S."""
    return dict.fromkeys(code for code in range(_CASED) if unicodedata.category(chr(code))[0] in "PS")


def normalised(text: str) -> list[str]:
    """The words of a text. A piece of only punctuation and symbols is no word."""
    text = text.lower()
    if text.isascii():
        return text.translate(_deletions()).split()
    return [left for word in text.split() if (left := word if word.isalnum() else word.translate(_deletions()))]


@cache
def folds() -> UInt32:
    """The hash's form of each character, by code: a character, or one of three marks, uint32 [0x110000]."""
    table = np.arange(0x110000, dtype=np.uint32)
    for code in range(_CASED):
        if chr(code).isspace():
            table[code] = _SPACE
        elif code in _deletions():
            table[code] = _DELETED
        else:
            table[code] = ord(chr(code).lower()[0])
    table[[ord("Σ"), ord("ς")]], table[0x307] = ord("σ"), _UNHASHED
    return table


@compiled()
def next_word(data: Bytes, at: np.uint64, stop: np.uint64, fold: UInt32) -> tuple[np.uint64, np.uint64, np.uint64]:
    """(hash, begin, end) of the first word from `at` on; begin and end are `stop` if there is none.

    `end` is after the punctuation at the word's end.
    """
    one, low, high = np.uint64(1), np.uint64(9), np.uint64(55)
    hash, begin, kept = np.uint64(0), stop, False
    while at < stop:
        byte = data[at]
        if byte < _ASCII:
            code, size = np.uint32(byte), one
        else:
            code, size = decoded(data, at)
        code = fold[np.uint64(code)]
        if code == _SPACE:
            if kept:
                break
            begin = stop
        else:
            if begin == stop:
                begin = at
            if code != _DELETED:
                kept = True
                if code != _UNHASHED:
                    hash = ((hash << low) | (hash >> high)) ^ np.uint64(code)
        at += size
        while kept and at < stop and data[at] < _ASCII:  # Most characters are like the one before: no marks.
            code = fold[np.uint64(data[at])]
            if code >= _UNHASHED:
                break
            hash = ((hash << low) | (hash >> high)) ^ np.uint64(code)
            at += one
    if not kept:
        return hash, stop, stop
    hash = (hash ^ (hash >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    hash = (hash ^ (hash >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return hash ^ (hash >> np.uint64(29)), begin, at
