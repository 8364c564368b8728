"""The sweep: candidates decided in keeper order, a block of some thousand documents at a time.

A block is put into tables, in which a document is a slot (a number in keeper order) and a document to be decided a
place. The shingle sets that may be looked at are read in the order in which they lie on disk, each once for a block; a
block whose sets would not fit into memory is halved. A document whose own candidates' sets would not fit is compared
with them one after the other, from the disk. Then the kernels take over (comparing.py).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pilekit.dedup.bits import get_bits, no_bits, set_bits
from pilekit.dedup.comparing import Int32, Int64, decide, groups, needed, possible, to_load
from pilekit.dedup.population import Ranks, ids_of
from pilekit.dedup.representatives import MOST, Representatives, room_of
from pilekit.dedup.rows import Table
from pilekit.dedup.shingle_store import WORD, ShingleStore
from pilekit.dedup.shingles import UInt64

Mask = npt.NDArray[np.bool_]

_WORTH_A_THREAD = 1 << 20
"""So many values to be merged."""

_OWN = np.uint64(63)
_NO_VALUES, _NOT_KNOWN = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class _Block:
    """Documents to be decided, by place, and all that they may be compared with, by slot; both in keeper order."""

    ranks: Ranks  # [slots], as the next four
    begins: Int64
    sizes: Int64
    removed: Mask
    wanted: Mask
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

    @property
    def wanted_bytes(self) -> int:
        """What the sets take that may be looked at."""
        return int(self.sizes[self.wanted].sum()) * WORD


class Sweep:
    """Goes through the documents in keeper order.

    compared        how many pairs of sets were compared so far
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
        if block.wanted_bytes <= self._memory:
            return self._decide(block, _NOT_KNOWN)
        if len(later) == 1:
            return self._decide(block, self._known(block))
        middle = later[len(later) // 2]
        pair, member = (int(np.searchsorted(table[0], middle)) for table in (pairs, members))
        del block
        first = self.decide(pairs[:, :pair], members[:, :member])
        return np.concatenate([first, self.decide(pairs[:, pair:], members[:, member:])], axis=1)

    def _block(self, later: Ranks, pairs: Table, members: Table) -> _Block:
        runs, first, run_of = np.unique(members[1], return_index=True, return_inverse=True)
        member_run: Int32 = run_of.astype(np.int32)
        room = room_of(members[2, first])
        kept, held, let_go = self._representatives.read(runs, room)
        is_held = np.arange(MOST) < held[:, None]
        ranks = np.unique(np.concatenate([later, pairs[1], kept[is_held]]))

        ids = ids_of(ranks)
        order = np.argsort(ids)
        begins, sizes = np.empty((2, len(ids)), dtype=np.int64)
        begins[order], sizes[order] = self._store.extents(ids[order])
        removed = get_bits(self._removed, ids)

        slot_of, own = _places(ranks, later), later >> _OWN == 1
        pair_place, pair_slot = _places(later, pairs[0]), _places(ranks, pairs[1])
        open = own[pair_place] & ~removed[pair_slot]
        open &= possible(sizes[slot_of[pair_place]], sizes[pair_slot], self._threshold)
        pair_place, pair_slot = pair_place[open], pair_slot[open]
        member_place = _places(later, members[0])
        representatives = np.where(is_held, _places(ranks, kept), 0).astype(np.int32)
        wanted = to_load(
            slot_of, own, pair_slot, member_place, member_run, representatives, held, sizes, self._threshold
        )
        wanted[slot_of[pair_place]] = True
        return _Block(
            ranks,
            begins,
            sizes,
            removed,
            wanted,
            slot_of,
            own,
            pair_place,
            pair_slot,
            member_place,
            member_run,
            runs,
            representatives,
            held,
            room,
            let_go,
        )

    def _decide(self, block: _Block, known: Int64) -> Table:
        """Decide the documents of a block and remember what became of them; `known` as in `comparing.decide`."""
        places, hot_before = len(block.slot_of), int(np.count_nonzero(block.let_go == 2))
        partner, similarity = np.empty(places, dtype=np.int32), np.empty(places, dtype=np.float64)
        unsure = np.zeros(places, dtype=np.bool_)
        begins, values = (block.begins, _NO_VALUES) if len(known) else self._load(block)
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
                block.sizes,
                begins,
                values,
                known,
                self._threshold,
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

    def _load(self, block: _Block) -> tuple[Int64, UInt64]:
        """Where each set that is wanted begins, by slot, and the sets."""
        slots = np.flatnonzero(block.wanted)
        ids = ids_of(block.ranks[slots])
        order = np.argsort(ids)
        slots, sizes = slots[order], block.sizes[slots[order]]
        values = self._store.load(ids[order], block.begins[slots], sizes)
        begins = np.zeros(len(block.sizes), dtype=np.int64)
        begins[slots] = np.cumsum(sizes) - sizes
        return begins, values

    def _known(self, block: _Block) -> Int64:
        """What the one document of this block shares with each that it may be compared with; -1: not enough."""
        slot = int(block.slot_of[0])
        known = np.full(len(block.ranks), -1, dtype=np.int64)
        ids, sizes = ids_of(block.ranks).tolist(), block.sizes.tolist()
        for other in np.flatnonzero(block.wanted).tolist():
            if other != slot:
                enough = needed(sizes[slot], sizes[other], self._threshold)
                known[other] = self._store.shared_if_enough(ids[slot], ids[other], enough)
        return known

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
        work = np.cumsum((block.sizes[block.slot_of] * compared)[order])
        threads = min(self._threads, int(work[-1]) // _WORTH_A_THREAD + 1)
        # A part ends where a group does.
        ends = np.flatnonzero(np.diff(group[order], append=-1)) + 1
        cuts = ends[np.searchsorted(work[ends - 1], work[-1] * np.arange(1, threads) // threads)]
        return np.split(order, np.unique(cuts))


def _places(sorted_ranks: Ranks, ranks: Ranks) -> Int32:
    return np.searchsorted(sorted_ranks, ranks).astype(np.int32)
