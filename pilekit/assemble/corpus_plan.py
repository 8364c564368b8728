"""The plan: which documents are held out, removed, repeated, and where the train shards begin. All counts are exact.

A subset's texts are put into units: a group, or a text where the subset has no groups. The units are taken in the order
of a hash, first for val, then for test, until they hold as many texts as the manifest asks for. Subsets choose in the
manifest's order, among texts and groups that no earlier subset chose. Of the documents with a chosen text, one goes
to val or test; all others, and all others of the chosen groups, are removed.

In train, a document has floor(epochs) copies. Exactly the share of documents that the fraction of the epochs gives,
those with the lowest hashes, has one more. A copy's place is a hash too; the places of train come first, then those of
val, then those of test. The copies sorted by place are cut into equal parts, the train shards. Hashes are of the seed,
subset and document, so nothing depends on the order of reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.artifacts.sort.external_sort import RowSort
from pilekit.assemble.read_source import GROUP, IDENTITY, SIZE, TEXT, Rows
from pilekit.corpus import Manifest, Subset
from pilekit.corpus.shuffle import mix

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]

LEFT_OUT, VAL, TEST, REMOVED = 0, -1, -2, -3
"""Fates of documents that are not in train. The fate of any other is the number of its copies in train."""
CHOOSE, REPEAT, PLACE = range(3)
"""The uses of hashes; the choices for different uses are independent."""
PLACES = np.uint64(1 << 62)
"""The places of train; as many follow for val, and for test."""

COUNTS = ("removed", "left_out", "val", "test", "train_documents", "train", "bytes", "held_out_bytes")

ARRAYS = ("repeat_below", "held_out", "groups", "borders")

RowsOf = Callable[[int], Iterable[Rows]]
"""The rows of a subset, by its place in the manifest; called several times."""
Texts = dict[int, tuple[int, int, int]]
Sort = Callable[..., RowSort]


@dataclass(frozen=True)
class CorpusPlan:
    """The decisions, as hashes and thresholds.

    repeat_below  documents of a subset with a lower hash have one more copy than the others, [subsets]
    held_out      [4, texts]: held-out texts, sorted; 1 for val, 2 for test; the place of the subset that chose the
                  text; the identity of the document that is held out
    groups        held-out groups, sorted
    borders       the place at which each output begins (the train shards, val, test), and the end, [outputs + 1]
    """

    manifest: Manifest
    repeat_below: UInt64
    held_out: UInt64
    groups: UInt64
    borders: UInt64

    def fates(self, subset: int, rows: Rows) -> Int64:
        """The fates of these documents of a subset: see `LEFT_OUT`."""
        described = self.manifest.subsets[subset]
        fates = np.full(len(rows), int(epochs_of(described)))
        if self.repeat_below[subset]:
            fates += self.hashes(subset, REPEAT, rows[:, IDENTITY]) < self.repeat_below[subset]
        if described.group:
            fates[_matches(self.groups, rows[:, GROUP])[0]] = REMOVED
        texts, splits, owners, identities = self.held_out
        indices, place = _matches(texts, rows[:, TEXT])
        chosen = (owners[place] == subset) & (identities[place] == rows[indices, IDENTITY])
        fates[indices] = np.where(chosen, -splits[place].astype(np.int64), REMOVED)
        return fates

    def places(self, subset: int, identities: UInt64, fates: Int64) -> Iterator[tuple[Int64, UInt64]]:
        """(indices of the documents that have this copy, its places), for the first copy, the second, ..."""
        copies = np.where((fates == VAL) | (fates == TEST), 1, fates)
        begins = np.maximum(-fates, 0).astype(np.uint64) * PLACES
        for copy in range(int(copies.max(initial=0))):
            indices = np.flatnonzero(copies > copy)
            yield indices, begins[indices] + self.hashes(subset, PLACE, identities[indices], copy) // np.uint64(4)

    def hashes(self, subset: int, use: int, values: UInt64, copy: int = 0) -> UInt64:
        """The hashes of values of a subset for one use: other values have other hashes."""
        name = xxhash.xxh3_64_intdigest(self.manifest.subsets[subset].name.encode())
        return mix(self.manifest.assemble.seed, name, use, copy, values)

    def save(self, file: BinaryIO) -> None:
        """Write the plan."""
        np.savez(file, **{name: getattr(self, name) for name in ARRAYS})

    @classmethod
    def load(cls, path: Path, manifest: Manifest) -> CorpusPlan:
        """Read a plan that `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(manifest, **arrays)


def epochs_of(subset: Subset) -> float:
    """How often a document of the subset occurs in train; 1 if the manifest does not say."""
    return 1.0 if subset.epochs is None else subset.epochs


def make_plan(
    manifest: Manifest, rows_of: RowsOf, scratch: Path, memory: int
) -> tuple[CorpusPlan, list[dict[str, int]]]:
    """The plan, and for each subset its `COUNTS`, of which `bytes` counts train alone.

    scratch   existing folder for sorting, in less than `memory` bytes
    """
    subsets, shards, none = range(len(manifest.subsets)), manifest.assemble.shards, np.zeros(0, np.uint64)
    plan = CorpusPlan(manifest, np.zeros(len(subsets), np.uint64), np.zeros((4, 0), np.uint64), none, none)
    sort = partial(RowSort, scratch, memory=memory // 16)  # Larger buffers would grow for longer.
    texts: Texts = {}
    groups: set[int] = set()
    for subset in subsets:
        _choose(plan, subset, texts, groups, rows_of(subset), sort)
    held_out = np.array([(text, *chosen) for text, chosen in sorted(texts.items())], np.uint64).reshape(-1, 4).T
    plan = replace(plan, held_out=held_out, groups=np.array(sorted(groups), np.uint64))
    counts = []
    with sort(1) as places:
        for subset in subsets:
            plan.repeat_below[subset] = _repeat_below(plan, subset, rows_of(subset), sort)
            total = np.zeros(len(COUNTS), np.int64)
            for rows in rows_of(subset):
                fates = plan.fates(subset, rows)
                total += _counts(fates, rows[:, SIZE].astype(np.int64))
                for _, copy_places in plan.places(subset, rows[:, IDENTITY], np.maximum(fates, LEFT_OUT)):
                    places.add(copy_places[None])
            counts.append(dict(zip(COUNTS, total.tolist(), strict=True)))
        inner = _at_ranks(places, [places.count * shard // shards for shard in range(1, shards)])
    borders = [0, *inner.tolist(), *(number * int(PLACES) for number in (1, 2, 3))]
    return replace(plan, borders=np.array(borders, np.uint64)), counts


def _counts(fates: Int64, sizes: Int64) -> Int64:
    copies, held_out = np.maximum(fates, 0), (fates == VAL) | (fates == TEST)
    documents = [np.sum(fates == fate) for fate in (REMOVED, LEFT_OUT, VAL, TEST)]
    return np.array([*documents, np.sum(copies > 0), copies.sum(), copies @ sizes, held_out @ sizes])


def _choose(plan: CorpusPlan, subset: int, texts: Texts, groups: set[int], rows: Iterable[Rows], sort: Sort) -> None:
    """Add a subset's held-out texts to `texts` (text -> columns of `held_out`), and their groups to `groups`.

    The document with the lowest identity stands for its text. A group is skipped if more than half of the
    subset's texts would then be held out.
    """
    described = plan.manifest.subsets[subset]
    with sort(1, distinct=True) as all_texts, sort(4) as units:
        for batch in rows:
            all_texts.add(batch[:, [TEXT]].T)
            hashes = plan.hashes(subset, CHOOSE, batch[:, GROUP])
            units.add(np.stack([hashes, batch[:, GROUP], batch[:, TEXT], batch[:, IDENTITY]]))
        different = sum(table.shape[1] for table in all_texts.chunks())
        room, epochs, shares = different // 2, epochs_of(described), plan.manifest.assemble
        val = min(round(shares.val * epochs * different), room)
        missing = {VAL: val, TEST: min(round(shares.test * epochs * different), room - val)}
        documents = (document for table in units.chunks() for document in zip(*table[1:].tolist(), strict=True))
        for group, members in groupby(documents, key=itemgetter(0)):
            split = next((split for split, number in missing.items() if number > 0), None)
            if split is None:
                break
            if described.group and group in groups:
                continue
            new: Texts = {}
            for _, text, identity in members:
                if text not in texts:
                    new.setdefault(text, (-split, subset, identity))
                if len(new) > room:
                    break
            if 0 < len(new) <= room:
                texts.update(new)
                missing[split] -= len(new)
                room -= len(new)
                if described.group:
                    groups.add(group)


def _repeat_below(plan: CorpusPlan, subset: int, rows: Iterable[Rows], sort: Sort) -> int:
    """The hash below which documents have one more copy than the others; 0: none has."""
    fraction = epochs_of(plan.manifest.subsets[subset]) % 1
    if not fraction:
        return 0
    with sort(1) as hashes:
        for batch in rows:
            used = batch[plan.fates(subset, batch) >= LEFT_OUT]
            hashes.add(plan.hashes(subset, REPEAT, used[:, IDENTITY])[None])
        return int(_at_ranks(hashes, [round(fraction * hashes.count)])[0])


def _at_ranks(values: RowSort, ranks: list[int]) -> UInt64:
    """The values at these ranks in ascending order; 2^64 - 1 after the last."""
    values_at_ranks = np.full(len(ranks), np.iinfo(np.uint64).max)
    begin = 0
    for table in values.chunks():
        here = [place for place, rank in enumerate(ranks) if begin <= rank < begin + table.shape[1]]
        values_at_ranks[here] = table[0, [ranks[place] - begin for place in here]]
        begin += table.shape[1]
    return values_at_ranks


def _matches(sorted_values: UInt64, values: UInt64) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """(indices of the values that are in `sorted_values`, their places there)."""
    first = np.searchsorted(sorted_values, values)
    indices = np.flatnonzero(first < np.searchsorted(sorted_values, values, "right"))
    return indices, first[indices]
