"""The compiled loops that find documents' ids in a token file, and copy them: see stored_ids.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import int64, types, uint32, void

from pilekit.corpus.shuffle import Int64
from pilekit.workers.kernels import compiled

# What is mapped cannot be written, and a part of a `.bin` may begin inside an id.
_stored = [types.Array(of, 1, "C", readonly=True, aligned=False) for of in (types.uint16, types.int32)]
_ids = [*_stored, types.Array(uint32, 1, "C", readonly=True)]
_mapped = types.Array(int64, 1, "C", readonly=True, aligned=False)
_numbers = types.Array(int64, 1, "A", readonly=True)


@compiled(void(_numbers, _numbers, _mapped, int64, int64, int64[::1], int64[::1]))
def find_spans(
    firsts: Int64, lasts: Int64, pointers: Int64, itemsize: int, tokens: int, begins: Int64, lengths: Int64
) -> None:
    """Find where documents begin in their file, and how many ids they have: never beyond its ids, whatever was mapped.

    firsts, lasts     int64 [documents]: the first sequence of each, and the first one after it
    pointers          of the index
    itemsize, tokens  bytes of an id, and ids of the file
    begins, lengths   int64 [documents]: receive the result
    """
    for document in range(len(firsts)):
        first, last = firsts[document], lasts[document]
        begin = pointers[first] // itemsize if 0 <= first < len(pointers) else tokens
        end = pointers[last] // itemsize if 0 <= last < len(pointers) else tokens
        begins[document] = begin = min(max(begin, 0), tokens)
        lengths[document] = max(min(end, tokens) - begin, 0)


@compiled(*[void(of, int64, int64[::1], int64[::1], int64[::1], int64) for of in _stored])
def drop_endings(
    ids: npt.NDArray[Any], number: int, sources: Int64, begins: Int64, lengths: Int64, ending: int
) -> None:
    """Shorten the documents of source `number` that end with the id `ending` by one id. The arrays are as below."""
    for document in range(len(lengths)):
        length = lengths[document]
        if sources[document] == number and length > 0 and ids[begins[document] + length - 1] == ending:
            lengths[document] = length - 1


@compiled(*[int64(of, int64, *[_numbers] * 3, _numbers, uint32[::1]) for of in _ids])
def copy_ids(
    ids: npt.NDArray[Any],
    number: int,
    sources: Int64,
    begins: Int64,
    lengths: Int64,
    places: Int64,
    copies: npt.NDArray[np.uint32],
) -> int:
    """Copy the ids of documents into one array; returns the largest, or -1 if there are none.

    ids              of the source `number`
    sources          int64 [documents]: only those with this number are copied
    begins, lengths  int64 [documents]: where each document begins in `ids`, and how many ids it has
    places           int64 [documents + 1]: where each document begins in `copies`
    copies           receives them
    """
    largest, total = uint32(0), 0
    for document in range(len(lengths)):
        if sources[document] == number:
            begin, place, length = begins[document], places[document], lengths[document]
            # Slices, because a loop over both from 0 is compiled to vector instructions.
            source, copy, most = ids[begin : begin + length], copies[place : place + length], uint32(0)
            for i in range(len(source)):
                value = uint32(source[i])
                copy[i] = value
                most = value if value > most else most
            largest, total = max(largest, most), total + length
    return int(largest) if total else -1
