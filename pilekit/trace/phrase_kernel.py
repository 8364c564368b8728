"""Compiled code of `PhraseTable` (phrase_table.py): hashes of heads, and the search in texts.

The search takes some thousand positions at a time, in several loops. Each keeps the positions that pass a test, and the
last compares bytes. Most loops have no branch: they write each position, and step on only if it passes. A table of a
million phrases does not fit in the processor's caches, and memory takes 200 ns to answer. So each loop only asks for
the memory that the next one needs (`prefetch`), and the processor has many accesses under way at once. The first loop
reaches 0.5 to 0.9 GB/s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import extending
from numba.core import types

from pilekit.workers.kernels import compiled

Bytes = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]

_FIRST, _SECOND, _THIRD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0xD6E8FEB86659FD93)
_ALL, _1, _8, _32, _40, _64, _LOW_6 = map(np.uint64, (0xFFFFFFFFFFFFFFFF, 1, 8, 32, 40, 64, 63))
_SPACE = np.uint8(32)
_AT_A_TIME = 1024
"""Candidates whose memory is asked for together; more would drive each other out of the cache."""
_SPACES, _ONES, _HIGH_BITS = map(np.uint64, (0x2020202020202020, 0x0101010101010101, 0x8080808080808080))

instruction: Callable[[Callable[..., Any]], Any] = extending.intrinsic
# numba does not see a change of an instruction in another file, and would load old machine code. So it stays here.


@instruction
def _eight_bytes(typing: Any, data: Any, at: Any) -> Any:
    """The 8 bytes from `data[at]` on, as a number."""

    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        begin = builder.gep(target.make_array(data)(target, builder, values[0]).data, [values[1]])
        number = builder.load(builder.bitcast(begin, ir.IntType(64).as_pointer()))
        number.align = 1
        return number

    return types.uint64(data, at), generate


@instruction
def prefetch(typing: Any, data: Any, at: Any) -> Any:
    """Let the processor load `data[at]` into its cache while it does other work."""

    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        place = builder.gep(target.make_array(data)(target, builder, values[0]).data, [values[1]])
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        load = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        builder.call(load, [builder.bitcast(place, byte), number(0), number(3), number(1)])
        return target.get_dummy_value()

    return types.none(data, at), generate


@instruction
def _zeros_below(typing: Any, number: Any) -> Any:
    """How many zeros stand behind the last 1 of a number that is not 0."""

    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.cttz(values[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), generate


@compiled()
def _long_hash(data: Bytes, at: int, head: int) -> np.uint64:
    """A hash of 16 to 24 bytes."""
    last = _eight_bytes(data, at + head - 8) * _THIRD
    return np.uint64(_eight_bytes(data, at) * _FIRST + _eight_bytes(data, at + 8) * _SECOND + last)


@compiled()
def _first_hash(data: Bytes, at: int, head: int) -> np.uint64:
    """A hash of the `head` bytes from `at` on, whose first bits are good."""
    if head >= 16:
        return _long_hash(data, at, head)
    if at + 8 <= len(data):
        number = _eight_bytes(data, at) & (_ALL >> (_8 * np.uint64(8 - head)))
    else:
        number = np.uint64(0)
        for i in range(head):
            number |= np.uint64(data[at + i]) << (_8 * np.uint64(i))
    return np.uint64(number * _FIRST)


@compiled()
def _filter_hash(data: Bytes, at: int, head: int) -> np.uint64:
    """A hash for the filter, which leaves out bytes in the middle of a long head."""
    if head >= 16:
        return np.uint64((_eight_bytes(data, at) ^ (_eight_bytes(data, at + head - 8) * _SECOND)) * _FIRST)
    return _first_hash(data, at, head)


@compiled()
def _next_word(data: Bytes, at: int) -> tuple[np.uint64, int]:
    """A hash of the word at a place, and the place behind its space."""
    hash = np.uint64(0)
    while at + 8 <= len(data):
        piece = _eight_bytes(data, at)
        other = piece ^ _SPACES
        spaces = (other - _ONES) & ~other & _HIGH_BITS  # The last 1 is that of the first space.
        if spaces:
            size = _zeros_below(spaces) >> np.uint64(3)
            return _with_piece(hash, piece & ((_1 << (_8 * size)) - _1)), at + int(size) + 1
        hash = _with_piece(hash, piece)
        at += 8
    piece, shift = np.uint64(0), np.uint64(0)
    while at < len(data) and data[at] != _SPACE:
        piece |= np.uint64(data[at]) << shift
        shift += _8
        at += 1
    return _with_piece(hash, piece), at + 1


@compiled()
def _with_piece(hash: np.uint64, piece: np.uint64) -> np.uint64:
    hash = (hash ^ piece) * _FIRST
    return np.uint64(hash ^ (hash >> _32))


@compiled()
def _words_hash(data: Bytes, at: int, words: int) -> np.uint64:
    """A hash of so many words, whose first bits are good; that of `_pass_at_words`."""
    hash = np.uint64(0)
    for _ in range(words):
        word, at = _next_word(data, at)
        hash = hash * _SECOND + word
    return np.uint64(hash * _THIRD)


@compiled()
def _mixed(hash: np.uint64) -> np.uint64:
    """The hash with all bits good; different hashes stay different."""
    hash = (hash ^ (hash >> _32)) * _THIRD
    return np.uint64(hash ^ (hash >> _32))


@compiled()
def hash_heads(data: Bytes, begins: Int32, head: int, at_words: bool, hashes: UInt64) -> None:
    """Write the hash of the head that begins at each place; a head has bytes or, `at_words`, words."""
    for i in range(len(begins)):
        hashes[i] = _mixed(_words_hash(data, begins[i], head) if at_words else _first_hash(data, begins[i], head))


@compiled()
def _two_bits(hash: np.uint64) -> np.uint64:
    """The bits of a hash in its number of the filter."""
    return np.uint64((_1 << ((hash >> _32) & _LOW_6)) | (_1 << ((hash >> _40) & _LOW_6)))


@compiled()
def fill_filter(data: Bytes, begins: Int32, head: int, at_words: bool, filter: UInt64) -> None:
    """Set two bits of each head; the filter has a power of two of numbers."""
    shift = _filter_shift(filter)
    for begin in begins:
        hash = _words_hash(data, begin, head) if at_words else _filter_hash(data, begin, head)
        filter[hash >> shift] |= _two_bits(hash)


@compiled()
def _passes(filter: UInt64, shift: np.uint64, hash: np.uint64) -> np.uint64:
    """1 if both bits of a hash are set, else 0."""
    number = filter[hash >> shift]
    return np.uint64((number >> ((hash >> _32) & _LOW_6)) & (number >> ((hash >> _40) & _LOW_6)) & _1)


@compiled()
def _filter_shift(filter: UInt64) -> np.uint64:
    """By how many bits to shift a hash so that it is the index of a number of the filter."""
    shift = _64
    while (np.uint64(len(filter)) >> (_64 - shift)) > _1:
        shift -= _1
    return shift


@compiled()
def _behind(data: Bytes, at: int, stop: int, store: Bytes, begin: Any, end: Any) -> tuple[int, bool]:
    """(bytes that `data[at:stop]` and the phrase `store[begin:end]` share, whether the phrase is behind the data)."""
    same: Any = 0
    size = min(stop - at, end - begin)
    whole = min(size, min(len(data) - at, len(store) - begin) - 7)  # From all places before, eight bytes can be read.
    while same < whole:
        other = _eight_bytes(data, at + same) ^ _eight_bytes(store, begin + same)
        if other:
            same += np.int64(_zeros_below(other) >> np.uint64(3))
            break
        same += 8
    else:
        same = min(same, size)
        while same < size and data[at + same] == store[begin + same]:
            same += 1
    if same < size:
        return same, data[at + same] < store[begin + same]
    return size, size < end - begin


@compiled()
def _pass_filter(data: Bytes, begin: int, end: int, head: int, filter: UInt64, candidates: Int32) -> int:
    """Write the positions from `begin` to `end` whose heads may be a phrase's, less `begin`; returns their number."""
    shift, passed, whole = _filter_shift(filter), np.uint64(0), min(end, len(data) - 7)
    if head >= 16:
        for at in range(begin, end):
            candidates[passed] = at - begin
            passed += _passes(filter, shift, _filter_hash(data, at, head))
        return int(passed)
    mask = _ALL >> (_8 * np.uint64(8 - head))
    for at in range(begin, whole):
        candidates[passed] = at - begin
        passed += _passes(filter, shift, (_eight_bytes(data, at) & mask) * _FIRST)
    for at in range(max(begin, whole), end):
        candidates[passed] = at - begin
        passed += _1
    return int(passed)


@compiled()
def find_words(data: Bytes, begin: int, end: int, ahead: int, starts: Int32, hashes: UInt64) -> int:
    """Write the positions from `begin` to `end` behind a space, less `begin`, and the hash of the word at each.

    Hashes of `ahead` words more follow. Returns the number of positions.
    """
    at, words = max(begin, 1), 0
    while at < end and data[at - 1] != _SPACE:
        at += 1
    while at < end:
        starts[words] = at - begin
        hashes[words], at = _next_word(data, at)
        words += 1
    for more in range(ahead):
        hashes[words + more], at = _next_word(data, at)
    return words


@compiled()
def _pass_at_words(words: tuple[Int32, UInt64], head: int, filter: UInt64, candidates: Int32, hashes: UInt64) -> int:
    """Like `_pass_filter`, for the positions of words, with the hashes of the heads; a head has so many words."""
    starts, of_word = words
    shift, passed = _filter_shift(filter), np.uint64(0)
    for begin in range(0, len(starts), _AT_A_TIME):
        end = min(begin + _AT_A_TIME, len(starts))
        for i in range(begin, end):
            hash = of_word[i]
            for more in range(1, head):
                hash = hash * _SECOND + of_word[i + more]
            hashes[i] = hash * _THIRD
            prefetch(filter, hashes[i] >> shift)
        for i in range(begin, end):
            candidates[passed], hashes[passed] = starts[i], hashes[i]
            passed += _passes(filter, shift, hashes[i])
    return int(passed)


@compiled()
def parent_of(rows: UInt32, phrase: int) -> Any:
    """The parent of a phrase, or -1."""
    return np.int64(np.int32(rows[phrase, 2]))


@compiled()
def _lower_bound(rows: UInt32, key: Any, first: int, last: int) -> int:
    """The first of the rows `first` to `last` whose key is `key` or more, or `last`."""
    while first < last:
        middle = (first + last) // 2
        if rows[middle, 0] < key:
            first = middle + 1
        else:
            last = middle
    return first


@compiled()
def _with_key(rows: UInt32, directory: Int32, candidates: Int32, hashes: UInt64, firsts: Int32, lasts: Int32) -> int:
    """Keep the candidates whose hash a group has, and write the first phrase of each, and the one behind the group.

    Returns their number.
    """
    bits = np.uint64(0)
    while (_1 << bits) < np.uint64(len(directory) - 1):
        bits += _1
    to_place, to_key = _64 - bits, _32 - bits
    for i in range(len(candidates)):
        hashes[i] = _mixed(hashes[i])
        prefetch(directory, hashes[i] >> to_place)
    passed, kept = 0, 0
    for i in range(len(candidates)):
        place = hashes[i] >> to_place
        candidates[passed], hashes[passed] = candidates[i], hashes[i]
        firsts[passed], lasts[passed] = directory[place], directory[place + _1]
        prefetch(rows, 3 * firsts[passed])
        prefetch(rows, 3 * firsts[passed] + 4)  # where the phrase ends
        passed += int(firsts[passed] < lasts[passed])
    for i in range(passed):
        key, last = np.int64(np.uint32(hashes[i] >> to_key)), lasts[i]
        first = _lower_bound(rows, key, firsts[i], last)
        if first < last and rows[first, 0] == key:
            if first + 1 < last and rows[first + 1, 0] == key:
                last = _lower_bound(rows, key + 1, first + 2, last)
            else:
                last = first + 1
            candidates[kept], firsts[kept], lasts[kept] = candidates[i], first, last
            kept += 1
    return kept


@compiled()
def _with_ends(
    data: Bytes, begin: int, head: int, store: Bytes, rows: UInt32, candidates: Int32, firsts: Int32, lasts: Int32
) -> int:
    """Keep the candidates where the last bytes of the head and of the group's only phrase fit; returns their number."""
    for i in range(len(candidates)):
        first, last = firsts[i], lasts[i]
        middle = (first + last) // 2
        prefetch(store, rows[first, 1])
        prefetch(store, rows[middle, 1])
        prefetch(store, rows[middle + 1, 1] - 1)
        prefetch(store, rows[last, 1] - 1)
    kept = 0
    for i in range(len(candidates)):
        at, first = begin + candidates[i], firsts[i]
        start, stop = np.int64(rows[first, 1]), np.int64(rows[first + 1, 1])
        end = min(at + stop - start, len(data)) - 1
        candidates[kept], firsts[kept], lasts[kept] = candidates[i], first, lasts[i]
        several = lasts[i] - first > 1  # They may end elsewhere.
        fits = (data[at + head - 1] == store[start + head - 1]) & (data[end] == store[stop - 1])
        kept += int(several | fits)
    return kept


@compiled()
def find_phrases(
    data: Bytes,
    begin: int,
    end: int,
    ends: Int64,
    document: int,
    words: tuple[Int32, UInt64] | None,
    table: tuple[Bytes, UInt32],
    length_class: tuple[int, Int32, UInt64],
    scratch: tuple[Int32, UInt64],
    found: Int32,
) -> tuple[int, int]:
    """Find the phrases of a class that begin at `data[begin:end]`.

    ends            where each document ends in `data`, ascending
    document        the document at `begin`
    words           the positions to search, less `begin`, and the hashes of words that `find_words` wrote; None: search
                    all positions
    table           store and rows of the `PhraseTable`
    length_class    the values of the `LengthClass`
    scratch         [positions + 1] each, overwritten
    found           int32 [positions, 3], written: the longest phrase at a place, its parent, and the document

    Returns the number found, and the document at `end`.
    """
    store, rows = table
    head, directory, filter = length_class
    candidates, hashes = scratch
    firsts, lasts = np.empty(_AT_A_TIME + 1, np.int32), np.empty(_AT_A_TIME + 1, np.int32)
    if words is None:
        passed = _pass_filter(data, begin, min(end, len(data) - head + 1), head, filter, candidates)
        for i in range(passed):
            hashes[i] = _first_hash(data, begin + candidates[i], head)
        certain = head
    else:
        passed = _pass_at_words(words, head, filter, candidates, hashes)
        certain = 1
    count = 0
    for part in range(0, passed, _AT_A_TIME):
        some = candidates[part : min(part + _AT_A_TIME, passed)]
        some = some[: _with_key(rows, directory, some, hashes[part:], firsts, lasts)]
        hit = _with_ends(data, begin, certain, store, rows, some, firsts, lasts)
        for i in range(hit):
            at = begin + some[i]
            while ends[document] <= at:
                document += 1
            low, high, shared = firsts[i], lasts[i], 0
            while low < high:
                middle = (low + high) // 2
                start, stop = np.int64(rows[middle, 1]), np.int64(rows[middle + 1, 1])
                same, behind = _behind(data, at, ends[document], store, start, stop)
                if behind:
                    high = middle
                else:
                    low, shared = middle + 1, same
            phrase = low - 1 if low > firsts[i] else -1
            while phrase >= 0 and np.int64(rows[phrase + 1, 1]) - np.int64(rows[phrase, 1]) > shared:
                phrase = parent_of(rows, phrase)
            if phrase >= 0:
                found[count, 0], found[count, 1], found[count, 2] = phrase, parent_of(rows, phrase), document
                count += 1
    while document < len(ends) - 1 and ends[document] <= end:
        document += 1
    return count, document
