"""`ScannedTexts`: the places of the words, lines and paragraphs of a batch. All rule sets share one scan of the text.

A word is a maximal run of characters that are not white space, as `text.split()` gives them. A line is a piece of
`text.split("\\n")`, stripped, that is not empty. So a line begins where its first word begins and ends where its last
word ends: the table of words gives the lines too. Characters are classified by Python's own tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.documents import DocumentBatch
from pilekit.pipeline.rules.text_repeats import characters, repeated_pieces
from pilekit.workers.kernels import compiled

Bytes = npt.NDArray[np.uint8]
UInt32 = npt.NDArray[np.uint32]
Int64 = npt.NDArray[np.int64]

SPACE, ALPHA, ALNUM = np.uint8(1), np.uint8(2), np.uint8(4)
FIRST_OF_LINE = np.uint8(8)
_ASCII = np.uint32(0x80)


class Spans(NamedTuple):
    """Pieces of texts, in order.

    begin, end   places in the bytes of the batch, int64 [pieces]
    starts       the first piece of each document, then the number of all pieces; int64 [documents + 1]
    """

    begin: Int64
    end: Int64
    starts: Int64


class Words(NamedTuple):
    """The words of a batch.

    begin, end   places in the bytes of the batch, int64 [words]
    chars        characters of each word, uint32 [words]
    kinds        the kinds of its characters, and `FIRST_OF_LINE`, uint8 [words]
    starts       the first word of each document, then the number of all words; int64 [documents + 1]
    """

    begin: Int64
    end: Int64
    chars: UInt32
    kinds: Bytes
    starts: Int64


class ScannedTexts:
    """The texts of a batch with their words, lines and paragraphs, each found on first use."""

    def __init__(self, batch: DocumentBatch):
        self.batch = batch
        self.data, self.offsets = batch.utf8()

    @cached_property
    def chars(self) -> Int64:
        """Characters of each text, int64 [documents]."""
        return np.fromiter(map(len, self.batch.texts), np.int64, len(self.batch))

    def count(self, *parts: str) -> Int64:
        """How often any of `parts` occurs in each text, as `str.count` counts, int64 [documents]."""
        counts = (sum(map(text.count, parts)) for text in self.batch.texts)
        return np.fromiter(counts, np.int64, len(self.batch))

    @cached_property
    def lower(self) -> bytes:
        """All texts with ASCII letters in lower case."""
        return self.data.tobytes().lower()

    @cached_property
    def words(self) -> Words:
        """All words."""
        return Words(*_find_words(self.data, self.offsets, character_kinds()))

    @cached_property
    def first_words(self) -> Int64:
        """The first word of each line, and the number of words, int64 [lines + 1]."""
        return np.append(np.flatnonzero(self.words.kinds & FIRST_OF_LINE), len(self.words.begin))

    @cached_property
    def lines(self) -> Spans:
        """All lines that are not blank."""
        first, words = self.first_words, self.words
        return Spans(words.begin[first[:-1]], words.end[first[1:] - 1], np.searchsorted(first, words.starts))

    def lines_with(self, marks: Iterable[str], at_end: bool) -> npt.NDArray[np.bool_]:
        """Whether each line begins, or ends, with one of `marks`, bool [lines]."""
        begin, end, _ = self.lines
        matches = np.zeros(len(begin), bool)
        for mark in map(str.encode, marks):
            place, has = end - len(mark) if at_end else begin, end - begin >= len(mark)
            for i, byte in enumerate(mark):
                has[has] = self.data[place[has] + i] == byte
            matches |= has
        return matches

    def repeated(self, pieces: Spans) -> tuple[Int64, Int64]:
        """(pieces that repeat an earlier piece of their text, their characters), int64 [documents]."""
        begin, end, starts = pieces
        repeats = repeated_pieces(self.data, begin, end, starts)
        return sums(repeats, starts), sums(characters(self.data, np.where(repeats, begin, end), end), starts)

    @cached_property
    def repeated_lines(self) -> tuple[Int64, Int64]:
        """(lines that repeat an earlier line of the text, their characters), int64 [documents]."""
        return self.repeated(self.lines)

    @cached_property
    def paragraphs(self) -> Spans:
        """The pieces of `re.split(r"\\n{2,}", text.strip())`; none of a text without words."""
        words, has = self.words, np.flatnonzero(np.diff(self.words.starts))
        begin, end = words.begin[words.starts[has]], words.end[words.starts[has + 1] - 1]  # of the stripped texts
        newlines = np.flatnonzero(self.data == 10)
        first = newlines[np.diff(newlines, prepend=-2) > 1]
        last = newlines[np.diff(newlines, append=len(self.data) + 1) > 1]
        text = np.searchsorted(begin, first, "right") - 1
        cuts = (last > first) & (text >= 0) & (first < np.append(end, 0)[text])
        # A stable sort merges sorted parts.
        begin = np.sort(np.append(begin, last[cuts] + 1), kind="stable")
        end = np.sort(np.append(end, first[cuts]), kind="stable")
        return Spans(begin, end, np.searchsorted(begin, self.offsets))


def sums(values: npt.NDArray[Any], starts: Int64) -> Int64:
    """The sums of values in groups, int64; `starts`: the first value of each group, then the number of all values."""
    return np.diff(np.append(0, np.cumsum(values, dtype=np.int64))[starts])


def share(part: Int64, whole: Int64) -> npt.NDArray[np.float64]:
    """`part / whole`; NaN, which fails no rule, where the whole is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole == 0, np.nan, part / whole)


@cache
def character_kinds() -> Bytes:
    """The kinds of every character, by its number, uint8 [0x110000]. NumPy uses Python's tables."""
    every = np.arange(0x110000, dtype=np.uint32).view("U1")
    kinds = np.strings.isspace(every) * SPACE
    kinds |= np.strings.isalpha(every) * ALPHA
    kinds |= np.strings.isalnum(every) * ALNUM
    return kinds


@compiled()
def _find_words(data: Bytes, offsets: Int64, kind_of: Bytes) -> tuple[Int64, Int64, UInt32, Bytes, Int64]:
    """The columns of `Words`."""
    most = (len(data) + len(offsets)) // 2 + 1
    begin, end = np.empty(most, np.int64), np.empty(most, np.int64)
    chars, kinds = np.empty(most, np.uint32), np.empty(most, np.uint8)
    starts = np.zeros(len(offsets), np.int64)
    word, ascii_size = np.uint64(0), np.uint64(1)
    for document in range(len(offsets) - 1):
        at, stop = np.uint64(offsets[document]), np.uint64(offsets[document + 1])
        kinds_in_word, count, start = FIRST_OF_LINE, np.uint32(0), at
        while at <= stop:
            code, size = np.uint32(10), ascii_size  # The end of a text ends its last word, as a newline does.
            if at < stop:
                code = np.uint32(data[at])
                if code >= _ASCII:
                    code, size = decoded(data, at)
            kind = kind_of[np.uint64(code)]
            if not kind & SPACE:
                if not count:
                    start = at
                count += np.uint32(1)
                kinds_in_word |= kind
            else:
                if count:
                    begin[word], end[word], chars[word], kinds[word] = start, at, count, kinds_in_word
                    word += np.uint64(1)
                    count, kinds_in_word = np.uint32(0), np.uint8(0)
                if code == 10:
                    kinds_in_word = FIRST_OF_LINE
            at += size
        starts[document + 1] = word
    return begin[:word], end[:word], chars[:word], kinds[:word], starts


@compiled()
def decoded(data: Bytes, at: np.uint64) -> tuple[np.uint32, np.uint64]:
    """(number of the character, its bytes) at a byte that is not ASCII."""
    first, size = data[at], np.uint64(2)
    code = np.uint32(first) & np.uint32(0x1F)
    if first >= 0xE0:
        size, code = np.uint64(3), code & np.uint32(0x0F)
    if first >= 0xF0:
        size, code = np.uint64(4), code & np.uint32(0x07)
    for i in range(1, size):
        code = (code << np.uint32(6)) | (np.uint32(data[at + np.uint64(i)]) & np.uint32(0x3F))
    return code, size
