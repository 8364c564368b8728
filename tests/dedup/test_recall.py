"""Recall is at least that of the theory, for every kind of edit and at every similarity.

Bounds are exact: the chance of finding so few candidates must not be below one in a million (4.8 standard deviations if
a bin has many pairs). There are 280 bounds in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from pilekit.artifacts.sort.scratch_files import Scratch
from pilekit.dedup.document_table import DocumentTable, ids_of
from pilekit.dedup.matching import find_candidates
from pilekit.dedup.run import dedup_corpus
from pilekit.dedup.sketch.bands import choose_bands
from tests.dedup.checking import removed_rows, write_corpus
from tests.dedup.given import sketch
from tests.dedup.planted import EDITS, NGRAM, planted
from tests.shards import making

LEAST_CHANCE = 1e-6
BINS = [(percent / 100, (percent + 5) / 100) for percent in range(50, 100, 5)]


class Outcome(NamedTuple):
    """The fate of a planted pair.

    promised    the probability that it becomes a candidate
    removed     whether one of the two is gone
    """

    edit: str
    similarity: float
    promised: float
    candidate: bool
    removed: bool


def outcomes(folder: Path, threshold: float, pairs: int) -> list[Outcome]:
    """Plant this many pairs in a corpus in `folder`, match it as `dedup_corpus` does, and deduplicate it."""
    documents = planted(pairs, seed=round(1000 * threshold), words=(60, 300))
    corpus = write_corpus(folder / "corpus", {"00": [making.record(text, "ArXiv") for text in documents.texts]})
    bands = choose_bands(threshold, 128)
    made = sketch(corpus / "00.jsonl.zst", folder / "sketches", bands=bands, ngram=NGRAM, threads=1)
    document_table = DocumentTable([made], "longest", folder)
    copies = np.zeros(document_table.documents, dtype=np.bool_)
    found = find_candidates(document_table, range(bands.bands), copies, Scratch(folder, 64 << 20), jobs=1)
    assert not found.runs
    candidates = {frozenset(ids) for table in found.rows.chunks() for ids in ids_of(table[::2]).T.tolist()}
    dedup_corpus(corpus, threshold=threshold, out=folder / "out", write=False, jobs=1)
    removed = {row["number"] for row in removed_rows(folder / "out")}
    return [
        Outcome(
            pair.edit,
            pair.similarity,
            bands.probability(pair.similarity),
            frozenset((pair.original, pair.copy)) in candidates,
            bool(removed & {pair.original, pair.copy}),
        )
        for pair in documents.pairs
    ]


def chance_of_so_few(found: Sequence[Outcome]) -> float:
    """The probability that no more of these pairs become candidates than did, if the theory holds for each.

    Pairs are independent, each with its own probability; the distribution of their number is summed exactly.
    """
    distribution = np.ones(1)
    for one in found:
        distribution = np.append(distribution * (1 - one.promised), 0) + np.append(0, distribution * one.promised)
    return float(distribution[: 1 + sum(one.candidate for one in found)].sum())


@pytest.mark.parametrize(
    ("threshold", "pairs"),
    [(0.8, 1500), *(pytest.param(other, 6000, marks=pytest.mark.slow) for other in (0.5, 0.7, 0.8, 0.9))],
)
def test_planted_pairs_are_found_as_often_as_the_theory_says(threshold: float, pairs: int, tmp_path: Path) -> None:
    found = outcomes(tmp_path, threshold, pairs)
    for least, below in BINS:
        for edits in (list(EDITS), *([edit] for edit in EDITS)):
            some = [one for one in found if least <= one.similarity < below and one.edit in edits]
            assert len(some) >= pairs // 600
            assert chance_of_so_few(some) > LEAST_CHANCE, (least, edits)
    above = [one for one in found if one.similarity >= threshold]
    assert len(above) > pairs / 8
    assert sum(one.removed for one in above) >= 0.99 * len(above)
    # Candidates are compared exactly.
    assert all(one.candidate for one in above if one.removed)
    assert not any(one.removed for one in found if one.similarity < threshold)
    # The bounds are narrow: the usual rule for bands finds 40 % where 99 % are promised.
    usual = [Outcome("", 0.8, 0.99, number < 20, False) for number in range(50)]
    assert chance_of_so_few(usual) < LEAST_CHANCE
