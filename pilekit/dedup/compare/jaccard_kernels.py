"""Decide documents in keeper order, each by comparing it with kept ones: the kernels of `verify.py`.

How many shingles two documents must share follows from the sizes of their sets alone. So a pair is dismissed if one set
is too large for the other, and if their bitmaps differ in too many places (difference.py). What is left is merged, as
sets are sorted, but only as far as that many can still be reached; the merge has no branches, and takes 1.5 ns a value.

What becomes of a document depends on the ones before it, so one cannot be decided beside another. But it depends on
those only that it is compared with: documents fall into groups that share no comparison, and groups go to threads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pilekit.dedup.compare.difference import least_difference
from pilekit.dedup.sketch.shingles import UInt64
from pilekit.kernels import compiled

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]

STEPS = 32
"""Of a merge, after which it is looked at whether it is worth going on."""


@compiled()
def needed(one: int, other: int, threshold: float) -> int:
    """How many shingles sets of these sizes must share for a similarity of `threshold`; more than they have: none do.

    The least `shared` with `shared / (one + other - shared) >= threshold`, both as float64.
    """
    total = one + other
    shared = int(threshold * total / (1 + threshold))
    while shared > 0 and (shared - 1) / (total - shared + 1) >= threshold:
        shared -= 1
    while shared <= min(one, other) and shared / (total - shared) < threshold:
        shared += 1
    return shared


@compiled()
def shared_if_enough(values: UInt64, i: int, i_end: int, j: int, j_end: int, enough: int) -> int:
    """How many values the sorted `values[i:i_end]` and `values[j:j_end]` share, or -1 if fewer than `enough`."""
    shared = 0
    while True:
        left = min(i_end - i, j_end - j)
        if shared + left < enough:
            return -1
        if left == 0:
            return shared
        for _ in range(min(STEPS, left)):
            one, other = values[i], values[j]
            shared += int(one == other)
            i += int(one <= other)
            j += int(other <= one)


@compiled()
def possible(one: Int64, other: Int64, threshold: float) -> npt.NDArray[np.bool_]:
    """Whether sets of these sizes can reach the threshold; bool [pairs]."""
    found = np.empty(len(one), dtype=np.bool_)
    for i in range(len(one)):
        found[i] = needed(one[i], other[i], threshold) <= min(one[i], other[i])
    return found


@compiled()
def enough_for(one: int, other: int, threshold: float, sizes: Int64) -> int:
    """How many shingles the sets at two slots must share; -1 if one of them has fewer."""
    enough = needed(sizes[one], sizes[other], threshold)
    return enough if enough <= min(sizes[one], sizes[other]) else -1


@compiled()
def may_share(one: int, other: int, enough: int, sizes: Int64, bits: UInt64, bits_at: Int64, words: Int64) -> bool:
    """False if it is certain that the sets at two slots share fewer than `enough` shingles.

    sizes                 int64 [slots]
    bits, bits_at, words  a slot's bitmap is `bits[bits_at[slot]:][:words[slot]]`; no words: it has none
    """
    difference = least_difference(bits, bits_at[one], words[one], bits_at[other], words[other])
    return bool(sizes[one] + sizes[other] - difference >= 2 * enough)


@compiled()
def _may_reach(
    one: int, other: int, threshold: float, sizes: Int64, bits: UInt64, bits_at: Int64, words: Int64
) -> bool:
    enough = enough_for(one, other, threshold, sizes)
    return enough >= 0 and may_share(one, other, enough, sizes, bits, bits_at, words)


@compiled()
def to_look_at(
    slot_of: Int32,
    own: npt.NDArray[np.bool_],
    pair_place: Int32,
    pair_slot: Int32,
    member_place: Int32,
    member_run: Int32,
    representatives: Int32,
    held: Int32,
    threshold: float,
    sizes: Int64,
    bits: UInt64,
    bits_at: Int64,
    words: Int64,
) -> npt.NDArray[np.bool_]:
    """The slots whose sets `decide` may look at, arguments as there: bool [slots]."""
    wanted = np.zeros(len(sizes), dtype=np.bool_)
    for i in range(len(pair_place)):
        slot, other = slot_of[pair_place[i]], pair_slot[i]
        if _may_reach(slot, other, threshold, sizes, bits, bits_at, words):
            wanted[slot] = wanted[other] = True
    for i in range(len(member_place)):
        slot, run = slot_of[member_place[i]], member_run[i]
        wanted[slot] = True  # It may become a representative.
        if own[member_place[i]]:
            for other in representatives[run, : held[run]]:
                if not wanted[other]:
                    wanted[other] = _may_reach(slot, other, threshold, sizes, bits, bits_at, words)
    return wanted


@compiled()
def groups(pair_later: Int32, pair_earlier: Int32, member: Int32, run: Int32, documents: int, runs: int) -> Int32:
    """A number for each document, the same for those that must be decided one after the other; int32 [documents].

    pair_later, pair_earlier   documents that are compared; -1 for an earlier one that is decided already
    member, run                that a document is a member of a hot run
    """
    parent = np.arange(documents).astype(np.int32)
    last = np.full(runs, -1, dtype=np.int32)
    for i in range(len(pair_later)):
        if pair_earlier[i] >= 0:
            _join(parent, pair_later[i], pair_earlier[i])
    for i in range(len(member)):
        if last[run[i]] >= 0:
            _join(parent, member[i], last[run[i]])
        last[run[i]] = member[i]
    for document in range(documents):
        parent[document] = _root(parent, parent[document])
    return parent


@compiled()
def _root(parent: Int32, document: np.int32) -> np.int32:
    while parent[document] != document:
        parent[document] = parent[parent[document]]
        document = parent[document]
    return document


@compiled()
def _join(parent: Int32, one: np.int32, other: np.int32) -> None:
    one, other = _root(parent, one), _root(parent, other)
    # The first of a group is its root.
    parent[max(one, other)] = min(one, other)


@compiled()
def decide(
    order: Int32,
    slot_of: Int32,
    own: npt.NDArray[np.bool_],
    pair_begin: Int64,
    pair_slot: Int32,
    member_begin: Int64,
    member_run: Int32,
    representatives: Int32,
    held: Int32,
    room: Int32,
    let_go: npt.NDArray[np.uint8],
    threshold: float,
    sizes: Int64,
    bits: UInt64,
    bits_at: Int64,
    words: Int64,
    begins: Int64,
    values: UInt64,
    known: Int64,
    removed: npt.NDArray[np.bool_],
    partner: Int32,
    similarity: Float64,
    unsure: npt.NDArray[np.bool_],
) -> int:
    """Decide some documents; returns how many pairs of sets were compared, if only by their bitmaps.

    Documents have slots, which are in keeper order; the ones to be decided have places, which are too.

    order                      int32, the places to decide, a group's one after the other
    slot_of, own               [places]: its slot; whether it may be removed at all
    pair_begin, pair_slot      the slots it is paired with are `pair_slot[pair_begin[place]:pair_begin[place + 1]]`
    member_begin, member_run   the hot runs it is a member of, in the same way
    representatives            int32 [runs, most]: slots of kept members of the run, the first `held[run]` of them, the
                               one that was of use last first; `room[run]` is how many it may have
    let_go                     uint8 [runs]: whether it had to let go of one (1), and a document was unsure for that (2)
    sizes, bits, bits_at, words   [slots]: as in `may_share`
    begins, values             the set at a slot is `values[begins[slot]:][:sizes[slot]]`
    known                      [slots]: what the one document to decide shares with others, in the place of `values`;
                               -1: not enough. Empty: there are `values`

    Written are removed [slots] and, by place, partner (the slot of the kept document it is most similar to; -1: it is
    kept), similarity, and unsure: it is kept, and one of its runs had let go of documents it may resemble.
    """
    seen = np.full(len(sizes), -1, dtype=np.int32)
    compared = 0
    for place in order:
        slot = slot_of[place]
        best, best_similarity = -1, 0.0
        pairs = pair_begin[place + 1] - pair_begin[place]
        runs = member_run[member_begin[place] : member_begin[place + 1]]
        for source in range(-1, len(runs) if own[place] else -1):
            for i in range(pairs if source < 0 else held[runs[source]]):
                other = pair_slot[pair_begin[place] + i] if source < 0 else representatives[runs[source], i]
                if removed[other] or seen[other] == place:
                    continue
                seen[other] = place
                enough = enough_for(slot, other, threshold, sizes)
                if enough < 0:
                    continue
                compared += 1
                if not may_share(slot, other, enough, sizes, bits, bits_at, words):
                    continue
                if len(known):
                    shared = known[other]
                else:
                    begin, other_begin = begins[slot], begins[other]
                    shared = shared_if_enough(
                        values, begin, begin + sizes[slot], other_begin, other_begin + sizes[other], enough
                    )
                if shared >= enough:
                    found = shared / (sizes[slot] + sizes[other] - shared)
                    if found > best_similarity or (found == best_similarity and other < best):
                        best, best_similarity = other, found
        partner[place], similarity[place], removed[slot] = best, best_similarity, best >= 0
        for run in runs:
            if best < 0:
                if let_go[run] and own[place]:
                    unsure[place] = True
                    let_go[run] = 2
                elif held[run] == room[run]:
                    let_go[run] = max(let_go[run], 1)
                held[run] = min(held[run] + 1, room[run])
                _to_front(representatives[run], slot, held[run] - 1)
            else:
                for i in range(held[run]):
                    if representatives[run, i] == best:
                        _to_front(representatives[run], best, i)
                        break
    return compared


@compiled()
def _to_front(slots: Int32, slot: int, place: int) -> None:
    """Put `slot` first; what was before `place` moves by one, what was there is gone."""
    for i in range(place, 0, -1):
        slots[i] = slots[i - 1]
    slots[0] = slot
