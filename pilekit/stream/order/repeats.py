"""`repeats`: how often the documents of a subset are used per epoch, without any state.

The factor f of a subset is the number of epochs in the Pile's paper. Each unit has `copies` copies per epoch, at
different places of the permutation. Copy k of a document is read if k < floor(f). Copy floor(f) is read if the
document's hash of (seed, epoch, document) is below the fraction of f. So a document is used floor(f) or ceil(f) times
in each epoch, exactly f times if f is whole. In each epoch other documents get the additional copy.

Released train shards of the Pile already contain the up-sampling: factors multiply what is in the shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from pilekit.corpus import Manifest, resolve_subsets
from pilekit.corpus.shuffle import mix
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, shortened

_REPEATS = 3
"""Keeps these hashes apart from others of the same seed."""

MOST = 1000
"""A larger factor is a mistake."""


def exact_repeats(
    repeats: Mapping[str, float] | None, subsets: Sequence[str] | None, manifest: Manifest
) -> dict[str, float]:
    """`repeats` by exact subset names, sorted; factors of 1 are left out, because subsets not named have 1.

    subsets   exact names of the selected subsets; None: all

    PilekitError for a subset that is unknown, named twice or not selected, and for a factor that is not from 0 to 1000.
    """
    if repeats is None:
        return {}
    if not isinstance(repeats, Mapping):
        raise PilekitError(
            f'repeats is a dict from subset to factor, such as {{"ArXiv": 2.0}}, not {shortened(repr(repeats), 80)}'
        )
    rule = f"no factor; give a number from 0, which leaves it out, to {MOST:,}; 1 is every document once"
    found: dict[str, float] = {}
    for name, factor in numbers_of_subsets("repeats", repeats, manifest, lambda factor: 0 <= factor <= MOST, rule):
        if subsets is not None and name not in subsets:
            raise PilekitError(
                f"repeats names {shortened(name, 80)}, which subsets leaves out; select it too, or drop its factor"
            )
        found[name] = factor
    if subsets is not None and all(found.get(name) == 0 for name in subsets):
        raise PilekitError("repeats is 0 for every selected subset, so nothing is left; give one of them more than 0")
    return {name: factor for name, factor in sorted(found.items()) if factor != 1}


def numbers_of_subsets(
    argument: str, given: Mapping[str, float], manifest: Manifest, is_right: Callable[[float], bool], rule: str
) -> Iterator[tuple[str, float]]:
    """(exact name, number) of each entry; PilekitError for a wrong number, by the `rule`, or a subset named twice."""
    met: set[str] = set()
    for typed, number in given.items():
        (name,) = resolve_subsets(typed, manifest=manifest)
        if isinstance(number, bool) or not isinstance(number, int | float) or not is_right(number):
            raise PilekitError(f"{argument} of {shortened(name, 80)}: {shortened(repr(number), 80)} is {rule}")
        if name in met:
            raise PilekitError(f"{argument} names {shortened(name, 80)} twice, by different spellings; give it once")
        met.add(name)
        yield name, float(number)


def copies(repeats: Mapping[str, float], subsets: Sequence[str] | None) -> int:
    """Copies of each unit per epoch: the largest factor, rounded up; with `subsets` None (all) at least 1."""
    factors = [repeats.get(name, 1.0) for name in subsets] if subsets is not None else [1.0, *repeats.values()]
    return max(1, math.ceil(max(factors)))


def staying(
    batch: DocumentBatch, repeats: Mapping[str, float], seed: int, epoch: int, copy: int, shard: int
) -> DocumentBatch:
    """The documents of the batch, which is of shard number `shard`, that are read in copy `copy` of their unit."""
    if not repeats:
        return batch
    factors = np.array([repeats.get(label, 1.0) for label in batch.subsets])
    draw = (mix(seed, _REPEATS, epoch, shard, batch.numbers) >> np.uint64(11)) * 2.0**-53  # from 0, below 1
    return batch.where(draw < factors - copy)
