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
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.artifacts.external_sort import RowSort
from pilekit.assemble.count import GROUP, IDENTITY, SIZE, TEXT, Rows
from pilekit.corpus import Manifest, Subset
from pilekit.corpus.manifest import Assemble
from pilekit.errors import PilekitError, visible
from pilekit.shuffle import mix

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_EPOCHS = 1000

NOT_HELD_OUT, VAL, TEST = range(3)
CHOOSE, REPEAT, PLACE = range(3)
"""What a hash is for, so that the choices are independent of each other."""

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

    names       hash of the name of each subset, [subsets]; parallel to them:
    grouped     whether it has groups
    epochs
    repeated    how many documents have one more copy than the others, and
    repeat_to   their highest hash
    texts       held-out texts, sorted, [texts]; parallel to them:
    splits      VAL or TEST
    owners      the place of the subset that chose the text
    identities  of the document that is held out
    groups      held-out groups, sorted
    borders     the place at which each train shard but the first begins, [shards - 1]
    """

    seed: int
    names: UInt64
    grouped: Bools
    epochs: npt.NDArray[np.float64]
    repeated: Int64
    repeat_to: UInt64
    texts: UInt64
    splits: Int64
    owners: Int64
    identities: UInt64
    groups: UInt64
    borders: UInt64

    def fates(self, subset: int, rows: Rows) -> Fates:
        """What becomes of these documents of a subset."""
        place, held = _found(self.texts, rows[:, TEXT])
        kept = held.copy()
        kept[held] = (self.owners[place[held]] == subset) & (self.identities[place[held]] == rows[held, IDENTITY])
        split = np.full(len(rows), NOT_HELD_OUT)
        split[kept] = self.splits[place[kept]]
        if self.grouped[subset]:
            held |= _found(self.groups, rows[:, GROUP])[1]
        copies = np.full(len(rows), int(self.epochs[subset]))
        if self.repeated[subset]:
            copies += self.hashes(subset, REPEAT, rows[:, IDENTITY]) <= self.repeat_to[subset]
        copies[held] = 0
        return Fates(split, held & ~kept, copies)

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
    """The plan, and the counts of each subset: `removed`, `left_out`, `val`, `test`, `train_documents`, `train`,
    `bytes` (of train) and `held_out_bytes`.

    scratch   existing folder for sorting, in `memory` bytes
    """
    count, none = len(manifest.subsets), np.zeros(0, np.uint64)
    plan = Plan(
        seed=manifest.assemble.seed,
        names=np.array([xxhash.xxh3_64_intdigest(subset.name.encode()) for subset in manifest.subsets], np.uint64),
        grouped=np.array([subset.group is not None for subset in manifest.subsets]),
        epochs=np.array([epochs_of(subset) for subset in manifest.subsets]),
        repeated=np.zeros(count, np.int64),
        repeat_to=np.zeros(count, np.uint64),
        texts=none,
        splits=none.astype(np.int64),
        owners=none.astype(np.int64),
        identities=none,
        groups=none,
        borders=none,
    )
    held_out = HeldOut({}, set())
    for subset in range(count):
        _choose(plan, subset, held_out, manifest.assemble, rows_of, scratch, memory)
    plan = _with_held_out(plan, held_out, rows_of)
    for subset in range(count):
        _repeat(plan, subset, rows_of, scratch, memory)
    counts = []
    with RowSort(scratch, 1, memory // 2) as places:
        for subset in range(count):
            counts.append(dict.fromkeys(COUNTS, 0))
            for rows in rows_of(subset):
                fates, sizes = plan.fates(subset, rows), rows[:, SIZE].astype(np.int64)
                for name, number in zip(COUNTS, _counts(fates, sizes), strict=True):
                    counts[-1][name] += int(number)
                for _, some in plan.places(subset, rows[:, IDENTITY], fates.copies):
                    places.add(some[None])
        copies, shards = places.count, manifest.assemble.shards
        borders = _at_ranks(places, [copies * shard // shards for shard in range(1, shards)])
    return replace(plan, borders=borders), counts


COUNTS = ("removed", "left_out", "val", "test", "train_documents", "train", "bytes", "held_out_bytes")


def _counts(fates: Fates, sizes: Int64) -> tuple[Any, ...]:
    split, removed, copies = fates
    in_train, held_out = copies > 0, split > 0
    left_out = ~(held_out | removed | in_train)
    documents = (removed.sum(), left_out.sum(), (split == VAL).sum(), (split == TEST).sum(), in_train.sum())
    return *documents, copies.sum(), (copies * sizes).sum(), sizes[held_out].sum()


class HeldOut(NamedTuple):
    """Chosen texts -> (split, subset, unit), and chosen groups."""

    texts: dict[int, tuple[int, int, int]]
    groups: set[int]


def _choose(
    plan: Plan, subset: int, held_out: HeldOut, shares: Assemble, rows_of: RowsOf, scratch: Path, memory: int
) -> None:
    """Choose the texts of a subset that are held out.

    A group is passed over if with it more than half of the subset's texts were held out.
    """
    epochs = float(plan.epochs[subset])
    with (
        RowSort(scratch, 1, memory // 4, distinct=True) as texts,
        RowSort(scratch, 3, memory // 2, distinct=True) as units,
    ):
        for rows in rows_of(subset):
            texts.add(rows[:, [TEXT]].T)
            units.add(np.stack([plan.hashes(subset, CHOOSE, rows[:, GROUP]), rows[:, GROUP], rows[:, TEXT]]))
        different = sum(table.shape[1] for table in texts.chunks())
        room = different // 2
        val = min(round(shares.val * epochs * different), room)
        wanted = {VAL: val, TEST: min(round(shares.test * epochs * different), room - val)}
        pairs = (pair for table in units.chunks() for pair in zip(table[1].tolist(), table[2].tolist(), strict=True))
        for group, members in groupby(pairs, key=itemgetter(0)):
            split = next((split for split, number in wanted.items() if number > 0), NOT_HELD_OUT)
            if split == NOT_HELD_OUT:
                break
            if plan.grouped[subset] and group in held_out.groups:
                continue
            new = list(islice((text for _, text in members if text not in held_out.texts), room + 1))
            if 0 < len(new) <= room:
                held_out.texts.update(dict.fromkeys(new, (split, subset, group)))
                wanted[split] -= len(new)
                room -= len(new)
                if plan.grouped[subset]:
                    held_out.groups.add(group)


def _with_held_out(plan: Plan, held_out: HeldOut, rows_of: RowsOf) -> Plan:
    """The plan with what is held out: of the documents of the unit that chose a text, that of the lowest identity."""
    texts = np.array(sorted(held_out.texts), np.uint64)
    chosen = [held_out.texts[text] for text in texts.tolist()]
    splits, owners = np.array([(split, subset) for split, subset, _ in chosen], np.int64).reshape(-1, 2).T
    units = np.array([unit for *_, unit in chosen], np.uint64)
    identities = np.full(len(texts), np.iinfo(np.uint64).max)
    for subset in set(owners.tolist()):
        for rows in rows_of(subset):
            place, held = _found(texts, rows[:, TEXT])
            held[held] = (owners[place[held]] == subset) & (units[place[held]] == rows[held, GROUP])
            np.minimum.at(identities, place[held], rows[held, IDENTITY])
    groups = np.array(sorted(held_out.groups), np.uint64)
    return replace(plan, texts=texts, splits=splits, owners=owners, identities=identities, groups=groups)


def _repeat(plan: Plan, subset: int, rows_of: RowsOf, scratch: Path, memory: int) -> None:
    """Find out which documents of a subset have one more copy than the others."""
    fraction = float(plan.epochs[subset]) % 1
    if not fraction:
        return
    with RowSort(scratch, 1, memory // 2) as hashes:
        for rows in rows_of(subset):
            split, removed, _ = plan.fates(subset, rows)
            left = (split == NOT_HELD_OUT) & ~removed
            hashes.add(plan.hashes(subset, REPEAT, rows[left, IDENTITY])[None])
        plan.repeated[subset] = round(fraction * hashes.count)
        if plan.repeated[subset]:
            plan.repeat_to[subset] = _at_ranks(hashes, [int(plan.repeated[subset]) - 1])[0]


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
