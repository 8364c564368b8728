"""`MaximalPassages`: the maximal passages of given texts that a corpus has, added up from its shards.

The numbers of all shards are added up first. They say which passages are maximal. Then the places are read, those of
some thousand passages at a time, in the order of the texts. So memory holds no more places than that, however many
passages there are, and each shard's files are open only while they are read.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pilekit.cutting.words import Int64
from pilekit.trace.run_automaton import RunAutomaton
from pilekit.trace.shard_passages import Place, places_at, places_file

_PLACES_AT_A_TIME = 1 << 15


class MaximalPassage(NamedTuple):
    """Words `begin` to `end` of a text, the documents that have them, and the places of the first by shard.

    new   words that stand in no earlier passage of the text
    """

    begin: int
    end: int
    new: int
    documents: int
    places: list[tuple[str, Place]]


class MaximalPassages:
    """The maximal passages of all texts, by text and first word.

    numbers     the text of each, int64 [passages]
    documents   the documents that have each, int64 [passages]
    new         words of each that stand in no earlier passage of its text, int64 [passages]
    """

    def __init__(
        self,
        automaton: RunAutomaton,
        first: Int64,
        ngram: int,
        shards: Sequence[tuple[str, Path]],
        most: int,
        common: int,
    ):
        """The sum of the shards.

        first          the first window of each text, and the end
        ngram          words of a window
        shards         the name of each shard in the corpus's order, and the file that `ShardPassages` wrote
        most, common   those of `ShardPassages`
        """
        met = automaton.unmet()
        for _, path in shards:
            states, windows, documents, _ = np.load(path)
            is_longer = windows > met.windows[states]
            met.windows[states[is_longer]], met.documents[states[is_longer]] = windows[is_longer], 0
            is_same = windows == met.windows[states]
            met.documents[states[is_same]] += documents[is_same]
        self.numbers, self._begins, last, self._states = automaton.maximal(first, met.windows)[:, ::-1]
        self._ends = last + ngram
        before = np.where(np.diff(self.numbers, prepend=-1) == 0, np.append(0, self._ends[:-1])[: len(last)], 0)
        self.new = self._ends - np.maximum(self._begins, before)
        self.documents, self._windows = met.documents[self._states], met.windows
        self._shards, self._most, self._common = shards, most, common

    def by_text(self, texts: int) -> Iterator[list[MaximalPassage]]:
        """The passages of each of so many texts; of a common passage no place is given."""
        bounds = np.searchsorted(self.numbers, np.arange(texts + 1))
        at_a_time, text = max(1, _PLACES_AT_A_TIME // self._most), 0
        while text < texts:
            stop = max(text + 1, int(np.searchsorted(bounds, bounds[text] + at_a_time, "right")) - 1)
            some = slice(bounds[text], bounds[stop])
            is_listed = (self.documents[some] <= self._common) | (self._common == 0)
            places = self._places(np.unique(self._states[some][is_listed]))
            columns = self._begins, self._ends, self.new, self.documents, self._states
            rows = zip(*(column[some].tolist() for column in columns), strict=True)
            passages = [
                MaximalPassage(begin, end, new, documents, places.get(state, []))
                for begin, end, new, documents, state in rows
            ]
            for begin, end in zip(bounds[text:stop], bounds[text + 1 : stop + 1], strict=True):
                yield passages[begin - some.start : end - some.start]
            text = stop

    def _places(self, states: Int64) -> dict[int, list[tuple[str, Place]]]:
        """The first places of each of these states, which are ascending."""
        found: dict[int, list[tuple[str, Place]]] = {state: [] for state in states.tolist()}
        for shard, path in self._shards:
            of_shard, windows, _, ends = np.load(path)
            at = np.searchsorted(of_shard, states)
            at = at[at < len(of_shard)]
            is_there = (of_shard[at] == states[: len(at)]) & (windows[at] == self._windows[states[: len(at)]])
            if not is_there.any():
                continue
            with places_file(path).open("rb") as file:
                for place in at[is_there].tolist():
                    kept = found[int(of_shard[place])]
                    if len(kept) < self._most:
                        here = places_at(file, int(ends[place - 1]) if place else 0, int(ends[place]))
                        kept += [(shard, one) for one in here[: self._most - len(kept)]]
        return found


def is_exact(passage: str, place: str) -> bool:
    """Whether two passages of equal words differ in white space, and marks at their ends, at most."""
    return passage.strip(_marks()).split() == place.strip(_marks()).split()


@cache
def _marks() -> str:
    """All characters of the Unicode categories P and S, and white space."""
    characters = map(chr, range(0x20000))
    return "".join(mark for mark in characters if mark.isspace() or unicodedata.category(mark)[0] in "PS")
