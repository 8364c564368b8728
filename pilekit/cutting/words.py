"""Words as decontamination compares them: pieces of `text.split()`, lower-cased, without punctuation and symbols.

`compacted` is the rule. `next_word` finds the same words in a text that is not lower-cased, but hashes them more
coarsely: all forms of a sigma are one, and U+0307, which `str.lower` adds to a dotted capital I, counts for nothing. So
equal words have equal hashes, whatever `str.lower` makes of the letters beside them. Callers compare the words of equal
hashes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
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
Flags = npt.NDArray[np.bool_]

_CASED = 0x20000
"""From this character on, none is white space, punctuation or a symbol, and none has a lower case."""
_SPACE, _DELETED, _UNHASHED = np.uint32(0xFFFFFFFF), np.uint32(0xFFFFFFFE), np.uint32(0xFFFFFFFD)
_ASCII = np.uint8(0x80)
_NOT_PLAIN = "ΣİȺȾ"


@cache
def folds() -> UInt32:
    """The hash's form of each character, by code: a character, or one of three marks, uint32 [0x110000]."""
    table = np.arange(0x110000, dtype=np.uint32)
    table[:_CASED] = forms()
    table[[ord("Σ"), ord("ς")]], table[0x307] = ord("σ"), _UNHASHED
    return table


@cache
def forms() -> UInt32:
    """The lower case of each character, by code, or a mark of a space or of one to delete, uint32 [_CASED].

    Characters of the Unicode categories P and S are deleted.
    """
    characters = [chr(code) for code in range(_CASED)]
    table = np.array([ord(character.lower()[0]) for character in characters], np.uint32)
    table[[unicodedata.category(character)[0] in "PS" for character in characters]] = _DELETED
    table[[character.isspace() for character in characters]] = _SPACE
    return table


def compacted(text: str) -> tuple[bytes, int]:
    """The words of a text in UTF-8, each followed by a space, and their number.

    A piece of only punctuation and symbols is no word.
    """
    data = np.frombuffer(f"{_plain_case(text)} ".encode(), np.uint8)
    words = np.empty_like(data)
    size, count = _compact(data, forms(), words)
    return words[:size].tobytes(), count


def compacted_all(texts: Sequence[str]) -> tuple[Bytes, Int64]:
    """The `compacted` words of several texts, one behind the other, after a space.

    Returns their bytes, and where the words of each text begin, and the end, int64 [texts + 1].
    """
    data, ends = _utf8(map(_plain_case, texts), len(texts))
    words, offsets = np.empty(len(data) + len(texts) + 1, np.uint8), np.empty(len(texts) + 1, np.int64)
    words[0], offsets[0] = 32, 1
    _compact_all(data, ends, forms(), words, offsets)
    return words[: offsets[-1]], offsets


def _utf8(texts: Iterable[str], count: int) -> tuple[Bytes, Int64]:
    """The bytes of so many texts, one behind the other, and where each begins, and the end, int64 [texts + 1]."""
    _, ends, values = pa.array(texts, pa.large_string(), size=count).buffers()
    data = np.empty(0, np.uint8) if values is None or not values.size else np.frombuffer(values, np.uint8)
    return data, np.frombuffer(ends, np.int64, count + 1)


def _plain_case(text: str) -> str:
    """The text, in lower case if the lower case of a character is more than a character, or longer in UTF-8.

    That of a sigma depends on its place in a word. `str.lower` of a text that is not ASCII is slow.
    """
    is_plain = text.isascii() or not any(character in text for character in _NOT_PLAIN)
    return text if is_plain else text.lower()


@compiled()
def _compact(data: Bytes, forms: UInt32, words: Bytes) -> tuple[int, int]:
    """Write the words of a text with a plain case; returns their bytes and their number.

    ASCII has no branch: each byte is written, and stays if it belongs to a word or is the first space behind one.
    """
    at, stop, size, one, count, is_apart = np.uint64(0), np.uint64(len(data)), np.uint64(0), np.uint64(1), 0, True
    while at < stop:
        if data[at] < _ASCII:
            form = forms[np.uint64(data[at])]
            is_space, stays = form == _SPACE, form != _DELETED
            words[size] = np.uint8(32) if is_space else np.uint8(form)
            ends_word = is_space & (not is_apart)
            size += np.uint64(stays & ((not is_space) | ends_word))
            count += int(ends_word)
            is_apart = is_space | (is_apart & (not stays))
            at += one
            continue
        code, width = decoded(data, at)
        form = forms[np.uint64(code)] if code < len(forms) else code
        if form == _SPACE:
            if not is_apart:
                words[size] = 32
                size += one
                count += 1
            is_apart = True
        elif form != _DELETED:
            size = _write_character(form, words, size)
            is_apart = False
        at += width
    if not is_apart:
        words[size] = 32
        size += one
        count += 1
    return int(size), count


@compiled()
def _write_character(form: np.uint32, words: Bytes, size: np.uint64) -> np.uint64:
    """Write a character in UTF-8; returns where it ends."""
    code, one, six = np.uint64(form), np.uint64(1), np.uint64(6)
    if code < np.uint64(0x80):
        words[size] = np.uint8(code)
        return np.uint64(size + one)
    more = one + np.uint64(code >= np.uint64(0x800)) + np.uint64(code >= np.uint64(0x10000))
    words[size] = np.uint8((np.uint64(0xF0) << (np.uint64(3) - more) | code >> (six * more)) & np.uint64(0xFF))
    while more > np.uint64(0):
        more -= one
        size += one
        words[size] = np.uint8(np.uint64(0x80) | (code >> (six * more)) & np.uint64(0x3F))
    return np.uint64(size + one)


@compiled()
def _compact_all(data: Bytes, ends: Int64, forms: UInt32, words: Bytes, offsets: Int64) -> None:
    for text in range(len(ends) - 1):
        size, _ = _compact(data[ends[text] : ends[text + 1]], forms, words[offsets[text] :])
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


def word_places(texts: Sequence[str], words: int) -> tuple[Int64, Int64, Int64]:
    """Where each of the `words` words of all texts begins and ends in its text, in characters, int64 [words] each.

    And the number of the first word of each text, and `words`, int64 [texts + 1].
    """
    data, ends_of_texts = _utf8(texts, len(texts))
    begins, ends, first = np.empty(words, np.int64), np.empty(words, np.int64), np.empty(len(texts) + 1, np.int64)
    _find_words(data, ends_of_texts, folds(), begins, ends, first)
    return begins, ends, first


@compiled()
def _find_words(data: Bytes, texts: Int64, fold: UInt32, begins: Int64, ends: Int64, first: Int64) -> None:
    word = 0
    for text in range(len(texts) - 1):
        first[text], before = word, 0  # characters before the place `at`
        at, stop = np.uint64(texts[text]), np.uint64(texts[text + 1])
        while word < len(begins):
            _, begin, end = next_word(data, at, stop, fold)
            if begin == stop:
                break
            begins[word] = before + _characters(data, at, begin)
            ends[word] = before = begins[word] + _characters(data, begin, end)
            at, word = end, word + 1
    first[-1] = word


@compiled()
def _characters(data: Bytes, begin: np.uint64, end: np.uint64) -> int:
    """The characters that begin between two places in UTF-8."""
    count = 0
    for at in range(begin, end):
        count += (data[at] & np.uint8(0xC0)) != np.uint8(0x80)
    return count
