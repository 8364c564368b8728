"""`PhraseTable`: phrases, prepared so that one pass over a text finds all of them.

A phrase belongs to the *length class* of the largest of 1, 2, 4, 8 and 16 bytes that it holds. That many of its first
bytes, its head, are hashed; of the longest class up to 24, if all its phrases have them. A text is searched once for
each class: at each position the head there is hashed, and a bit table, which fits in the processor's cache, rejects
most positions. A directory by the hash's first bits leads to the phrases of the hash.

Phrases of one hash are sorted by their bytes, and each has a `parent`, the longest other phrase that it begins with.
Let Q be the last of them that is not behind the rest of the text in this order. Then every phrase that begins at the
position is Q or an ancestor of Q, because whatever lies between a string and one of its prefixes has that prefix. So
one binary search compares bytes and finds all phrases at a position, however many share their beginning or contain
each other. Equal hashes of other heads cost time and nothing else.

A table of words does the same with words in place of bytes: heads have 1 to 4 words, and only the words of a text
are positions. Each word is hashed once for all classes.

All processes map the arrays from files, so memory holds them once. A phrase takes its own bytes and about 22 more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.trace.phrase_kernel import (
    Bytes,
    Int32,
    Int64,
    UInt32,
    UInt64,
    fill_filter,
    find_phrases,
    find_words,
    hash_heads,
    parent_of,
)
from pilekit.workers.kernels import compiled

HEADS, HEADS_OF_WORDS = (1, 2, 4, 8, 16), (1, 2, 3, 4)
LONGEST_HEAD = 24
LEAST_FILTER_BITS = 18
NONE = np.uint32(0xFFFFFFFF)
_SPACE = np.uint8(32)


class LengthClass(NamedTuple):
    """The phrases of one length class.

    head        the bytes, or words, that are hashed
    directory   the first phrase of each value of a hash's first bits, and the end, int32
    filter      bits, by the hash of a head, uint64
    """

    head: int
    directory: Int32
    filter: UInt64


class PhraseTable(NamedTuple):
    """Different phrases in the order of length classes, hashes and bytes.

    store    their bytes, UTF-8
    rows     32 bits of its hash, behind those of the directory; where it begins in `store`, in the last row the end;
             the longest other phrase of its class that it begins with, or -1 as int32: uint32 [phrases + 1, 3]
    number   the number that it was given under, int32
    depth    the most phrases of one class that begin at one place
    at_words whether the phrases are words, each followed by a space, and only words are searched
    """

    store: Bytes
    rows: UInt32
    number: Int32
    depth: int
    at_words: bool
    classes: tuple[LengthClass, ...]

    @classmethod
    def build(cls, data: Bytes, ends: Int64, *, at_words: bool = False) -> Self:
        """The table of the phrases that end at `ends` in `data`, none of them empty. Of equal phrases the first stays.

        `data` has less than 2 GiB. `at_words`: each phrase has words, each followed by a space.
        """
        stops: Int32 = ends.astype(np.int32)
        begins: Int32 = np.append(np.int32(0), stops[:-1])
        size, first, classes, numbers, keys = stops - begins, 0, list[LengthClass](), list[Int32](), list[UInt32]()
        heads, units = (HEADS_OF_WORDS, _count_words(data, begins, size)) if at_words else (HEADS, size)
        for head, longer in zip(heads, (*heads[1:], 1 << 31), strict=True):
            chosen = np.flatnonzero((units >= head) & (units < longer)).astype(np.int32)
            if len(chosen):
                if head == HEADS[-1]:
                    head = min(LONGEST_HEAD, int(size[chosen].min()))
                length_class, order, of_order = _length_class(data, begins, stops, chosen, head, at_words, first)
                classes.append(length_class)
                numbers.append(order)
                keys.append(of_order)
                first += len(order)
        number, rows = np.concatenate(numbers), np.zeros((first + 1, 3), np.uint32)
        np.concatenate(keys, out=rows[:-1, 0])
        np.cumsum(size[number], out=rows[1:, 1])
        store, rows[:, 2] = np.empty(int(rows[-1, 1]), np.uint8), NONE
        _gather(data, begins[number], rows, store)
        depth = max(_link_parents(store, rows, each.directory) for each in classes)
        return cls(store, rows, number, depth, at_words, tuple(classes))

    def find(self, data: Bytes, offsets: Int64, *, positions: int = 1 << 17) -> Iterator[Int32]:
        """The longest phrase of each class at each place of documents, its parent or -1, and the document's index.

        int32 [found, 3]. The others that begin there are its ancestors. `data[offsets[i]:offsets[i + 1]]` is document
        i. A table of words finds phrases behind a space alone.

        positions   how many are searched at a time, which is the most that an array has
        """
        ahead = HEADS_OF_WORDS[-1] - 1
        starts, candidates = np.empty((2, positions + 1), np.int32)
        of_word, hashes = np.empty((2, positions + 1 + ahead), np.uint64)
        scratch, found = (candidates, hashes), np.empty((positions, 3), np.int32)
        table, ends, last, document = (self.store, self.rows), offsets[1:], int(offsets[-1]), 0
        for begin in range(int(offsets[0]), last, positions):
            end = min(begin + positions, last)
            words = None
            if self.at_words:
                words = starts[: find_words(data, begin, end, ahead, starts, of_word)], of_word
            place = (data, begin, end, ends, document, words)
            for length_class in self.classes:
                count, document = find_phrases(*place, table, length_class, scratch, found)
                if count:
                    yield found[:count]

    def save(self, folder: Path) -> None:
        """Write the arrays into the folder."""
        arrays: dict[str, Any] = {
            "store": self.store,
            "rows": self.rows,
            "number": self.number,
        }
        arrays["heads"] = np.array([self.depth, self.at_words, *(each.head for each in self.classes)])
        for each in self.classes:
            arrays |= {f"{name}{each.head}": getattr(each, name) for name in LengthClass._fields[1:]}
        for name, values in arrays.items():
            with write_atomically(folder / f"{name}.npy", flushed=False) as file:
                np.save(file, values)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The arrays in a folder, mapped into memory."""

        def array(name: str) -> Any:
            return np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray)

        depth, at_words, *heads = array("heads").tolist()
        classes = tuple(
            LengthClass(head, *(array(f"{name}{head}") for name in LengthClass._fields[1:])) for head in heads
        )
        store, rows, number = map(array, cls._fields[:3])
        return cls(store, rows, number, depth, bool(at_words), classes)


def _length_class(
    data: Bytes, begins: Int32, ends: Int32, chosen: Int32, head: int, at_words: bool, first: int
) -> tuple[LengthClass, Int32, UInt32]:
    """The class of the chosen phrases, the first of which is row `first`; in its order their numbers and their keys."""
    hashes = np.empty(len(chosen), np.uint64)
    hash_heads(data, begins[chosen], head, at_words, hashes)
    order = np.argsort(hashes, kind="stable").astype(np.int32)
    chosen, hashes = chosen[order], hashes[order]
    del order
    bits = min(28, max(1, (len(chosen) - 1).bit_length()))
    keyed = hashes >> np.uint64(32 - bits)
    edges = np.flatnonzero(np.concatenate([[True], keyed[1:] != keyed[:-1], [True]]))
    several = np.flatnonzero(np.diff(edges) > 1)
    kept, view = np.ones(len(chosen), bool), data.data
    for begin, end in zip(edges[several].tolist(), edges[several + 1].tolist(), strict=True):
        members = chosen[begin:end].tolist()
        texts = {number: bytes(view[begins[number] : ends[number]]) for number in members}
        members.sort(key=texts.__getitem__)  # A stable sort: of equal texts the first given comes first.
        chosen[begin:end] = members
        kept[begin:end] = [True, *(texts[after] != texts[before] for before, after in pairwise(members))]
    filter = np.zeros(1 << max(LEAST_FILTER_BITS, (32 * len(chosen)).bit_length() - 1) - 6, np.uint64)
    fill_filter(data, begins[chosen], head, at_words, filter)
    hashes, keyed = hashes[kept] >> np.uint64(64 - bits), keyed[kept].astype(np.uint32)
    directory = np.searchsorted(hashes, np.arange((1 << bits) + 1, dtype=np.uint64)).astype(np.int32) + np.int32(first)
    return LengthClass(head, directory, filter), chosen[kept], keyed


@compiled()
def _count_words(data: Bytes, begins: Int32, sizes: Int32) -> Int32:
    """The words of each phrase of these bytes, each word with its space."""
    words = np.zeros(len(begins), np.int32)
    for i in range(len(begins)):
        for at in range(begins[i], begins[i] + sizes[i]):
            words[i] += data[at] == _SPACE
    return words


@compiled()
def _gather(data: Bytes, begins: Int32, rows: UInt32, store: Bytes) -> None:
    """Write pieces of `data` into `store`, one behind the other, as far as the next row says."""
    to = 0
    for i in range(len(begins)):
        at = begins[i]
        while to < rows[i + 1, 1]:
            store[to] = data[at]
            to += 1
            at += 1


@compiled()
def _link_parents(store: Bytes, rows: UInt32, directory: Int32) -> int:
    """Write the parents of the phrases of a class; returns the most phrases of a line of descent."""
    deepest = 1
    for place in range(len(directory) - 1):
        for phrase in range(directory[place] + 1, directory[place + 1]):
            if rows[phrase, 0] != rows[phrase - 1, 0]:
                continue
            before, depth = phrase - 1, 1
            while before >= 0 and not _begins_with(store, rows, phrase, before):
                before = parent_of(rows, before)
            rows[phrase, 2] = np.uint32(before) if before >= 0 else NONE
            while before >= 0:
                before, depth = parent_of(rows, before), depth + 1
            deepest = max(deepest, depth)
    return deepest


@compiled()
def _begins_with(store: Bytes, rows: UInt32, phrase: int, other: int) -> bool:
    first, second = np.int64(rows[phrase, 1]), np.int64(rows[other, 1])
    size = np.int64(rows[other + 1, 1]) - second
    if size > np.int64(rows[phrase + 1, 1]) - first:
        return False
    same = 0
    while same < size and store[first + same] == store[second + same]:
        same += 1
    return bool(same == size)
