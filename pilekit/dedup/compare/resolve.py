"""The sweep: candidates decided in keeper order, a block of some thousand documents at a time.

A block is put into tables, in which a document is a slot (a number in keeper order) and a document to be decided a
place. Bitmaps are read of all documents that are alike in size, and shingle sets of what is alike in those, in the
order in which they lie on disk, each once for a block; a block for which that would not fit into memory is halved. A
document whose own candidates' sets would not fit is compared with them one after the other, from the disk. All looking
at values is done by kernels (comparing.py).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.dedup.bits import get_bits, no_bits, set_bits
from pilekit.dedup.compare.jaccard_kernels import Int32, Int64, decide, groups, needed, possible, to_look_at
from pilekit.dedup.compare.representatives import MOST, Representatives, room_of
from pilekit.dedup.compare.shingle_store import WORD, Extents, ShingleStore
from pilekit.dedup.match.population import Ids, Ranks, ids_of
from pilekit.dedup.match.rows import Table
from pilekit.dedup.sketch.shingles import UInt64

Mask = npt.NDArray[np.bool_]

_WORTH_A_THREAD = 1 << 20
"""So many values to be merged."""

_OWN = np.uint64(63)
_NO_VALUES, _NOT_KNOWN = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class _Block:
    """Documents to be decided, by place, and all that they may be compared with, by slot; both in keeper order."""

    ranks: Ranks  # [slots], as the next two
    extents: Extents
    removed: Mask
    slot_of: Int32  # [places]
    own: Mask  # [places]: not of the earlier run, of which nothing is removed
    pair_place: Int32  # [pairs]
    pair_slot: Int32
    member_place: Int32  # [members]
    member_run: Int32
    runs: UInt64  # [runs]: where its members begin, which identifies it
    representatives: Int32  # [runs, MOST]: slots
    held: Int32  # [runs]: how many of them
    room: Int32
    let_go: npt.NDArray[np.uint8]


class _Bitmaps(NamedTuple):
    """The bitmap at a slot is `bits[at[slot]:][:words[slot]]`; no words: there is none, or it was not read."""

    bits: UInt64
    at: Int64
    words: Int64


class Sweep:
    """Goes through the documents in keeper order.

    compared        how many pairs of documents were compared so far, if only by their bitmaps
    hot_documents   documents that were kept, and might resemble a kept one of a run that the run had let go of
    hot_runs        those runs
    """

    def __init__(
        self,
        store: ShingleStore,
        threshold: float,
        documents: int,
        representatives: Representatives,
        memory: int,
        pool: ThreadPoolExecutor,
        threads: int,
    ):
        self._store, self._threshold, self._removed = store, threshold, no_bits(documents)
        self._representatives, self._memory, self._pool, self._threads = representatives, memory, pool, threads
        self.compared = self.hot_runs = self.hot_documents = 0

    def decide(self, pairs: Table, members: Table) -> Table:
        """Decide the next documents; returns (rank, rank of a kept document, similarity) of those that are removed.

        pairs     (later rank, earlier rank) of candidate pairs, ascending
        members   (rank, where its run begins, length of the run) of members of hot runs, ascending
        """
        later = np.unique(np.concatenate([pairs[0], members[0]]))
        if not len(later):
            return np.empty((3, 0), dtype=np.uint64)
        block = self._block(later, pairs, members)
        nothing = np.zeros(len(block.ranks), dtype=np.int64)
        wanted = self._to_look_at(block, _Bitmaps(_NO_VALUES, nothing, nothing))
        left = self._memory - WORD * int(block.extents.words[wanted].sum())
        if left >= 0 or len(later) == 1:
            bitmaps = self._bitmaps(block, wanted)
            wanted = self._to_look_at(block, bitmaps)
            if WORD * int(block.extents.sizes[wanted].sum()) <= left:
                return self._decide(block, bitmaps, *self._sets(block, wanted), _NOT_KNOWN)
            if len(later) == 1:
                return self._decide(block, bitmaps, nothing, _NO_VALUES, self._known(block, wanted))
            del bitmaps
        del block
        middle = later[len(later) // 2]
        pair, member = (int(np.searchsorted(table[0], middle)) for table in (pairs, members))
        first = self.decide(pairs[:, :pair], members[:, :member])
        return np.concatenate([first, self.decide(pairs[:, pair:], members[:, member:])], axis=1)

    def _block(self, later: Ranks, pairs: Table, members: Table) -> _Block:
        runs, first, run_of = np.unique(members[1], return_index=True, return_inverse=True)
        room = room_of(members[2, first])
        kept, held, let_go = self._representatives.read(runs, room)
        is_held = np.arange(MOST) < held[:, None]
        ranks = np.unique(np.concatenate([later, pairs[1], kept[is_held]]))

        ids = ids_of(ranks)
        order = np.argsort(ids)
        extents = self._store.extents(ids[order]).take(np.argsort(order))
        removed = get_bits(self._removed, ids)

        slot_of, own = _places(ranks, later), later >> _OWN == 1
        pair_place, pair_slot = _places(later, pairs[0]), _places(ranks, pairs[1])
        open = own[pair_place] & ~removed[pair_slot]
        open &= possible(extents.sizes[slot_of[pair_place]], extents.sizes[pair_slot], self._threshold)
        return _Block(
            ranks,
            extents,
            removed,
            slot_of,
            own,
            pair_place[open],
            pair_slot[open],
            _places(later, members[0]),
            run_of.astype(np.int32),
            runs,
            np.where(is_held, _places(ranks, kept), 0).astype(np.int32),
            held,
            room,
            let_go,
        )

    def _to_look_at(self, block: _Block, bitmaps: _Bitmaps) -> Mask:
        """The slots whose sets are worth a look, by their sizes and these bitmaps."""
        return to_look_at(
            block.slot_of,
            block.own,
            block.pair_place,
            block.pair_slot,
            block.member_place,
            block.member_run,
            block.representatives,
            block.held,
            self._threshold,
            block.extents.sizes,
            *bitmaps,
        )

    def _bitmaps(self, block: _Block, wanted: Mask) -> _Bitmaps:
        slots, ids = _on_disk(block, wanted)
        extents = block.extents.take(slots)
        at, words = np.zeros((2, len(wanted)), dtype=np.int64)
        at[slots], words[slots] = np.cumsum(extents.words) - extents.words, extents.words
        return _Bitmaps(self._store.bits(ids, extents), at, words)

    def _sets(self, block: _Block, wanted: Mask) -> tuple[Int64, UInt64]:
        """Where each set that is wanted begins, by slot, and the sets."""
        slots, ids = _on_disk(block, wanted)
        extents = block.extents.take(slots)
        begins = np.zeros(len(wanted), dtype=np.int64)
        begins[slots] = np.cumsum(extents.sizes) - extents.sizes
        return begins, self._store.sets(ids, extents)

    def _known(self, block: _Block, wanted: Mask) -> Int64:
        """What the one document of this block shares with each that it may be compared with; -1: not enough."""
        slot = int(block.slot_of[0])
        known = np.full(len(block.ranks), -1, dtype=np.int64)
        ids, sizes = ids_of(block.ranks).tolist(), block.extents.sizes.tolist()
        for other in np.flatnonzero(wanted).tolist():
            if other != slot:
                enough = needed(sizes[slot], sizes[other], self._threshold)
                known[other] = self._store.shared_if_enough(ids[slot], ids[other], enough)
        return known

    def _decide(self, block: _Block, bitmaps: _Bitmaps, begins: Int64, values: UInt64, known: Int64) -> Table:
        """Decide the documents of a block and remember what became of them; sets as in `comparing.decide`."""
        places, hot_before = len(block.slot_of), int(np.count_nonzero(block.let_go == 2))
        partner, similarity = np.empty(places, dtype=np.int32), np.empty(places, dtype=np.float64)
        unsure = np.zeros(places, dtype=np.bool_)
        pair_begin = np.searchsorted(block.pair_place, np.arange(places + 1))
        member_begin = np.searchsorted(block.member_place, np.arange(places + 1))

        def work(order: Int32) -> int:
            return decide(
                order,
                block.slot_of,
                block.own,
                pair_begin,
                block.pair_slot,
                member_begin,
                block.member_run,
                block.representatives,
                block.held,
                block.room,
                block.let_go,
                self._threshold,
                block.extents.sizes,
                *bitmaps,
                begins,
                values,
                known,
                block.removed,
                partner,
                similarity,
                unsure,
            )

        self.compared += sum(self._pool.map(work, self._parts(block)))
        self._representatives.write(block.runs, block.ranks[block.representatives], block.held, block.let_go)
        self.hot_runs += int(np.count_nonzero(block.let_go == 2)) - hot_before
        self.hot_documents += int(unsure.sum())
        gone = partner >= 0
        later = block.ranks[block.slot_of[gone]]
        set_bits(self._removed, ids_of(later))
        return np.stack([later, block.ranks[partner[gone]], similarity[gone].view(np.uint64)])

    def _parts(self, block: _Block) -> list[Int32]:
        """The places in the order in which they are decided, cut into parts for threads."""
        place_of = np.full(len(block.ranks), -1, dtype=np.int32)
        place_of[block.slot_of] = np.arange(len(block.slot_of))
        group = groups(
            block.pair_place,
            place_of[block.pair_slot],
            block.member_place,
            block.member_run,
            len(block.slot_of),
            len(block.runs),
        )
        order = np.argsort(group, kind="stable").astype(np.int32)
        compared = np.bincount(block.pair_place, minlength=len(order))
        compared += np.bincount(block.member_place, weights=block.held[block.member_run], minlength=len(order)).astype(
            int
        )
        work = np.cumsum((block.extents.sizes[block.slot_of] * compared)[order])
        threads = min(self._threads, int(work[-1]) // _WORTH_A_THREAD + 1)
        # A part ends where a group does.
        ends = np.flatnonzero(np.diff(group[order], append=-1)) + 1
        cuts = ends[np.searchsorted(work[ends - 1], work[-1] * np.arange(1, threads) // threads)]
        return np.split(order, np.unique(cuts))


def _on_disk(block: _Block, wanted: Mask) -> tuple[npt.NDArray[np.int64], Ids]:
    """(slots, ids) of what is wanted, in the order in which it lies on disk."""
    slots = np.flatnonzero(wanted)
    ids = ids_of(block.ranks[slots])
    order = np.argsort(ids)
    return slots[order], ids[order]


def _places(sorted_ranks: Ranks, ranks: Ranks) -> Int32:
    return np.searchsorted(sorted_ranks, ranks).astype(np.int32)
