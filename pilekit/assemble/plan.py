"""The plan: which documents are held out, removed, repeated, and where the train shards begin. All counts are exact.

A subset's texts are put into units: a group, or a text where the subset has no groups. The units are taken in the order
of a hash, first for val, then for test, until they hold as many texts as the manifest asks for. Subsets choose in the
manifest's order, among texts and groups that none before has chosen. Of the documents with a chosen text, one stands
in val or test; all others, and all others of the chosen groups, are removed.

In train, a document has floor(epochs) copies, and exactly the share of documents that the fraction asks for, those
with the lowest hashes, has one more. A copy's place is a hash too. The copies sorted by place are cut into equal parts,
the train shards. All hashes are of the seed, the subset and the document, so nothing depends on the order of reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.artifacts.external_sort import RowSort
from pilekit.assemble.count import GROUP, IDENTITY, SIZE, TEXT, Rows
from pilekit.corpus import Manifest, Subset
from pilekit.errors import PilekitError, visible
from pilekit.shuffle import mix

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_EPOCHS = 1000

NOT_HELD_OUT, VAL, TEST = range(3)
CHOOSE, REPEAT, PLACE = range(3)
"""What a hash is for, so that the choices are independent of each other."""

COUNTS = ("removed", "left_out", "val", "test", "train_documents", "train", "bytes", "held_out_bytes")

RowsOf = Callable[[int], Iterable[Rows]]
"""The rows of a subset, by its place in the manifest; called several times."""


class Fates(NamedTuple):
    """What becomes of some documents: the split that holds them out, whether they are removed, copies in train."""

    split: Int64
    removed: Bools
    copies: Int64


@dataclass(frozen=True)
class Plan:
    """The decisions, as hashes and thresholds.

    names         hash of the name of each subset, [subsets]; parallel to them:
    grouped       whether it has groups
    epochs
    repeat_below  documents with a lower hash have one more copy than the others
    held_out      [4, texts]: held-out texts, sorted; VAL or TEST; the place of the subset that chose the text; the
                  identity of the document that is held out
    groups        held-out groups, sorted
    borders       the place at which each train shard but the first begins, [shards - 1]
    """

    seed: int
    names: UInt64
    grouped: Bools
    epochs: npt.NDArray[np.float64]
    repeat_below: UInt64
    held_out: UInt64
    groups: UInt64
    borders: UInt64

    def fates(self, subset: int, rows: Rows) -> Fates:
        """What becomes of these documents of a subset."""
        texts, splits, owners, identities = self.held_out
        place, held = _found(texts, rows[:, TEXT])
        split = np.full(len(rows), NOT_HELD_OUT)
        chosen = (owners[place[held]] == subset) & (identities[place[held]] == rows[held, IDENTITY])
        split[held] = np.where(chosen, splits[place[held]], NOT_HELD_OUT)
        if self.grouped[subset]:
            held |= _found(self.groups, rows[:, GROUP])[1]
        copies = np.full(len(rows), int(self.epochs[subset]))
        if self.repeat_below[subset]:
            copies += self.hashes(subset, REPEAT, rows[:, IDENTITY]) < self.repeat_below[subset]
        copies[held] = 0
        return Fates(split, held & (split == NOT_HELD_OUT), copies)

    def places(self, subset: int, identities: UInt64, copies: Int64) -> Iterator[tuple[Int64, UInt64]]:
        """(indices of the documents that have this copy, its places), for the first copy, the second, ..."""
        for copy in range(int(copies.max(initial=0))):
            indices = np.flatnonzero(copies > copy)
            yield indices, self.hashes(subset, PLACE, identities[indices], copy)

    def hashes(self, subset: int, use: int, values: UInt64, copy: int = 0) -> UInt64:
        """The hashes of values of a subset for one use: other values have other hashes."""
        return mix(self.seed, int(self.names[subset]), use, copy, values)

    def save(self, file: BinaryIO) -> None:
        """Write the plan."""
        np.savez(file, allow_pickle=False, **{field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read a plan that `save` wrote."""
        with np.load(path, allow_pickle=False) as found:
            return cls(**{**found, "seed": int(found["seed"])})


def epochs_of(subset: Subset) -> float:
    """How often a document of the subset stands in train; 1 if the manifest does not say."""
    epochs = 1.0 if subset.epochs is None else subset.epochs
    if epochs > MOST_EPOCHS:
        raise PilekitError(f"the subset {visible(subset.name)} has {epochs:,g} epochs; {MOST_EPOCHS:,} are the most")
    return epochs


def make_plan(manifest: Manifest, rows_of: RowsOf, scratch: Path, memory: int) -> tuple[Plan, list[dict[str, int]]]:
    """The plan, and for each subset its `COUNTS`; `bytes` are those of train.

    scratch   existing folder for sorting, in a quarter of `memory` bytes
    """
    subsets, shards, none = manifest.subsets, manifest.assemble.shards, np.zeros(0, np.uint64)
    plan = Plan(
        seed=manifest.assemble.seed,
        names=np.array([xxhash.xxh3_64_intdigest(subset.name.encode()) for subset in subsets], np.uint64),
        grouped=np.array([subset.group is not None for subset in subsets]),
        epochs=np.array([epochs_of(subset) for subset in subsets]),
        repeat_below=np.zeros(len(subsets), np.uint64),
        held_out=np.zeros((4, 0), np.uint64),
        groups=none,
        borders=none,
    )
    texts: dict[int, tuple[int, int, int]] = {}
    groups: set[int] = set()
    for subset in range(len(subsets)):
        _choose(plan, subset, texts, groups, manifest, rows_of(subset), scratch, memory)
    held_out = np.array([(text, *chosen) for text, chosen in sorted(texts.items())], np.uint64).reshape(-1, 4).T
    plan = replace(plan, held_out=held_out, groups=np.array(sorted(groups), np.uint64))
    counts = []
    with RowSort(scratch, 1, memory // 16) as places:
        for subset in range(len(subsets)):
            plan.repeat_below[subset] = _repeat_below(plan, subset, rows_of(subset), scratch, memory)
            total = np.zeros(len(COUNTS), np.int64)
            for rows in rows_of(subset):
                fates = plan.fates(subset, rows)
                total += _counts(fates, rows[:, SIZE].astype(np.int64))
                for _, some in plan.places(subset, rows[:, IDENTITY], fates.copies):
                    places.add(some[None])
            counts.append(dict(zip(COUNTS, total.tolist(), strict=True)))
        borders = _at_ranks(places, [places.count * shard // shards for shard in range(1, shards)])
    return replace(plan, borders=borders), counts


def _counts(fates: Fates, sizes: Int64) -> Int64:
    split, removed, copies = fates
    held_out, in_train = split != NOT_HELD_OUT, copies > 0
    documents = [removed, ~(held_out | removed | in_train), split == VAL, split == TEST, in_train]
    return np.array([*map(np.sum, documents), copies.sum(), (copies * sizes).sum(), sizes[held_out].sum()])


def _choose(
    plan: Plan,
    subset: int,
    texts: dict[int, tuple[int, int, int]],
    groups: set[int],
    manifest: Manifest,
    rows: Iterable[Rows],
    scratch: Path,
    memory: int,
) -> None:
    """Add to `texts` what a subset holds out, text -> (split, subset, identity), and to `groups` in which groups.

    The document with the lowest identity stands for its text. A group is passed over if with it more than half of the
    subset's texts were held out.
    """
    with RowSort(scratch, 1, memory // 16, distinct=True) as all_texts, RowSort(scratch, 4, memory // 8) as units:
        for some in rows:
            all_texts.add(some[:, [TEXT]].T)
            hashes = plan.hashes(subset, CHOOSE, some[:, GROUP])
            units.add(np.stack([hashes, some[:, GROUP], some[:, TEXT], some[:, IDENTITY]]))
        different = sum(table.shape[1] for table in all_texts.chunks())
        room, epochs = different // 2, float(plan.epochs[subset])
        val = min(round(manifest.assemble.val * epochs * different), room)
        wanted = {VAL: val, TEST: min(round(manifest.assemble.test * epochs * different), room - val)}
        documents = (document for table in units.chunks() for document in zip(*table[1:].tolist(), strict=True))
        for group, members in groupby(documents, key=itemgetter(0)):
            split = next((split for split, number in wanted.items() if number > 0), NOT_HELD_OUT)
            if split == NOT_HELD_OUT:
                break
            if plan.grouped[subset] and group in groups:
                continue
            new: dict[int, tuple[int, int, int]] = {}
            for _, text, identity in members:
                if text not in texts:
                    new.setdefault(text, (split, subset, identity))
                if len(new) > room:
                    break
            if 0 < len(new) <= room:
                texts.update(new)
                wanted[split] -= len(new)
                room -= len(new)
                if plan.grouped[subset]:
                    groups.add(group)


def _repeat_below(plan: Plan, subset: int, rows: Iterable[Rows], scratch: Path, memory: int) -> int:
    """The hash below which documents have one more copy than the others; 0: none has."""
    fraction = float(plan.epochs[subset]) % 1
    if not fraction:
        return 0
    with RowSort(scratch, 1, memory // 16) as hashes:
        for some in rows:
            split, removed, _ = plan.fates(subset, some)
            left = (split == NOT_HELD_OUT) & ~removed
            hashes.add(plan.hashes(subset, REPEAT, some[left, IDENTITY])[None])
        return int(_at_ranks(hashes, [round(fraction * hashes.count)])[0])


def _at_ranks(values: RowSort, ranks: list[int]) -> UInt64:
    """The values at these ranks in ascending order; 2^64 - 1 behind the last."""
    found = np.full(len(ranks), np.iinfo(np.uint64).max)
    begin = 0
    for table in values.chunks():
        here = [place for place, rank in enumerate(ranks) if begin <= rank < begin + table.shape[1]]
        found[here] = table[0, [ranks[place] - begin for place in here]]
        begin += table.shape[1]
    return found


def _found(known: UInt64, values: UInt64) -> tuple[npt.NDArray[np.intp], Bools]:
    """(place of each value in sorted `known`, whether it is there)."""
    place = np.searchsorted(known, values)
    place[place == len(known)] = 0
    return place, known[place] == values if len(known) else np.zeros(len(values), np.bool_)
