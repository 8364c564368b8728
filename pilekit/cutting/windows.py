"""Windows of `length` bytes: find those that may occur twice in a corpus, and hash each with 128 bits.

A window's *anchor* is the least hash of `anchor_bytes(length)` bytes at any place in it. Equal windows have equal
anchors, and a window mostly has the anchor of the one before. So only the places where the anchor changes are looked
up, one in about 20 bytes.

The 128 bits are a polynomial of the bytes modulo 2^64, one modulo the prime 2^61 - 1, and 3 bits of the anchor.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
import xxhash

from pilekit.cutting.words import Bytes, Int64, UInt64
from pilekit.workers.kernels import compiled

Pieces = tuple[Int64, Int64, Int64]
"""(begin, end, document) of parts of a batch's bytes."""
Anchors = tuple[UInt64, Int64, Int64]
"""(value, the first window that has it, the piece) of anchors."""


_BASE, _PRIME_BASE = np.uint64(0x9E6C63D0676A9A99), np.uint64(0x1B873593CC9E2D51)
_PRIME, _LARGEST = np.uint64((1 << 61) - 1), np.uint64((1 << 64) - 1)
_HALF, _LOW_31, _LOW_30 = np.uint64(31), np.uint64((1 << 31) - 1), np.uint64((1 << 30) - 1)
_BITS_61, _NAME = np.uint64(61), np.uint64(32)


def anchor_bytes(length: int) -> int:
    """The number of bytes that an anchor hashes."""
    return length * 5 // 8


@cache
def tables(length: int) -> UInt64:
    """A byte's value in a hash, and its value when it leaves: an anchor, both polynomials; uint64 [4, 256]."""
    value = [xxhash.xxh3_64_intdigest(bytes([byte])) for byte in range(256)]
    base, prime = int(_BASE), int(_PRIME)
    leaving = [
        [entering * pow(base, size - 1, 1 << 64) % (1 << 64) for entering in value]
        for size in (anchor_bytes(length), length)
    ]
    leaving_modulo = [byte * pow(int(_PRIME_BASE), length - 1, prime) % prime for byte in range(256)]
    return np.array([value, *leaving, leaving_modulo], dtype=np.uint64)


def pieces(offsets: Int64, length: int, at_a_time: int) -> Iterator[Pieces]:
    """The documents between these offsets in groups; a long one in pieces that share `length - 1` bytes.

    A piece has up to `at_a_time` windows, and a group up to twice as many.
    """
    windows = np.diff(offsets) - (length - 1)
    documents = np.flatnonzero(windows > 0)
    counts = -(-windows[documents] // at_a_time)
    document = np.repeat(documents, counts)
    place = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)  # of a piece in its document
    begin = offsets[document] + at_a_time * place
    end = np.minimum(begin + at_a_time + length - 1, offsets[document + 1])
    groups = (np.cumsum(end - begin - length + 1) - 1) // at_a_time
    for first, last in pairwise(np.flatnonzero(np.diff(groups, prepend=-1, append=-1)).tolist()):
        yield begin[first:last], end[first:last], document[first:last]


@compiled()
def find_anchors(data: Bytes, pieces: Pieces, length: int, part: int, table: UInt64, anchors: Anchors) -> int:
    """Write each anchor; returns their number."""
    (values, begins, piece_of), (entering, leaving), width, count = anchors, table[:2], length - part + 1, 0
    block, suffix = np.empty(width, np.uint64), np.empty(width + 1, np.uint64)
    for piece in range(len(pieces[0])):
        first, hashes = pieces[0][piece], pieces[1][piece] - pieces[0][piece] - part + 1
        key, last = np.uint64(0), np.uint64(0)
        suffix[:] = _LARGEST
        for i in range(first, first + part - 1):
            key = key * _BASE + entering[data[i]]
        # The least of `width` hashes is that of a block's end or of the next block's beginning.
        for start in range(0, hashes, width):
            filled, prefix = min(width, hashes - start), _LARGEST
            for i in range(filled):
                place = first + start + i
                key = key * _BASE + entering[data[place + part - 1]]
                block[i] = key
                key -= leaving[data[place]]
            for i in range(filled):
                prefix = min(prefix, block[i])
                least = min(prefix, suffix[i + 1])
                if least != last and start + i >= width - 1:
                    values[count], begins[count], piece_of[count] = least, first + start + i - width + 1, piece
                    last = least
                    count += 1
            for i in range(width - 1, -1, -1):
                suffix[i] = min(block[i], suffix[i + 1])
    return count


@compiled()
def _modulo(value: np.uint64) -> np.uint64:
    value = (value & _PRIME) + (value >> _BITS_61)
    return value - _PRIME if value >= _PRIME else value


@compiled()
def _appended(key: np.uint64, byte: np.uint64) -> np.uint64:
    """`key * _PRIME_BASE + byte` modulo the prime."""
    low, high = key & _LOW_31, key >> _HALF
    middle = low * (_PRIME_BASE >> _HALF) + high * (_PRIME_BASE & _LOW_31)
    carried = np.uint64(2) * high * (_PRIME_BASE >> _HALF) + (middle >> np.uint64(30))
    return _modulo(_modulo(carried) + ((middle & _LOW_30) << _HALF) + _modulo(low * (_PRIME_BASE & _LOW_31)) + byte)


@compiled()
def find_windows(
    text: tuple[Bytes, Int64, UInt64],
    pieces: Pieces,
    length: int,
    table: UInt64,
    anchors: Anchors,
    chosen: Int64,
    counted: Int64,
    rows: UInt64,
) -> int:
    """Write a row for each window with a chosen anchor; returns their number.

    A row is 128 bits of hash, the document's name << 32 | the window's first byte, and the characters before it.

    text      the batch's bytes, offsets, and names of its documents
    chosen    indices of the chosen `anchors`
    counted   [document, byte, characters before it] of the last count
    """
    (data, offsets, names), (values, begins, piece_of), (_, ends, documents) = text, anchors, pieces
    key, prime_key, ready, written = np.uint64(0), np.uint64(0), -1, 0
    for i in chosen:
        piece, begin = piece_of[i], begins[i]
        document = documents[piece]
        stop = begins[i + 1] if i + 1 < len(piece_of) and piece_of[i + 1] == piece else ends[piece] - length + 1
        if ready != begin:
            key, prime_key = np.uint64(0), np.uint64(0)
            for j in range(begin, begin + length - 1):
                key, prime_key = key * _BASE + table[0, data[j]], _appended(prime_key, np.uint64(data[j]))
        if counted[0] != document:
            counted[0], counted[1], counted[2] = document, offsets[document], 0
        for j in range(counted[1], begin):
            counted[2] += np.int64((data[j] & np.uint8(0xC0)) != np.uint8(0x80))
        characters = counted[2]
        for j in range(begin, stop):
            byte, gone = data[j + length - 1], data[j]
            key, prime_key = key * _BASE + table[0, byte], _appended(prime_key, np.uint64(byte))
            rows[0, written], rows[1, written] = key, prime_key | values[i] << _BITS_61
            rows[2, written] = names[document] << _NAME | np.uint64(j - offsets[document])
            rows[3, written] = np.uint64(characters)
            written += 1
            characters += np.int64((gone & np.uint8(0xC0)) != np.uint8(0x80))
            key, prime_key = key - table[2, gone], _modulo(prime_key + _PRIME - table[3, gone])
        ready, counted[1], counted[2] = stop, stop, characters
    return written
