"""Recall is at least that of the theory, for every kind of edit and at every similarity.

Bounds are exact: the chance of finding so few candidates must not be below one in a million (4.8 standard deviations if
a bin has many pairs). There are 280 bounds in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pilekit.dedup.match.candidates import find_candidates
from pilekit.dedup.match.population import Population, ids_of
from pilekit.dedup.run import deduplicate
from pilekit.dedup.sketch.bands import Bands, choose_bands
from tests.dedup.checking import removed_rows, write_corpus
from tests.dedup.planted import EDITS, NGRAM, Pair, planted
from tests.dedup.sketching import sketch
from tests.shards import making

LEAST_CHANCE = 1e-6
BINS = [(percent / 100, (percent + 5) / 100) for percent in range(50, 100, 5)]


@dataclass(frozen=True)
class Outcome:
    """The fate of a planted pair."""

    edit: str
    similarity: float
    promised: float
    """The probability that it becomes a candidate."""
    candidate: bool
    removed: bool
    """Whether one of the two is gone."""


def outcomes(folder: Path, threshold: float, pairs: int, num_perm: int = 128) -> list[Outcome]:
    """Plant this many pairs in a corpus in `folder`, match it as `deduplicate` does, and deduplicate it."""
    documents = planted(pairs, seed=round(1000 * threshold), words=(60, 300))
    corpus = write_corpus(folder / "corpus", {"00": [making.record(text, "ArXiv") for text in documents.texts]})
    bands = choose_bands(threshold, num_perm)
    candidates = candidate_pairs(corpus / "00.jsonl.zst", bands, folder)
    deduplicate(corpus, threshold=threshold, num_perm=num_perm, out=folder / "out", write=False, jobs=1)
    removed = {row["number"] for row in removed_rows(folder / "out")}

    def outcome(pair: Pair) -> Outcome:
        both = {pair.original, pair.copy}
        return Outcome(
            pair.edit,
            pair.similarity,
            bands.probability(pair.similarity),
            (min(both), max(both)) in candidates,
            bool(both & removed),
        )

    return [outcome(pair) for pair in documents.pairs]


def candidate_pairs(path: Path, bands: Bands, folder: Path) -> set[tuple[int, int]]:
    """The document numbers, lower one first, of all pairs that the matching step would have compared."""
    made = sketch(path, folder / "sketches", bands=bands, ngram=NGRAM, threads=1)
    population = Population([made], "longest", folder)
    candidates = find_candidates(
        population, bands, np.zeros(population.documents, dtype=np.bool_), folder, 64 << 20, jobs=1
    )
    assert not candidates.runs
    ids = [np.sort(ids_of(table[::2]), axis=0) for table in candidates.rows.chunks()]
    return {(one, other) for table in ids for one, other in table.T.tolist()}


def within(found: Iterable[Outcome], least: float, below: float = 1.0) -> list[Outcome]:
    """The pairs with a similarity in this range."""
    return [one for one in found if least <= one.similarity < below]


def chance_of_so_few(found: Sequence[Outcome]) -> float:
    """The probability that no more of these pairs become candidates than did, if the theory holds for each.

    Pairs are independent, each with its own probability; the distribution of their number is summed exactly.
    """
    distribution = np.ones(1)
    for one in found:
        distribution = np.append(distribution * (1 - one.promised), 0) + np.append(0, distribution * one.promised)
    return float(distribution[: 1 + sum(one.candidate for one in found)].sum())


@pytest.mark.parametrize(
    "threshold", [0.8, *(pytest.param(other, marks=pytest.mark.slow) for other in (0.5, 0.7, 0.9))]
)
def test_planted_pairs_are_found_as_often_as_the_theory_says(threshold: float, tmp_path: Path) -> None:
    found = outcomes(tmp_path, threshold, 6000)
    for least, below in BINS:
        for edits in (list(EDITS), *([edit] for edit in EDITS)):
            some = [one for one in within(found, least, below) if one.edit in edits]
            assert len(some) >= 10
            assert chance_of_so_few(some) > LEAST_CHANCE, (least, edits)
    above = within(found, threshold)
    assert len(above) > 400
    assert sum(one.removed for one in above) >= 0.99 * len(above)
    # Candidates are compared exactly.
    assert all(one.candidate for one in above if one.removed)
    assert not any(one.removed for one in found if one.similarity < threshold)


def test_the_chance_is_that_of_a_binomial_distribution() -> None:
    def some(found: int, of_all: int, promised: float) -> list[Outcome]:
        return [Outcome("", 0.8, promised, number < found, False) for number in range(of_all)]

    assert chance_of_so_few(some(0, 3, 0.5)) == 1 / 8
    assert chance_of_so_few(some(2, 3, 0.5)) == 7 / 8
    assert chance_of_so_few(some(3, 3, 0.999)) == pytest.approx(1)
    # The usual rule for bands finds 40 % where 99 % are promised.
    assert chance_of_so_few(some(20, 50, 0.99)) < LEAST_CHANCE
    assert chance_of_so_few([*some(1, 1, 0.25), *some(0, 1, 0.5)]) == 0.25 * 0.5 + 0.75 * 0.5 + 0.75 * 0.5
