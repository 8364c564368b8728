"""`RunAutomaton`: where runs of windows that a document has stand in given texts, whatever repeats in either.

Each text is a sequence of *windows*, its n-grams by number, and so is each run of hits in a document. The suffix
automaton of all texts, each behind a separator of its own, has a state for each set of places at which the same
strings of windows end. `match` walks it along a run: after each window it knows the longest string that ends there and
stands in a text, at the cost of a step and a half per window, however periodic text and document are. All shorter
strings that end there belong to the state's *ancestors*, its suffix links.

A state keeps the longest of its strings that any document has, the number of documents that have it, and the last
document. An ancestor is always met with its longest string. `match` climbs to the first ancestor that this document has
met, whose own ancestors it has met too. So a document takes at most as many steps as there are states.

That is enough for maximal passages. Let a passage be maximal in a text, and let a document have it. The document's
longest string that ends there has the passage's state for an ancestor or is the passage itself: else it and the text
would share a longer one. So the passage is its state's longest string with a document, and each document that has it is
counted once. A state with one following window is passed over where the document goes on with that window. No passage
ends there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.saved_arrays import load_arrays, save_arrays
from pilekit.cutting.words import Int64, UInt32
from pilekit.errors import PilekitError
from pilekit.workers.kernels import compiled

Int32 = npt.NDArray[np.int32]

_MOST_STATES = 1 << 30


class Met(NamedTuple):
    """What documents have met in each state.

    windows     of the longest string, or 0, int32
    documents   that have it, int64
    last        the last of them, int64
    """

    windows: Int32
    documents: Int64
    last: Int64


class RunAutomaton(NamedTuple):
    """The states, of which 0 is the root.

    length   windows of the longest string of each state, int32
    link     the suffix link, int32
    window   the last window of the strings, int32
    only     the state that follows first, or 0, int32
    edge     the first of the edges to further states that follow, or 0, int32
    edges    state, following state and next edge of each, int32 [3, edges]
    slots    a hash table of edges, by state and window, int32
    start    the state that follows the root by each window, int32
    prefix   the state of each place in the texts, int32
    """

    length: Int32
    link: Int32
    window: Int32
    only: Int32
    edge: Int32
    edges: Int32
    slots: Int32
    start: Int32
    prefix: Int32

    @classmethod
    def build(cls, numbers: UInt32, first: Int64, windows: int) -> Self:
        """The automaton of texts whose windows are `numbers[first[i]:first[i + 1]]`, each below `windows`.

        `prefix` has a place for each number.
        """
        texts = len(first) - 1
        if 2 * (len(numbers) + texts + 1) > _MOST_STATES:
            raise PilekitError("the texts hold too many words for one pass; take some of them at a time")
        return cls(*_build(numbers, first, windows))

    def save(self, folder: Path) -> list[Path]:
        """Write the arrays into the folder; returns their files."""
        return save_arrays(folder, self, flushed=False)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The arrays in a folder, mapped into memory."""
        return load_arrays(folder, cls)

    def unmet(self) -> Met:
        """What no document has met yet."""
        states = len(self.length)
        return Met(np.zeros(states, np.int32), np.zeros(states, np.int64), np.full(states, -1, np.int64))

    def match(self, runs: Int64, document: int, met: Met, most: int) -> Int64:
        """Take in documents' hits; returns the first `most` documents of each string that was met, int64 [3, entries].

        runs       the document's index, the number of the first word and the number of the window of each hit, by
                   document and word, int64 [3, hits]
        document   the number of the first document
        entries    the state, the string's windows, and the hit with which it ends
        """
        room, entries = np.empty((3, 1024), np.int64), list[Int64]()
        begin, state, windows = 0, 0, 0
        while begin < runs.shape[1]:
            count, begin, state, windows = _match(
                tuple(self), runs, document, tuple(met), most, begin, state, windows, room
            )
            entries.append(room[:, :count].copy())
            if not count and begin < runs.shape[1]:
                room = np.empty((3, 2 * room.shape[1]), np.int64)
        return np.concatenate(entries, axis=1) if entries else room[:, :0]

    def maximal(self, first: Int64, windows: Int32) -> Int64:
        """The maximal strings of each text that documents have: text, first and last window, state, int64 [4, strings].

        Texts, and the strings of a text, come from the last to the first.

        first     the first window of each text, and the end
        windows   of the longest string of each state that a document has
        """
        return _maximal(tuple(self), first, windows, np.argsort(self.length, kind="stable"))


@compiled()
def _slot(state: int, window: int) -> np.uint64:
    key = (np.uint64(state) << np.uint64(32)) ^ np.uint64(window)
    key = (key ^ (key >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    return key ^ (key >> np.uint64(32))


@compiled()
def _following(
    state: int, window: Any, windows: Int32, only: Int32, edge: Int32, edges: Int32, slots: Int32, start: Int32
) -> tuple[int, int]:
    """The state that follows by a window, or 0, and its edge: -1 if it follows first."""
    if state == 0:
        return start[window], -1
    if only[state] and windows[only[state]] == window:
        return only[state], -1
    if edge[state]:
        mask = np.uint64(len(slots) - 1)
        slot = _slot(state, window) & mask
        while slots[slot]:
            at = slots[slot]
            if edges[0, at] == state and windows[edges[1, at]] == window:
                return edges[1, at], at
            slot = (slot + np.uint64(1)) & mask
    return 0, 0


@compiled()
def _insert(slots: Int32, edges: Int32, windows: Int32, at: int) -> None:
    mask = np.uint64(len(slots) - 1)
    slot = _slot(edges[0, at], windows[edges[1, at]]) & mask
    while slots[slot]:
        slot = (slot + np.uint64(1)) & mask
    slots[slot] = at


@compiled()
def _build(numbers: UInt32, first: Int64, windows: int) -> Any:
    texts, places = len(first) - 1, len(numbers)
    most = 2 * (places + texts + 1) + 1
    length, link, window = np.zeros(most, np.int32), np.zeros(most, np.int32), np.zeros(most, np.int32)
    only, edge = np.zeros(most, np.int32), np.zeros(most, np.int32)
    edges, slots = np.zeros((3, 64), np.int32), np.zeros(256, np.int32)
    start, prefix = np.zeros(windows + texts + 1, np.int32), np.zeros(places, np.int32)
    link[0], states, used, last = -1, 1, 1, 0
    for text in range(texts + 1):  # A last separator, because no passage goes on behind the last text.
        stop = first[text + 1] if text < texts else first[texts]
        for place in range(first[text] - 1, stop):
            symbol = np.int64(windows + text if place < first[text] else numbers[place])
            new, states = states, states + 1
            length[new], window[new] = length[last] + 1, symbol
            state, target = last, 0
            while state >= 0:
                target, _ = _following(state, symbol, window, only, edge, edges, slots, start)
                if target:
                    break
                if state == 0:
                    start[symbol] = new
                elif only[state] == 0:
                    only[state] = new
                else:
                    if used == edges.shape[1]:
                        edges, slots = _grown(edges, window)
                    edges[0, used], edges[1, used], edges[2, used] = state, new, edge[state]
                    edge[state] = used
                    _insert(slots, edges, window, used)
                    used += 1
                state = link[state]
            if target and length[state] + 1 == length[target]:
                link[new] = target
            elif target:
                copy, states = states, states + 1
                length[copy], link[copy], window[copy] = length[state] + 1, link[target], symbol
                only[copy], at = only[target], edge[target]
                while at:
                    if used == edges.shape[1]:
                        edges, slots = _grown(edges, window)
                    edges[0, used], edges[1, used], edges[2, used] = copy, edges[1, at], edge[copy]
                    edge[copy] = used
                    _insert(slots, edges, window, used)
                    used += 1
                    at = edges[2, at]
                while state >= 0:
                    there, at = _following(state, symbol, window, only, edge, edges, slots, start)
                    if there != target:
                        break
                    if state == 0:
                        start[symbol] = copy
                    elif at < 0:
                        only[state] = copy
                    else:
                        edges[1, at] = copy
                    state = link[state]
                link[target], link[new] = copy, copy
            last = new
            if place >= first[text]:
                prefix[place] = new
    return (
        *(length[:states].copy(), link[:states].copy(), window[:states].copy(), only[:states].copy()),
        *(edge[:states].copy(), edges[:, :used].copy(), slots, start, prefix),
    )


@compiled()
def _grown(edges: Int32, window: Int32) -> tuple[Int32, Int32]:
    count = edges.shape[1]
    more, slots = np.zeros((3, 2 * count), np.int32), np.zeros(8 * count, np.int32)
    more[:, :count] = edges
    for at in range(1, count):
        _insert(slots, more, window, at)
    return more, slots


@compiled()
def _match(
    automaton: Any, runs: Int64, document: int, met: Any, most: int, begin: int, state: int, count: int, entries: Int64
) -> tuple[int, int, int, int]:
    """Take in hits from `begin` on, as far as there is room; returns rows, and where and how to resume."""
    length, link, window, only, edge, edges, slots, start, _ = automaton
    windows, documents, last = met
    rows, hits = 0, runs.shape[1]
    for hit in range(begin, hits):
        name, symbol = document + runs[0, hit], runs[2, hit]
        if hit and (runs[0, hit - 1] != runs[0, hit] or runs[1, hit - 1] + 1 != runs[1, hit]):
            state, count = 0, 0
        before_state, before_count, before_rows = state, count, rows
        target, _ = _following(state, symbol, window, only, edge, edges, slots, start)
        while target == 0:
            state = link[state]
            count = length[state]
            target, _ = _following(state, symbol, window, only, edge, edges, slots, start)
        state, count = target, count + 1
        # All that follows needs room for a row of each ancestor; without it this hit is taken in again.
        goes_on = False
        if hit + 1 < hits and edge[state] == 0 and only[state]:
            is_next = runs[0, hit + 1] == runs[0, hit] and runs[1, hit + 1] == runs[1, hit] + 1
            goes_on = is_next and window[only[state]] == runs[2, hit + 1]
        at, needed = state, 0
        while at and (at == state or last[at] != name or windows[at] != length[at]):
            needed += 1
            at = link[at]
        if rows + needed > entries.shape[1]:
            return before_rows, hit, before_state, before_count
        at, size = state, count
        while at:
            if at != state or not goes_on:
                if windows[at] < size:
                    windows[at], documents[at], last[at] = size, 0, -1
                if windows[at] == size and last[at] != name:
                    last[at] = name
                    documents[at] += 1
                    if documents[at] <= most:
                        entries[0, rows], entries[1, rows], entries[2, rows] = at, size, hit
                        rows += 1
                elif at != state:
                    break
            at = link[at]
            size = length[at]
    # The run may go on in no later call: a batch ends with a document.
    return rows, hits, 0, 0


@compiled()
def _maximal(automaton: Any, first: Int64, windows: Int32, order: Int64) -> Int64:
    link, prefix = automaton[1], automaton[8]
    top, rows, count = np.zeros(len(windows), np.int32), np.empty((4, len(prefix)), np.int64), 0
    for state in order[1:]:
        top[state] = state if windows[state] else top[link[state]]
    for text in range(len(first) - 2, -1, -1):
        least = first[text + 1]
        for place in range(first[text + 1] - 1, first[text] - 1, -1):
            state = top[prefix[place]]
            begin = place - windows[state] + 1
            if state and begin < least:
                rows[0, count], rows[1, count], rows[2, count] = text, begin - first[text], place - first[text]
                rows[3, count] = state
                count, least = count + 1, begin
    return rows[:, :count]
