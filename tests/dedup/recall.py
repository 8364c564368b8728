"""Recall by similarity: of planted pairs how many become candidates, beside the theory, and how many the result finds.

A pair of similarity s becomes a candidate with a probability of 1 - (1 - s^rows)^bands. For a bin of similarities the
theory is the mean of that over the bin's pairs, each with its own exact similarity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pilekit.dedup.match.candidates import find_candidates
from pilekit.dedup.match.population import Population, ids_of
from pilekit.dedup.run import deduplicate
from pilekit.dedup.sketch.bands import Bands, choose_bands
from tests.dedup.checking import removed_rows, write_corpus
from tests.dedup.planted import EDITS, NGRAM, Pair, planted
from tests.dedup.sketching import sketch
from tests.shards import making

BINS = [(percent / 100, (percent + 5) / 100) for percent in range(50, 100, 5)]


@dataclass(frozen=True)
class Outcome:
    """What became of a planted pair."""

    edit: str
    similarity: float
    promised: float
    """With which probability it becomes a candidate."""
    candidate: bool
    removed: bool
    """Whether one of the two is gone."""


def outcomes(folder: Path, threshold: float, pairs: int, num_perm: int = 128) -> tuple[Bands, list[Outcome]]:
    """Plant so many pairs in a corpus in `folder`, match it as `deduplicate` does, and deduplicate it."""
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

    return bands, [outcome(pair) for pair in documents.pairs]


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
    """Those of pairs that are so similar."""
    return [one for one in found if least <= one.similarity < below]


def chance_of_so_few(found: Sequence[Outcome]) -> float:
    """With which probability no more of these pairs become candidates than did, if the theory holds for each.

    Pairs are independent, each with a probability of its own: the distribution of their number is summed up exactly.
    """
    distribution = np.ones(1)
    for one in found:
        distribution = np.append(distribution * (1 - one.promised), 0) + np.append(0, distribution * one.promised)
    return float(distribution[: 1 + sum(one.candidate for one in found)].sum())


def table(found: Sequence[Outcome], threshold: float, bands: Bands) -> str:
    """A line for each bin: recall and theory of all pairs; of each edit how many were found, of how many, expected."""
    lines = [
        f"threshold {threshold}, {bands.bands} bands × {bands.rows} rows: pairs that become candidates, by similarity, "
        "of all and of each edit: found / pairs (theory)",
        f"{'similarity':>11} {'pairs':>6} {'recall':>7} {'theory':>7} {'in the end':>11}"
        + "".join(f" {edit:>17}" for edit in EDITS),
    ]
    for least, below in BINS:
        some = within(found, least, below)
        line = f"{f'{least:.2f}–{below:.2f}':>11} {len(some):6,} {_percent(one.candidate for one in some):>7} "
        line += f"{_percent(one.promised for one in some):>7} {_percent(one.removed for one in some):>11}"
        for edit in EDITS:
            these = [one for one in some if one.edit == edit]
            expected = sum(one.promised for one in these)
            line += f" {f'{sum(one.candidate for one in these)} / {len(these)} ({expected:.1f})':>17}"
        lines.append(line)
    above = within(found, threshold)
    lines.append(
        f"{len(above):,} pairs from {threshold} on: of {_percent(one.removed for one in above)} one is removed"
    )
    return "\n".join(lines)


def _percent(values: Iterable[float]) -> str:
    some = list(values)
    return f"{100 * sum(some) / len(some):.1f} %" if some else "–"
