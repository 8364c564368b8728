"""The section of a deduplication: removals of each subset, the subsets of duplicates, and pairs to judge.

`removed.parquet` has a row for each removed document. It is read in batches: memory holds the counts that the page
shows, and the rows of one batch or of one part of the kept documents.

The recall is measured, because pairs that the run found say nothing about pairs that it missed. So new pairs are made:
words of the corpus's own texts are replaced at random, the similarity of each copy to its text is computed exactly, and
both get signatures as in the run. A pair is compared if all values of a band agree. The copies are a function of the
texts.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import pyarrow.dataset
from markupsafe import Markup

from pilekit.artifacts.header import Header
from pilekit.dedup.previous_runs import finished_run
from pilekit.dedup.result import REMOVED, removals_table
from pilekit.dedup.show.removed_pairs import RemovedPair, pair_texts, read_columns, removals, spread_pairs
from pilekit.dedup.show.side_by_side import diff_rows
from pilekit.dedup.show.word_diff import word_diff
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.minhash import permutations, signatures
from pilekit.dedup.sketch.shingles import jaccard, shingle_set
from pilekit.display.progress import Report
from pilekit.errors import PilekitError
from pilekit.report.cuts import read_summary, shares_of
from pilekit.report.figures import WIDTH, svg_of
from pilekit.stats.plot import INK, OBSERVED, PAPER, axes_of, legend

EXAMPLES, CLUSTERS = 20, 20
MOST_IN_MATRIX = 24
BINS = 200
"""Bins of the similarities from 0 to 1."""
DIFF_CHARACTERS = 8_000
"""Per text of a pair. A report must stay small, and the diff shows some hundreds of words."""
ROWS_AT_ONCE = 1 << 20
"""About this many rows are in memory when clusters are counted."""

LOWEST, STEP = 0.4, 0.05
"""Copies of at least this similarity are counted, in bins of this width."""
COPIES = 60
"""Edited copies of each text."""
_LONGEST, _FEWEST_WORDS = 20_000, 30

_KEPT = ("kept_corpus", "kept_shard", "kept_number")
_FIRST = ("kept_subset", "shard", "number", "subset", "reason")

Pair = tuple[str, str, int]
"""The subset of removed documents, the subset of the kept documents, and the number of such removals."""


def dedup_content(folder: Path, header: Header, advance: Report) -> dict[str, Any]:
    """The removals of `pilekit dedup` in `folder`. PilekitError if a file of it is damaged."""
    summary = read_summary(folder)
    content: dict[str, Any] = {
        "summary": summary,
        "shares": shares_of(summary, ("exact", "near"), f"Removed from each subset, {folder}"),
        "removals": removals_table(summary, header.parameters["subsets"]),
    }
    if not summary["removed"]:
        return content
    with removals(folder / REMOVED) as rows:
        counts, clusters = removal_counts(rows), largest_clusters(rows)
    by_subsets = counts.group_by(["subset", "kept_subset"]).aggregate([("count", "sum")]).to_pylist()
    subsets = [(row["subset"], row["kept_subset"], row["count_sum"]) for row in by_subsets]
    subsets.sort(key=lambda pair: (-pair[2], *pair[:2]))
    pairs, _ = spread_pairs(folder / REMOVED, EXAMPLES)
    in_clusters = [RemovedPair(**{name: row[name] for name in RemovedPair.__dataclass_fields__}) for row in clusters]
    texts: list[tuple[str, str]] = []
    try:
        texts = pair_texts([*pairs, *in_clusters], finished_run(folder), advance)
    except PilekitError as error:
        content["failure"] = error
    return {
        **content,
        "similarities": _histogram(counts, folder),
        "matrix": _matrix(subsets),
        "across": [(source, keeper, f"{count:,}") for source, keeper, count in subsets if source != keeper][:EXAMPLES],
        "recall": _s_curve(header, [text for text, _ in texts], folder),
        "clusters": clusters,
        "beginnings": [" ".join(text[:200].split()) for text, _ in texts[len(pairs) :]],
        "pairs": [
            (pair, list(diff_rows(word_diff(kept_text, removed_text, DIFF_CHARACTERS))))
            for pair, (kept_text, removed_text) in zip(pairs, texts, strict=False)
        ],
    }


def removal_counts(removed_rows: pa.dataset.Dataset) -> pa.Table:
    """The number of removed documents by subset, kept_subset, reason and bin of the similarity: a row for each."""
    keys = read_columns("subset", "kept_subset", "reason")
    keys["bin"] = pc.min_element_wise(pc.floor(pc.field("similarity") * BINS), BINS - 1.0).cast(pa.int32())
    steps = {
        "scan": acero.ScanNodeOptions(removed_rows, columns=["subset", "kept_subset", "reason", "similarity"]),
        "project": acero.ProjectNodeOptions(list(keys.values()), list(keys)),
        "aggregate": acero.AggregateNodeOptions([([], "hash_count_all", None, "count")], list(keys)),
    }
    return acero.Declaration.from_sequence(list(itertools.starmap(acero.Declaration, steps.items()))).to_table()


def largest_clusters(removed_rows: pa.dataset.Dataset, rows_at_once: int = ROWS_AT_ONCE) -> list[dict[str, Any]]:
    """The largest clusters, the largest first: the first removed document of each, its count and least similarity.

    A cluster is a kept document and the documents that were removed for it. The kept documents are counted in parts, by
    the lowest bits of their numbers, so that a part's rows fit in memory.
    """
    columns = read_columns(*_KEPT, *_FIRST, "similarity")
    aggregates = [([], "count_all"), ("similarity", "min"), *((name, "first") for name in _FIRST)]
    order = [("count_all", "descending"), *((name, "ascending") for name in _KEPT)]
    parts = 1 << (removed_rows.count_rows() // rows_at_once).bit_length()
    largest: list[pa.Table] = []
    for part in range(parts):
        in_part = pc.bit_wise_and(pc.field("kept_number"), parts - 1) == part
        rows = removed_rows.to_table(columns, filter=in_part)
        clusters = rows.group_by(list(_KEPT), use_threads=False).aggregate(aggregates).filter(pc.field("count_all") > 1)
        largest = [pa.concat_tables([*largest, clusters]).sort_by(order).slice(0, CLUSTERS)]
    names = [name.removesuffix("_first").removesuffix("_min") for name in largest[0].column_names]
    return list(largest[0].rename_columns(names).to_pylist())


def _histogram(counts: pa.Table, folder: Path) -> Markup:
    near = counts.filter(pc.field("reason") != "exact")
    sums = np.bincount(near["bin"], weights=near["count"], minlength=BINS)
    first = int(np.flatnonzero(sums).min(initial=BINS - 1))
    figure, axes = axes_of(WIDTH, 2.8)
    axes.bar(np.arange(first, BINS) / BINS, sums[first:], 1 / BINS, align="edge", color=OBSERVED)
    axes.set_xlabel("Jaccard similarity to the kept document")
    axes.set_ylabel("near-duplicates")
    return svg_of(figure, f"Similarities in {folder}")


def _matrix(subsets: Sequence[Pair]) -> dict[str, Any]:
    """The counts of the subsets with the most duplicates, and the number of all subsets."""
    totals: Counter[str] = Counter()
    for source, keeper, count in subsets:
        totals += Counter({source: count}) + Counter({keeper: count})
    cells = {pair[:2]: pair[2] for pair in subsets}
    return {"shown": [name for name, _ in totals.most_common(MOST_IN_MATRIX)], "of": len(totals), "cells": cells}


def _s_curve(header: Header, texts: Sequence[str], folder: Path) -> dict[str, Any]:
    """The figure of the recall, computed and measured, and both at the threshold."""
    parameters = header.parameters
    threshold, bands = float(parameters["threshold"]), Bands(parameters["bands"], parameters["rows"])
    figure, axes = axes_of(WIDTH, 3.2)
    similarities = np.linspace(0, 1, 201)
    computed = [100 * bands.probability(similarity) for similarity in similarities]
    axes.plot(similarities, computed, color=OBSERVED, label=f"{bands.bands} bands of {bands.rows} rows")
    axes.axvline(threshold, color=INK, linewidth=1, linestyle="--", label=f"threshold {threshold:g}")
    if measured := measured_recall(dict.fromkeys(texts), bands, parameters["ngram"], parameters["seed"]):
        means, pairs, compared = np.array(measured).T
        shares = compared / pairs
        errors = np.abs(intervals(measured) - shares)
        axes.errorbar(means, 100 * shares, 100 * errors, fmt="o", color=PAPER, markersize=4, label="measured")
    axes.set_xlabel("Jaccard similarity")
    axes.set_ylabel("compared, %")
    legend(figure, axes)
    return {
        "svg": svg_of(figure, f"S-curve of {folder}"),
        "at_threshold": bands.probability(threshold),
        "copies": sum(point.pairs for point in measured),
        "near": min(measured, key=lambda point: abs(point.similarity - threshold), default=None),
    }


class Measured(NamedTuple):
    """Pairs of about this mean similarity: how many there are, and how many of them have an equal band."""

    similarity: float
    pairs: int
    compared: int


def intervals(measured: Sequence[Measured]) -> npt.NDArray[np.float64]:
    """Wilson's 95 % intervals of the shares that are compared, [low or high, measured]."""
    _, pairs, compared = np.array(measured).T
    z, share = 1.96**2 / pairs, compared / pairs
    middle, half = share + z / 2, np.sqrt(z * share * (1 - share) + z * z / 4)
    bounds: npt.NDArray[np.float64] = np.stack([middle - half, middle + half]) / (1 + z)
    return bounds


def measured_recall(texts: Iterable[str], bands: Bands, ngram: int, seed: int) -> list[Measured]:
    """The measured recall by similarity; empty if no text has enough words."""
    generator = np.random.default_rng(0)
    a, b = permutations(bands.num_perm, seed)
    similarities, compared = [], []
    for text in texts:
        words = text[:_LONGEST].split()
        if len(words) < _FEWEST_WORDS:
            continue
        targets = generator.uniform(LOWEST, 1, COPIES)
        copies = [" ".join(words)]
        # Texts of n shingles each that share s n of them have Jaccard similarity s / (2 - s): s is 2 J / (1 + J).
        # A shingle stays if all of its words do, so each word stays with the n-th root of that share.
        for kept_share in (2 * targets / (1 + targets)) ** (1 / ngram):
            changed = generator.random(len(words)) >= kept_share
            new = generator.integers(1 << 40, size=len(words)).tolist()
            copies.append(" ".join(f"w{new[i]:x}" if changed[i] else word for i, word in enumerate(words)))
        encoded = [np.frombuffer(copy.encode(), dtype=np.uint8) for copy in copies]
        offsets = np.cumsum([0, *map(len, encoded)])
        values = signatures(np.concatenate(encoded), offsets, ngram, a, b).reshape(-1, bands.bands, bands.rows)
        compared += (values[1:] == values[0]).all(axis=2).any(axis=1).tolist()
        original, *sets = (shingle_set(copy, ngram) for copy in encoded)
        similarities += [jaccard(original, copy) for copy in sets]
    x, hits = np.array(similarities), np.array(compared)
    bins = np.floor((x - LOWEST) / STEP)
    in_bins = [bins == place for place in np.unique(bins[bins >= 0])]
    return [Measured(float(x[in_bin].mean()), int(in_bin.sum()), int(hits[in_bin].sum())) for in_bin in in_bins]
