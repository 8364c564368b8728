"""The maximal passages of given texts that documents have: what a shard holds, and the sum of all shards.

`ShardPassages` takes in batches. It keeps counts for each state of the `RunAutomaton`, and the places of few documents
for states that documents have met. At the end only the states of passages that are maximal in this shard are kept,
because a passage that is maximal in the corpus is maximal in each shard that holds it. So a result grows with the
texts and not with the corpus. `joined` adds up the shards in their order.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np

from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.words import Int64, characters_before
from pilekit.documents import DocumentBatch
from pilekit.trace.run_automaton import RunAutomaton

WORDS_AROUND = 8
_CHARACTERS_AROUND = 400


class Place(msgspec.Struct, array_like=True):
    """Where a document has a passage first: characters in it, the words before, the exact text, the words behind."""

    number: int
    subset: str
    start: int
    end: int
    before: str
    text: str
    after: str


class StatePlaces(msgspec.Struct, array_like=True):
    """The longest string of a state that documents have, their number, and the places of the first few."""

    state: int
    windows: int
    documents: int
    places: list[Place]


class MaximalPassage(NamedTuple):
    """Words `begin` to `end` of a text, the documents that have them, and the places of the first by shard."""

    text: int
    begin: int
    end: int
    documents: int
    places: list[tuple[str, Place]]


class ShardPassages:
    """The passages that the documents of one shard share with the texts.

    most     so many documents are listed for each
    common   no document is listed for a passage that more have; 0: some for each
    """

    def __init__(self, ngrams: NGrams, automaton: RunAutomaton, most: int, common: int):
        self._ngrams, self._automaton, self._most, self._common = ngrams, automaton, most, common
        self._met, self._documents = automaton.unmet(), 0
        self._places: dict[int, tuple[int, list[Place]]] = {}

    def add(self, batch: DocumentBatch) -> None:
        """Take in the documents of a batch."""
        hits = self._ngrams.find(batch)
        documents, _, begins, ends, _ = hits.T
        runs = np.ascontiguousarray(hits.T[[0, 1, 4]])
        states, windows, last = self._automaton.match(runs, self._documents, self._met, self._most)
        self._documents += len(batch)
        if not len(states):
            return
        data, offsets = batch.utf8()
        document, begin, end = documents[last], begins[last - windows + 1], ends[last]
        places, inverse = np.unique(np.concatenate([offsets[document], begin, end]), return_inverse=True)
        origin, start, stop = characters_before(data, places)[inverse].reshape(3, -1)
        columns = states, windows, document, start - origin, stop - origin
        for state, count, index, start_at, end_at in zip(*(column.tolist() for column in columns), strict=True):
            kept, of_state = self._places.get(state, (0, []))
            if kept != count:
                self._places[state] = count, (of_state := [])
            of_state.append(_place(batch, index, start_at, end_at))

    def result(self, first: Int64) -> list[StatePlaces]:
        """The states of the passages that are maximal in this shard, ascending.

        first   the first window of each text, and the end
        """
        states = np.unique(self._automaton.maximal(first, self._met.windows)[3]).tolist()
        return [
            StatePlaces(state, windows, documents, [] if documents > self._common > 0 else places)
            for state, documents in zip(states, self._met.documents[states].tolist(), strict=True)
            for windows, places in [self._places[state]]
        ]


def _place(batch: DocumentBatch, index: int, start: int, end: int) -> Place:
    text = batch.texts[index]
    before = text[max(0, start - _CHARACTERS_AROUND) : start].split()[-WORDS_AROUND:]
    after = text[end : end + _CHARACTERS_AROUND].split(None, WORDS_AROUND)[:WORDS_AROUND]
    subset, number = batch.subsets[index], int(batch.numbers[index])
    return Place(number, subset, start, end, " ".join(before), text[start:end], " ".join(after))


def joined(
    automaton: RunAutomaton,
    first: Int64,
    ngram: int,
    shards: Iterable[tuple[str, list[StatePlaces]]],
    most: int,
    common: int,
) -> Iterator[MaximalPassage]:
    """The maximal passages of all texts, by text and first word.

    shards         the name of each shard in the corpus's order, and its result
    most, common   those of `ShardPassages`
    """
    met, places = automaton.unmet(), dict[int, list[tuple[str, Place]]]()
    for shard, states in shards:
        for here in states:
            state = here.state
            if here.windows > met.windows[state]:
                met.windows[state], met.documents[state], places[state] = here.windows, 0, []
            if here.windows == met.windows[state]:
                met.documents[state] += here.documents
                places[state] += [(shard, place) for place in here.places[: most - len(places[state])]]
                if met.documents[state] > common > 0:
                    places[state] = []
    for text, begin, last, state in automaton.maximal(first, met.windows).T[::-1].tolist():
        yield MaximalPassage(text, begin, last + ngram, int(met.documents[state]), places[state])


def is_exact(passage: str, place: str) -> bool:
    """Whether two passages of equal words differ in white space, and marks at their ends, at most."""
    return passage.strip(_marks()).split() == place.strip(_marks()).split()


@cache
def _marks() -> str:
    """All characters of the Unicode categories P and S, and white space."""
    characters = map(chr, range(0x20000))
    return "".join(mark for mark in characters if mark.isspace() or unicodedata.category(mark)[0] in "PS")
