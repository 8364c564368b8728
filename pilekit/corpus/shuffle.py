"""`mix`, `drawn_below` and `permutation`: everything random, as pure functions of the seed and of identities.

No generator has a state to save, and no result depends on the order of the calls. The functions use only integers:
splitmix64's finalizer and the raw words of Philox, which are the same in every version of numpy and on every processor.
numpy does not promise the same for `Generator.permutation`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1

_USES = 3
"""Keeps the draws of documents' uses apart from other hashes."""


def mix(*parts: int | npt.NDArray[np.integer]) -> UInt64:
    """A hash of the sequence of `parts`, uint64 of their common shape ([] for plain integers).

    Parts are integers or integer arrays, taken modulo 2^64, and broadcast. One splitmix64 round per part, from h = 0:
    `h = finalize((h ^ part) + 0x9E3779B97F4A7C15)`. So the hash depends on the order and the number of the parts.
    """
    state: UInt64 = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            word = np.asarray(part & _MASK if isinstance(part, int) else part).astype(np.uint64)
            state = (state ^ word) + _GOLDEN
            state = (state ^ (state >> np.uint64(30))) * _FIRST
            state = (state ^ (state >> np.uint64(27))) * _SECOND
            state = np.asarray(state ^ (state >> np.uint64(31)))
    return state


def drawn_below(
    chances: npt.NDArray[np.float64], seed: int, epoch: int, shard: int, numbers: npt.NDArray[np.integer]
) -> npt.NDArray[np.bool_]:
    """Whether each document, of the shard of this index, draws a number below its chance: bool [numbers].

    The numbers are from 0, below 1, and others in each epoch.
    """
    draws = (mix(seed, _USES, epoch, shard, numbers) >> np.uint64(11)) * 2.0**-53
    below: npt.NDArray[np.bool_] = draws < chances
    return below


def permutation(n: int, seed: int, *key: int) -> Int64:
    """A permutation of 0 .. n-1, int64 [n]: the sorting order of `n` raw words of a Philox seeded with (seed, key).

    8 bytes per entry, about 100 ns per entry.
    """
    if n <= 1:
        return np.zeros(n, np.int64)
    words = np.random.Philox(key=permutation_key(seed, *key)).random_raw(n)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


def permutation_key(seed: int, *key: int) -> int:
    """The Philox's key of a permutation: 128 bits of the SHA-256 of (seed, key)."""
    return int.from_bytes(hashlib.sha256(repr((seed, key)).encode()).digest()[:16], "little")
