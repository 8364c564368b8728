"""Shingles: what a document is compared by, as 64-bit hashes, straight from its UTF-8 bytes.

A word is a maximal run of bytes that are ASCII letters, digits, `_`, or >= 0x80; ASCII letters count as lower-case. A
document's shingles are the set of its word n-grams. With fewer words than n it has one shingle, of all its words; with
no words at all, one made of its raw bytes. So every document has a shingle, and none is dropped for being short.

A word's hash is taken byte by byte, an n-gram's is a polynomial in the hashes of its words, which rolls from one n-gram
to the next in two multiplications; both are mixed at the end (the finalizer of SplitMix64, after Stafford). Two
different shingles share a hash with a probability of about 2^-64. 400 MB/s on one core.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pilekit.kernels import compiled

Bytes = npt.NDArray[np.uint8]
UInt64 = npt.NDArray[np.uint64]

NGRAM = 5


def _word_bytes() -> UInt64:
    """For each byte: itself, lower-cased, if it can be part of a word, else 0."""
    table = np.zeros(256, dtype=np.uint64)
    table[0x80:] = np.arange(0x80, 0x100)
    for byte in b"abcdefghijklmnopqrstuvwxyz0123456789_":
        table[byte] = byte
    for byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ":
        table[byte] = byte + 32
    return table


_WORD_BYTES = _word_bytes()
_BASIS = np.uint64(0xCBF29CE484222325)
_PER_BYTE = np.uint64(0x9E3779B97F4A7C15)
_PER_WORD = np.uint64(0xD6E8FEB86659FD93)
_RAW = np.uint64(0xA24BAED4963EE407)
_ONE = np.uint64(1)
_NO_BYTE = np.uint64(0)


@compiled()
def mixed(value: np.uint64) -> np.uint64:
    """A bijection of 64 bits in which every bit of the input changes every bit of the output half of the time."""
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return value


@compiled()
def begin_document(state: UInt64, begin: int, ngram: int) -> None:
    """Set `state` (uint64 [5 + ngram]) to a document whose first byte is `begin`; `next_shingles` goes on from there.

    It holds: the place, words seen, the slot of the newest word, the rolling hash, the weight of the word that leaves;
    then the hashes of the last n words.
    """
    state[0] = np.uint64(begin)
    state[1] = state[3] = np.uint64(0)
    state[2] = np.uint64(ngram - 1)
    weight = np.uint64(1)
    for _ in range(ngram - 1):
        weight *= _PER_WORD
    state[4] = weight


@compiled()
def next_shingles(data: Bytes, begin: int, end: int, ngram: int, state: UInt64, out: UInt64) -> int:
    """Write the document's next shingle hashes into `out` and return how many; fewer than `len(out)`: it has ended.

    The document is `data[begin:end]`; a shingle that occurs twice comes twice.
    """
    at, words, slot, rolling, weight = state[0], state[1], np.int64(state[2]), state[3], state[4]
    stop, full = np.uint64(end), np.uint64(ngram)
    count = 0
    while at < stop:
        byte = _WORD_BYTES[data[at]]
        at += _ONE
        if byte == _NO_BYTE:
            continue
        word = _BASIS
        while byte != _NO_BYTE:
            word = (word ^ byte) * _PER_BYTE
            if at == stop:
                break
            byte = _WORD_BYTES[data[at]]
            at += _ONE
        word = mixed(word)
        slot += np.int64(1)
        if slot == ngram:
            slot = np.int64(0)
        if words >= full:
            rolling -= state[5 + slot] * weight
        rolling = rolling * _PER_WORD + word
        state[5 + slot] = word
        words += _ONE
        if words >= full:
            out[count] = mixed(rolling)
            count += 1
            if count == len(out):
                state[0], state[1], state[2], state[3] = at, words, np.uint64(slot), rolling
                return count
    if words < full:
        if words == np.uint64(0):
            rolling = _RAW
            for i in range(begin, end):
                rolling = (rolling ^ np.uint64(data[i])) * _PER_BYTE
        out[count] = mixed(rolling ^ words)
        count += 1
        words = full
    state[0], state[1] = at, words
    return count


@compiled()
def _shingles(data: Bytes, ngram: int) -> UInt64:
    state = np.empty(5 + ngram, dtype=np.uint64)
    # Every word but the last has a byte behind it that is none.
    found = np.empty(len(data) // 2 + 2, dtype=np.uint64)
    begin_document(state, 0, ngram)
    count = next_shingles(data, 0, len(data), ngram, state, found)
    return found[:count]


def shingle_set(text: Bytes, ngram: int = NGRAM) -> UInt64:
    """The hashes of a document's shingles, ascending, each once; uint64 [distinct shingles], at least one.

    `text` is its UTF-8, uint8 [bytes]. Takes 4 bytes of memory for each byte of text while it works.
    """
    found = np.sort(_shingles(text, ngram))
    first = np.ones(len(found), dtype=np.bool_)
    np.not_equal(found[1:], found[:-1], out=first[1:])
    return found[first]


@compiled()
def common(one: UInt64, other: UInt64) -> int:
    """How many hashes two shingle sets share."""
    i = j = shared = 0
    while i < len(one) and j < len(other):
        if one[i] == other[j]:
            shared += 1
            i += 1
            j += 1
        elif one[i] < other[j]:
            i += 1
        else:
            j += 1
    return shared


def jaccard(one: UInt64, other: UInt64) -> float:
    """The Jaccard similarity of two shingle sets, exact."""
    shared = common(one, other)
    return shared / (len(one) + len(other) - shared)
