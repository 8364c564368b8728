"""`NGrams`: the n-grams of evaluation texts, and where a batch of documents holds them.

A text of fewer words than an n-gram is an n-gram by itself, if it has at least `SHORTEST` words. Different n-grams are
sorted by a 64-bit hash; a table of buckets finds one, after a filter of 16 to 32 bits for each has let it pass. The
hash rolls over the words of a document. A text of fewer words is looked for where the filter holds the hash of its last
`SHORTEST` words. A found hash is a hit only if the words are equal.

The arrays are files that all processes map, so that memory holds them once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from pilekit.cutting.words import Bytes, UInt32, folds, next_word, normalised
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.kernels import compiled

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

SHORTEST = 8
LONGEST = 100
_RING = 127
"""A mask: the last 128 words of a document are kept."""
_BASE, _GATE = np.uint64(0x9E6C63D0676A9A99), np.uint64(0xA0761D6478BD642F)
_ONE, _LOW_6, _SIX = np.uint64(1), np.uint64(63), np.uint64(6)


class Hit(NamedTuple):
    """An n-gram in a document.

    document    index in the batch
    word        the first word's number among the words of the document
    begin, end  bytes of the batch, from the first byte of the first word to behind the last of the last
    ngram       index among the different n-grams
    """

    document: int
    word: int
    begin: int
    end: int
    ngram: int


class NGrams(NamedTuple):
    """The different n-grams, sorted by hash.

    store    the words of all texts, each followed by a blank, UTF-8
    sizes    (words of an n-gram, words of the shortest one)
    shorts   the numbers of words of the shorter ones
    keys     hash, uint64 [n-grams]
    begin    where an n-gram begins in `store`, uint32 [n-grams]
    words    its number of words, uint8 [n-grams]
    of       the n-gram at each place of each text, in order, uint32 [places]
    first    the first place of each text, and the number of places, int64 [texts + 1]
    filter   bits, by the highest bits of a hash, uint64
    buckets  the first n-gram of each range of hashes, and their number, uint32
    """

    store: Bytes
    sizes: Int64
    shorts: Int64
    keys: UInt64
    begin: UInt32
    words: Bytes
    of: UInt32
    first: Int64
    filter: UInt64
    buckets: UInt32

    @classmethod
    def build(cls, texts: Iterable[list[str]], ngram: int) -> Self:
        """The n-grams of `ngram` words of texts, each a list of its words."""
        least = min(SHORTEST, ngram)
        store, ends, places, short = bytearray(), array("q", [0]), array("q", [0]), 0
        for words in texts:
            store += "".join(f"{word} " for word in words).encode()
            ends.append(len(store))
            short += least <= len(words) < ngram
            places.append(places[-1] + (len(words) - ngram + 1 if len(words) >= ngram else len(words) >= least))
        if len(store) >= 1 << 32:
            raise PilekitError("the evaluations hold more than 4 GB of text; take some of them at a time")
        data, sizes = np.frombuffer(store, np.uint8), np.array([ngram, least])
        keys, begin = np.empty(places[-1], np.uint64), np.empty(places[-1], np.uint32)
        length, gates = np.empty(places[-1], np.uint8), np.empty(short, np.uint64)
        _hash_texts(data, np.array(ends), folds(), sizes, keys, begin, length, gates)
        order = np.argsort(keys, kind="stable")
        of, chosen = np.empty(places[-1], np.uint32), np.empty(places[-1], np.int64)
        chosen = chosen[: _merge_equal(data, order, keys, begin, length, of, chosen)]
        keys, begin, length = keys[chosen], begin[chosen], length[chosen]
        filter = np.zeros(2 << ((len(keys) + len(gates)) // 8).bit_length(), np.uint64)
        for passing in (keys, gates):
            _fill(filter, passing, _shift(len(filter)))
        ranges = max(1, (len(keys) // 4).bit_length())
        borders = np.arange(1 << ranges, dtype=np.uint64) << np.uint64(64 - ranges)
        buckets = np.append(np.searchsorted(keys, borders), len(keys)).astype(np.uint32)
        shorts = np.unique(length[length < ngram]).astype(np.int64)
        return cls(data, sizes, shorts, keys, begin, length, of, np.array(places), filter, buckets)

    def save(self, folder: Path) -> None:
        """Write the arrays into the folder."""
        for name, values in self._asdict().items():
            np.save(folder / f"{name}.npy", values)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The arrays in a folder, mapped into memory."""
        return cls(*(np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in cls._fields))

    def tables(self) -> tuple[UInt32, Int64, Int64, UInt64, Bytes, UInt64, UInt32]:
        """What the kernel looks n-grams up in."""
        return (folds(), self.sizes, self.shorts, self.keys, self.words, self.filter, self.buckets)

    def text(self, ngram: int) -> str:
        """The words of an n-gram, joined by blanks."""
        begin, words, size = int(self.begin[ngram]), int(self.words[ngram]), 64
        while (text := self.store[begin : begin + size].tobytes()).count(b" ") < words:
            size *= 2
        return b" ".join(text.split(b" ")[:words]).decode()

    def find(self, batch: DocumentBatch) -> Iterator[Hit]:
        """All n-grams in the documents, in the order of their last words."""
        data, offsets = batch.utf8()
        found = np.empty((1024, 5), np.int64)
        count = _find(data, offsets, *self.tables(), found)
        if count > len(found):
            found = np.empty((count, 5), np.int64)
            _find(data, offsets, *self.tables(), found)
        found = found[:count]
        columns = (self.begin[found[:, 4]].tolist(), self.words[found[:, 4]].tolist())
        text, store = data.data, self.store.data
        run, document, first, end = list[str](), -1, 0, 0  # words of a document from `first` on, up to the byte `end`
        for hit, begin, length in zip(map(Hit._make, found.tolist()), *columns, strict=True):
            if hit.document != document or not first <= hit.word <= first + len(run):
                run, document, first, end = [], hit.document, hit.word, hit.begin
            run += normalised(str(text[end : hit.end], "utf-8"))
            end = max(end, hit.end)
            expected = " ".join([*run[hit.word - first : hit.word - first + length], ""]).encode()
            if store[begin : begin + len(expected)] == expected:
                yield hit


@compiled()
def _power(words: int) -> np.uint64:
    power = _ONE
    for _ in range(words):
        power *= _BASE
    return power


@compiled()
def _hash_texts(
    store: Bytes, ends: Int64, fold: UInt32, sizes: Int64, keys: UInt64, begin: UInt32, length: Bytes, gates: UInt64
) -> None:
    """Fill in every place of every text, and the hash that lets pass each text of fewer words."""
    ngram, least = sizes[0], sizes[1]
    power, least_power = _power(ngram), _power(least)
    hashes, begins = np.empty(_RING + 1, np.uint64), np.empty(_RING + 1, np.uint64)
    place = gate = 0
    for text in range(len(ends) - 1):
        at, stop = np.uint64(ends[text]), np.uint64(ends[text + 1])
        key, tail, word = np.uint64(0), np.uint64(0), 0
        while True:
            hash, start, at = next_word(store, at, stop, fold)
            if start == stop:
                break
            key, tail = key * _BASE + hash, tail * _BASE + hash
            if word >= ngram:
                key -= hashes[(word - ngram) & _RING] * power
            if word >= least:
                tail -= hashes[(word - least) & _RING] * least_power
            hashes[word & _RING], begins[word & _RING] = hash, start
            word += 1
            if word >= ngram:
                keys[place], begin[place], length[place] = key, begins[(word - ngram) & _RING], ngram
                place += 1
        if least <= word < ngram:
            keys[place], begin[place], length[place] = key, begins[0], word
            gates[gate] = tail * _GATE
            place, gate = place + 1, gate + 1


@compiled()
def _merge_equal(
    store: Bytes, order: Int64, keys: UInt64, begin: UInt32, length: Bytes, of: UInt32, chosen: Int64
) -> int:
    """Number the different n-grams by hash: `of` is the number at each place, `chosen` a place of each number."""
    count = group = 0
    for place in order:
        if count and keys[chosen[count - 1]] != keys[place]:
            group = count
        number = group
        while number < count and not (
            length[chosen[number]] == length[place] and _same(store, begin[chosen[number]], begin[place], length[place])
        ):
            number += 1
        if number == count:
            chosen[count] = place
            count += 1
        of[place] = number
    return count


@compiled()
def _same(store: Bytes, one: int, other: int, words: int) -> bool:
    """Whether the same `words` words stand at two places of the store."""
    at = 0
    while words:
        byte = store[one + at]
        if byte != store[other + at]:
            return False
        words -= byte == 32
        at += 1
    return True


@compiled()
def _bits(key: np.uint64) -> np.uint64:
    """The three bits of a hash in its word of the filter."""
    one, two, three = key & _LOW_6, (key >> _SIX) & _LOW_6, (key >> np.uint64(12)) & _LOW_6
    return (_ONE << one) | (_ONE << two) | (_ONE << three)


@compiled()
def _fill(filter: UInt64, keys: UInt64, shift: np.uint64) -> None:
    for key in keys:
        filter[key >> shift] |= _bits(key)


@compiled()
def _passes(filter: UInt64, key: np.uint64, shift: np.uint64) -> bool:
    bits = _bits(key)
    return bool(filter[key >> shift] & bits == bits)


@compiled()
def _shift(values: int) -> np.uint64:
    """What leaves of a hash as many bits as number this power of two of values."""
    shift = 64
    while 1 << (64 - shift) < values:
        shift -= 1
    return np.uint64(shift)


@compiled()
def _find(
    data: Bytes,
    offsets: Int64,
    fold: UInt32,
    sizes: Int64,
    shorts: Int64,
    keys: UInt64,
    words: Bytes,
    filter: UInt64,
    buckets: UInt32,
    found: Int64,
) -> int:
    """Write candidates as rows of `Hit`, as many as there is room for; returns their number."""
    ngram, least = sizes[0], sizes[1]
    power, least_power = _power(ngram), _power(least)
    shift, bucket_shift = _shift(len(filter)), _shift(len(buckets) - 1)
    hashes, begins = np.empty(_RING + 1, np.uint64), np.empty(_RING + 1, np.uint64)
    lengths = np.append(np.array([ngram]), shorts)
    count = 0
    for document in range(len(offsets) - 1):
        at, stop = np.uint64(offsets[document]), np.uint64(offsets[document + 1])
        key, tail, word = np.uint64(0), np.uint64(0), 0
        while True:
            hash, start, at = next_word(data, at, stop, fold)
            if start == stop:
                break
            key = key * _BASE + hash
            if word >= ngram:
                key -= hashes[(word - ngram) & _RING] * power
            hashes[word & _RING], begins[word & _RING] = hash, start
            word += 1
            first = 0 if word >= ngram and _passes(filter, key, shift) else 1
            last = 1
            if len(shorts):
                tail = tail * _BASE + hash
                if word > least:
                    tail -= hashes[(word - 1 - least) & _RING] * least_power
                if word >= least and _passes(filter, tail * _GATE, shift):
                    last = len(lengths)
            for choice in range(first, last):
                length = lengths[choice]
                if word < length:
                    continue
                wanted = key
                if choice:
                    wanted = np.uint64(0)
                    for back in range(word - length, word):
                        wanted = wanted * _BASE + hashes[back & _RING]
                bucket = np.int64(wanted >> bucket_shift)
                for number in range(buckets[bucket], buckets[bucket + 1]):
                    if keys[number] == wanted and words[number] == length:
                        if count < len(found):
                            found[count, 0], found[count, 1] = document, word - length
                            found[count, 2], found[count, 3] = begins[(word - length) & _RING], at
                            found[count, 4] = number
                        count += 1
    return count
