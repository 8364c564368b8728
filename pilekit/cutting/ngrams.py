"""`NGrams`: the n-grams of evaluation texts, and their places in a batch of documents.

The n-grams are sorted by a 64-bit hash. A filter with 16 to 32 bits for each rejects most words of a document, and a
binary search finds the rest. The hash of consecutive words is a difference of two sums over the words of the document.
A found hash is a hit only if the words are equal. A text shorter than an n-gram is an n-gram by itself, if it has at
least `SHORTEST` words, or as many as are asked for. It is searched where the filter holds the hash of its last words,
as many as the shortest of these texts has.

All processes map the arrays from files, so memory holds them once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from pilekit.artifacts.saved_arrays import load_arrays, save_arrays
from pilekit.cutting.words import Bytes, Flags, Int64, UInt32, UInt64, compacted_all, folds, next_word
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.workers.kernels import compiled

SHORTEST, SHORTEST_ITEM, LONGEST = 8, 5, 100
"""The fewest words of a text that is searched for, and of a question with an answer; the most of an n-gram."""
_SPACE = np.uint8(32)
_RING = 127
"""A mask: the last 128 words of a document are kept."""
_LEAST_FILTER = 1 << 14
"""The fewest words of a filter: 128 KiB, which the cache holds, reject words the better."""
_BASE = np.uint64(0x9E6C63D0676A9A99)
_POWERS: UInt64 = np.append(np.uint64(1), np.cumprod(np.full(LONGEST, _BASE)))


class NGrams(NamedTuple):
    """The different n-grams, sorted by hash.

    store    the words of all texts, each followed by a space, UTF-8
    sizes    the numbers of words of an n-gram: the usual one first, then those of shorter texts, int64
    keys     hash, uint64 [n-grams]
    begin    where an n-gram begins in `store`, uint32 [n-grams]
    words    its number of words, uint8 [n-grams]
    numbers  the number of the n-gram at each place of each text, in order, uint32 [places]
    first    the first place of each text, and the number of places, int64 [texts + 1]
    filter   bits, by the lowest bits of a hash, uint64
    """

    store: Bytes
    sizes: Int64
    keys: UInt64
    begin: UInt32
    words: Bytes
    numbers: UInt32
    first: Int64
    filter: UInt64

    @classmethod
    def build(cls, texts: Iterable[tuple[bytes, int]], ngram: int, shortest: int = SHORTEST) -> Self:
        """The n-grams of `ngram` words of texts, each given as its `compacted` words and their number.

        shortest   a text of fewer words than this and than an n-gram has none
        """
        least, store, ends, first = ngram, bytearray(), array("q", [0]), array("q", [0])
        for words, count in texts:
            store += words
            ends.append(len(store))
            has_any = count >= min(shortest, ngram)
            least = min(least, count) if has_any else least
            first.append(first[-1] + (max(1, count - ngram + 1) if has_any else 0))
        if len(store) >= 1 << 32:
            raise PilekitError("the evaluations hold more than 4 GB of text; take some of them at a time")
        data, places = np.frombuffer(store, np.uint8), first[-1]
        keys, begin, length = np.empty(places, np.uint64), np.empty(places, np.uint32), np.empty(places, np.uint8)
        filter = np.zeros(max(_LEAST_FILTER, 2 << (places // 8).bit_length()), np.uint64)
        _hash_texts(data, np.array(ends), folds(), ngram, least, keys, begin, length, filter)
        numbers, chosen = np.empty(places, np.uint32), np.empty(places, np.int64)
        order = np.argsort(keys, kind="stable")
        chosen = chosen[: _merge_equal(data, order, keys, begin, length, numbers, chosen)]
        sizes = np.array([ngram, *np.unique(length[length < ngram])], np.int64)
        return cls(data, sizes, keys[chosen], begin[chosen], length[chosen], numbers, np.array(first), filter)

    def save(self, folder: Path) -> list[Path]:
        """Write the arrays into the folder; returns their files."""
        return save_arrays(folder, self)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The arrays in a folder, mapped into memory."""
        return load_arrays(folder, cls)

    def text(self, ngram: int) -> str:
        """The words of an n-gram, joined by spaces."""
        begin, words, size = int(self.begin[ngram]), int(self.words[ngram]), 64
        while (text := self.store[begin : begin + size].tobytes()).count(b" ") < words:
            size *= 2
        return b" ".join(text.split(b" ")[:words]).decode()

    def find(self, batch: DocumentBatch) -> Int64:
        """All n-grams in the documents, by document and first word, int64 [n-grams, 5].

        Columns: the document's index in the batch, the number of the first word in it, the first word's first byte in
        the batch, the byte behind the last word, the number of the n-gram.
        """
        data, offsets = batch.utf8()
        rows = self.candidates(data, offsets, np.empty((1 << 16, 5), np.int64))
        if not len(rows):
            return rows
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        # Candidates that overlap share the work of finding their words.
        apart = (rows[1:, 0] != rows[:-1, 0]) | (rows[1:, 2] >= rows[:-1, 3])
        first = np.flatnonzero(np.append(True, apart))
        places = zip(rows[first, 2].tolist(), np.maximum.reduceat(rows[:, 3], first).tolist(), strict=True)
        words, offsets = compacted_all([str(data.data[begin:end], "utf-8") for begin, end in places])
        return rows[_are_equal(words, offsets, rows, np.append(first, len(rows)), self.store, self.begin, self.words)]

    def candidates(self, data: Bytes, offsets: Int64, rows: Int64) -> Int64:
        """Rows of `find` whose words are not compared yet; in `rows` if it has room for them."""
        count = _find(data, offsets, folds(), self.sizes, self.keys, self.words, self.filter, rows)
        return rows[:count] if count <= len(rows) else self.candidates(data, offsets, np.empty((count, 5), np.int64))


@compiled()
def _hash_texts(
    store: Bytes,
    ends: Int64,
    fold: UInt32,
    ngram: int,
    least: int,
    keys: UInt64,
    begin: UInt32,
    length: Bytes,
    filter: UInt64,
) -> None:
    """Fill in every place of every text, and the filter."""
    sums, begins = np.zeros(_RING + 1, np.uint64), np.empty(_RING + 1, np.uint64)
    place, mask = 0, np.uint64(len(filter) - 1)
    for text in range(len(ends) - 1):
        at, stop = np.uint64(ends[text]), np.uint64(ends[text + 1])
        word, sums[0] = 0, 0
        while True:
            hash, start, at = next_word(store, at, stop, fold)
            ended = start == stop
            if not ended:
                begins[word & _RING] = start
                sums[(word + 1) & _RING] = sums[word & _RING] * _BASE + hash
                word += 1
            if (not ended and word >= ngram) or (ended and least <= word < ngram):
                size = min(word, ngram)
                keys[place] = sums[word & _RING] - sums[(word - size) & _RING] * _POWERS[size]
                begin[place], length[place] = begins[(word - size) & _RING], size
                filter[keys[place] & mask] |= _bits(keys[place])
                if size < ngram:
                    gate = sums[word & _RING] - sums[(word - least) & _RING] * _POWERS[least]
                    filter[gate & mask] |= _bits(gate)
                place += 1
            if ended:
                break


@compiled()
def _merge_equal(
    store: Bytes, order: Int64, keys: UInt64, begin: UInt32, length: Bytes, numbers: UInt32, chosen: Int64
) -> int:
    """Number the different n-grams by hash: `numbers` has the number at each place, `chosen` a place of each number."""
    count = 0
    for place in order:
        number = count - 1
        while number >= 0 and keys[chosen[number]] == keys[place]:
            earlier = chosen[number]
            if length[earlier] == length[place] and _same(store, begin[earlier], begin[place], length[place]):
                break
            number -= 1
        else:
            number, chosen[count] = count, place
            count += 1
        numbers[place] = number
    return count


@compiled()
def _are_equal(
    words: Bytes, offsets: Int64, rows: Int64, first: Int64, store: Bytes, begin: UInt32, counts: Bytes
) -> Flags:
    """Whether each candidate has the words of its n-gram, bool [rows].

    words, offsets   the `compacted` words of each group of candidates
    rows, first      the candidates, and the first of each group, and their number
    """
    equal = np.zeros(len(rows), np.bool_)
    for group in range(len(first) - 1):
        word, at = rows[first[group], 1], offsets[group]
        for row in range(first[group], first[group + 1]):
            while word < rows[row, 1]:
                while words[at] != _SPACE:
                    at += 1
                at, word = at + 1, word + 1
            number = rows[row, 4]
            here, there, left = at, np.int64(begin[number]), np.int64(counts[number])
            while left and here < offsets[group + 1] and words[here] == store[there]:
                left -= words[here] == _SPACE
                here, there = here + 1, there + 1
            equal[row] = left == 0
    return equal


@compiled()
def _same(store: Bytes, first: int, second: int, words: int) -> bool:
    """Whether the same `words` words are at two places of the store."""
    at = 0
    while words:
        byte = store[first + at]
        if byte != store[second + at]:
            return False
        words -= byte == 32
        at += 1
    return True


@compiled()
def _bits(key: np.uint64) -> np.uint64:
    """The three bits of a hash in its word of the filter."""
    first, second, third = np.uint64(58), np.uint64(52), np.uint64(46)
    bit, low = np.uint64(1), np.uint64(63)
    return (bit << (key >> first)) | (bit << ((key >> second) & low)) | (bit << ((key >> third) & low))


@compiled()
def _find(
    data: Bytes, offsets: Int64, fold: UInt32, sizes: Int64, keys: UInt64, words: Bytes, filter: UInt64, rows: Int64
) -> int:
    """Write candidates as rows of `find`, as many as fit; returns the number of all."""
    ngram, least = sizes[0], sizes[min(1, len(sizes) - 1)]
    sums, begins = np.zeros(_RING + 1, np.uint64), np.empty(_RING + 1, np.uint64)
    count, mask = 0, np.uint64(len(filter) - 1)
    for document in range(len(offsets) - 1):
        at, stop = np.uint64(offsets[document]), np.uint64(offsets[document + 1])
        word, sum, sums[0] = 0, np.uint64(0), 0
        while True:
            hash, start, at = next_word(data, at, stop, fold)
            if start == stop:
                break
            begins[word & _RING] = start
            word += 1
            sum = sum * _BASE + hash
            sums[word & _RING] = sum
            first, last = 1, 1
            if word >= ngram:
                key = sum - sums[(word - ngram) & _RING] * _POWERS[ngram]
                first -= filter[key & mask] & _bits(key) == _bits(key)
            if len(sizes) > 1 and word >= least:
                gate = sum - sums[(word - least) & _RING] * _POWERS[least]
                if filter[gate & mask] & _bits(gate) == _bits(gate):
                    last = len(sizes)
            for size in sizes[first:last]:
                if word < size:
                    continue
                key = sum - sums[(word - size) & _RING] * _POWERS[size]
                if filter[key & mask] & _bits(key) != _bits(key):
                    continue
                number = np.searchsorted(keys, key)
                while number < len(keys) and keys[number] == key:
                    if words[number] == size:
                        if count < len(rows):
                            rows[count, 0], rows[count, 1], rows[count, 4] = document, word - size, number
                            rows[count, 2], rows[count, 3] = begins[(word - size) & _RING], at
                        count += 1
                    number += 1
    return count
