"""Words as decontamination compares them: pieces of `text.split()`, lower-cased, without punctuation and symbols.

`compacted` is the rule. `next_word` finds the same words in a text that is not lower-cased, but hashes them more
coarsely: all forms of a sigma are one, and U+0307, which `str.lower` adds to a dotted capital I, counts for nothing. So
equal words have equal hashes, whatever `str.lower` makes of the letters beside them. Callers compare the words of equal
hashes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pilekit.pipeline.rules.scanned_texts import decoded
from pilekit.pipeline.rules.text_repeats import characters
from pilekit.workers.kernels import compiled

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]

_CASED = 0x20000
"""From this character on, none is white space, punctuation or a symbol, and none has a lower case."""
_SPACE, _DELETED, _UNHASHED = np.uint32(0xFFFFFFFF), np.uint32(0xFFFFFFFE), np.uint32(0xFFFFFFFD)
_ASCII = np.uint8(0x80)


@cache
def folds() -> UInt32:
    """The hash's form of each character, by code: a character, or one of three marks, uint32 [0x110000].

    Characters of the Unicode categories P and S are deleted.
    """
    table, characters = np.arange(0x110000, dtype=np.uint32), [chr(code) for code in range(_CASED)]
    table[:_CASED] = [ord(character.lower()[0]) for character in characters]
    table[:_CASED][[unicodedata.category(character)[0] in "PS" for character in characters]] = _DELETED
    table[:_CASED][[character.isspace() for character in characters]] = _SPACE
    table[[ord("Σ"), ord("ς")]], table[0x307] = ord("σ"), _UNHASHED
    return table


def compacted(text: str) -> tuple[bytes, int]:
    """The words of a text in UTF-8, each followed by a space, and their number.

    A piece of only punctuation and symbols is no word.
    """
    data = np.frombuffer(f"{text.lower()} ".encode(), np.uint8)
    words = np.empty_like(data)
    size, count = _compact(data, folds(), words)
    return words[:size].tobytes(), count


def compacted_all(texts: Sequence[str]) -> tuple[Bytes, Int64]:
    """The `compacted` words of several texts, one behind the other, after a space.

    Returns their bytes, and where the words of each text begin, and the end, int64 [texts + 1].
    """
    lowered = pa.array([text if text.isascii() else text.lower() for text in texts], pa.large_string())
    _, ends, values = lowered.buffers()
    ends, size = np.frombuffer(ends, np.int64, len(texts) + 1), 0 if values is None else values.size
    data = np.frombuffer(values, np.uint8) if size else np.empty(0, np.uint8)
    words, offsets = np.empty(len(data) + len(texts) + 1, np.uint8), np.empty(len(texts) + 1, np.int64)
    words[0], offsets[0] = 32, 1
    _compact_all(data, ends, folds(), words, offsets)
    return words[: offsets[-1]], offsets


@compiled()
def _compact(data: Bytes, fold: UInt32, words: Bytes) -> tuple[int, int]:
    """Write the words of a text that is lower-cased, or ASCII; returns their bytes and their number.

    ASCII has no branch: each byte is written, and stays if it belongs to a word or is the first space behind one.
    """
    at, stop, size, count, is_apart = np.uint64(0), np.uint64(len(data)), 0, 0, True
    while at < stop:
        if data[at] < _ASCII:
            code = fold[np.uint64(data[at])]
            is_space, stays = code == _SPACE, code != _DELETED
            words[size] = np.uint8(32) if is_space else np.uint8(code)
            ends_word = is_space & (not is_apart)
            size += int(stays & ((not is_space) | ends_word))
            count += int(ends_word)
            is_apart = is_space | (is_apart & (not stays))
            at += np.uint64(1)
            continue
        code, width = decoded(data, at)
        code = fold[np.uint64(code)]
        if code == _SPACE:
            if not is_apart:
                words[size] = 32
                size += 1
                count += 1
            is_apart = True
        elif code != _DELETED:
            for i in range(width):
                words[size] = data[at + np.uint64(i)]
                size += 1
            is_apart = False
        at += width
    if not is_apart:
        words[size] = 32
        size += 1
        count += 1
    return size, count


@compiled()
def _compact_all(data: Bytes, ends: Int64, fold: UInt32, words: Bytes, offsets: Int64) -> None:
    for text in range(len(ends) - 1):
        size, _ = _compact(data[ends[text] : ends[text + 1]], fold, words[offsets[text] :])
        offsets[text + 1] = offsets[text] + size


@compiled()
def next_word(data: Bytes, at: np.uint64, stop: np.uint64, fold: UInt32) -> tuple[np.uint64, np.uint64, np.uint64]:
    """(hash, begin, end) of the first word from `at` on; begin and end are `stop` if there is none.

    `end` is after the punctuation at the word's end.
    """
    ascii_size, low, high = np.uint64(1), np.uint64(9), np.uint64(55)
    hash, begin, in_word = np.uint64(0), stop, False
    while at < stop:
        byte = data[at]
        if byte < _ASCII:
            code, size = np.uint32(byte), ascii_size
        else:
            code, size = decoded(data, at)
        code = fold[np.uint64(code)]
        if code == _SPACE:
            if in_word:
                break
            begin = stop
        else:
            if begin == stop:
                begin = at
            if code != _DELETED:
                in_word = True
                if code != _UNHASHED:
                    hash = ((hash << low) | (hash >> high)) ^ np.uint64(code)
        at += size
        while in_word and at < stop and data[at] < _ASCII:  # Most characters are like the one before: no marks.
            code = fold[np.uint64(data[at])]
            if code >= _UNHASHED:
                break
            hash = ((hash << low) | (hash >> high)) ^ np.uint64(code)
            at += ascii_size
    if not in_word:
        return hash, stop, stop
    hash = (hash ^ (hash >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    hash = (hash ^ (hash >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return hash ^ (hash >> np.uint64(29)), begin, at


def characters_before(data: Bytes, places: Int64) -> Int64:
    """How many characters begin between the first of these ascending places in UTF-8 and each of them, int64."""
    return np.cumsum(characters(data, np.append(places[:1], places[:-1]), places))
