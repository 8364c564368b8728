"""The section of a deduplication: removals of each subset, the subsets of duplicates, and pairs to judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pilekit.artifacts.header import Header
from pilekit.artifacts.own_file import read_own
from pilekit.dedup.previous_runs import finished_header, finished_run
from pilekit.dedup.result import REMOVED, SUMMARY
from pilekit.dedup.show.pair_texts import pair_texts
from pilekit.dedup.show.removed_pairs import RemovedPair, readable, spread_pairs
from pilekit.dedup.show.side_by_side import diff_rows
from pilekit.dedup.show.word_diff import word_diff
from pilekit.dedup.sketch.bands import Bands
from pilekit.errors import PilekitError, counted, visible
from pilekit.fitted_table import rounded_bytes, rounded_count
from pilekit.progress import Report
from pilekit.report.figures import axes_of, bars, legend, svg_of
from pilekit.report.parts import Facts, Figure, Note, Pair, Pairs, Part, Source, Table, number
from pilekit.report.recall import measured_recall
from pilekit.stats.plot import INK, LONGEST_NAME, OBSERVED, PAPER

EXAMPLES, CLUSTERS, BEGINNING = 20, 20, 200
MOST_IN_MATRIX = 24
DIFF_CHARACTERS = 8_000
"""Per text of a pair. A report must stay small, and the diff shows some hundreds of words."""


def dedup_parts(folder: Path, source: Source, advance: Report) -> Iterator[Part]:
    """The removals of `pilekit dedup` in `folder`. PilekitError if it is unfinished or damaged."""
    header, summary = finished_header(folder), read_summary(folder / SUMMARY)
    yield Facts(
        [
            ("documents read", rounded_count(summary["read"])),
            ("removed", f"{100 * summary['removed'] / max(1, summary['read']):.1f} %"),
            ("exact copies", rounded_count(summary["exact"])),
            ("near-duplicates", rounded_count(summary["near"])),
            ("text saved", rounded_bytes(summary["bytes"]["removed"])),
        ],
        source,
    )
    subsets = {name: one for name, one in summary["subsets"].items() if one["read"]}
    shares = {kind: [100 * one[kind] / one["read"] for one in subsets.values()] for kind in ("exact", "near")}
    svg = bars(list(subsets), shares, f"Removed from each subset, {source.path}", "documents removed, %")
    yield Figure("Removed from each subset", svg, source)
    if not summary["removed"]:
        yield _table(summary, source)
        return
    removed = Removed.read(folder / REMOVED)
    yield from removed.parts(header, source)
    yield _table(summary, source)
    clusters, counts, lowest = removed.clusters()
    pairs, _ = spread_pairs(folder / REMOVED, EXAMPLES)
    texts: list[tuple[str, str]] = []
    try:
        texts = pair_texts([*pairs, *clusters], finished_run(folder), advance)
    except PilekitError as error:
        yield Note(f"The texts are not shown: {error}.", source)
    yield _s_curve(header, [kept for kept, _ in texts], source)
    yield _clusters(clusters, counts, lowest, [kept for kept, _ in texts[len(pairs) :]], source)
    if texts:
        yield _examples(pairs, texts, source)


def read_summary(path: Path) -> dict[str, Any]:
    """The content of a `summary.json`; PilekitError if it cannot be read or has no subsets."""
    try:
        summary: dict[str, Any] = msgspec.json.decode(read_own(path), type=dict[str, Any])
        summary["subsets"].items()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, AttributeError) as error:
        raise PilekitError(f"{visible(str(path))}: is no summary: {visible(str(error), 200)}; run it again") from error
    return summary


def _table(summary: dict[str, Any], source: Source) -> Table:
    def row(name: str, one: dict[str, Any]) -> list[str]:
        share = 100 * one["removed"] / one["read"] if one["read"] else None
        counts = [number(one[key]) for key in ("read", "exact", "near", "kept")]
        return [name, *counts, number(share, ".2f"), rounded_bytes(one["bytes"]["removed"])]

    columns = ["Subset", "Read", "Exact", "Near", "Kept", "Removed %", "Text saved"]
    rows = [row(name, one) for name, one in summary["subsets"].items()]
    note = ""
    if repeated := summary.get("up_sampled"):
        note = f"{repeated:,} exact copies are of subsets that the corpus repeats on purpose."
    if hot := summary.get("hot"):
        note += f" {hot['documents']:,} documents in very large groups were not compared with all others."
    return Table.of(
        "Removed from each subset", columns, rows, source, totals=[row("Total", summary)], note=note.strip()
    )


@dataclass(frozen=True, slots=True)
class Removed:
    """`removed.parquet` as arrays, a row for each removed document; names are indices into `labels`."""

    path: Path
    labels: list[str]
    subset: npt.NDArray[np.int64]
    kept_subset: npt.NDArray[np.int64]
    similarity: npt.NDArray[np.float64]
    exact: npt.NDArray[np.bool_]
    kept: npt.NDArray[np.int64]
    """[3, rows]: corpus, shard and number of the kept document."""

    @classmethod
    def read(cls, path: Path) -> Removed:
        """PilekitError if it cannot be read."""
        labels: dict[str, int] = {}

        def codes(column: Any, names: dict[str, int]) -> npt.NDArray[np.int64]:
            parts = [np.zeros(0, dtype=np.int64)]
            for chunk in column.cast(pa.dictionary(pa.int32(), pa.string())).chunks:
                of = [names.setdefault(name, len(names)) for name in chunk.dictionary.to_pylist()]
                parts.append(np.array(of, dtype=np.int64)[chunk.indices.to_numpy()])
            return np.concatenate(parts)

        with readable(path) as dataset:
            rows = dataset.to_table(
                ["subset", "kept_subset", "similarity", "reason", "kept_corpus", "kept_shard", "kept_number"]
            )
            reasons: dict[str, int] = {"exact": 0}
            subset, kept_subset = codes(rows["subset"], labels), codes(rows["kept_subset"], labels)
            kept = [codes(rows["kept_corpus"], {}), codes(rows["kept_shard"], {}), rows["kept_number"].to_numpy()]
            exact = codes(rows["reason"], reasons) == 0
            similarity = rows["similarity"].to_numpy()
        return cls(path, list(labels), subset, kept_subset, similarity, exact, np.stack(kept))

    def parts(self, header: Header, source: Source) -> Iterator[Part]:
        """The histogram of similarities, and the subsets of the pairs."""
        yield self._histogram(float(header.parameters["threshold"]), source)
        yield from self._matrix(source)

    def _histogram(self, threshold: float, source: Source) -> Figure:
        near = self.similarity[~self.exact]
        edges = np.linspace(min(threshold, float(near.min(initial=threshold))), 1, 41)
        figure, axes = axes_of(2.8)
        axes.bar(edges[:-1], np.histogram(near, edges)[0], np.diff(edges), align="edge", color=OBSERVED)
        axes.set_xlabel("Jaccard similarity to the kept document")
        axes.set_ylabel("near-duplicates")
        exact = int(self.exact.sum())
        note = f"Without {counted(exact, 'exact copy', 'exact copies')}." if exact else ""
        return Figure("Similarity", svg_of(figure, f"Similarities in {source.path}"), source, note)

    def _matrix(self, source: Source) -> Iterator[Part]:
        counts = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)
        np.add.at(counts, (self.subset, self.kept_subset), 1)
        order = np.argsort(-(counts.sum(axis=0) + counts.sum(axis=1)), kind="stable")
        shown = order[:MOST_IN_MATRIX]
        names = [visible(self.labels[code], LONGEST_NAME) for code in shown]
        cells = counts[np.ix_(shown, shown)]
        side = 0.34 * max(len(names), 3)
        figure, axes = axes_of(side + 1.9, side + 2.1, grid="both")
        axes.grid(visible=False)
        from matplotlib.colors import LogNorm

        norm = LogNorm(1, max(10, int(cells.max())))
        axes.pcolormesh(np.ma.masked_equal(cells, 0), cmap="Blues", norm=norm, edgecolor="none")
        for row, column in zip(*np.nonzero(cells), strict=True):
            dark = norm(cells[row, column]) > 0.55
            text = rounded_count(int(cells[row, column]))
            style = {"color": "#fefefe" if dark else "#111111", "fontsize": 6.5}
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", **style)
        places = np.arange(len(names)) + 0.5
        axes.set_xticks(places, names, parse_math=False, rotation=60, ha="right", rotation_mode="anchor", color=INK)
        axes.set_yticks(places, names, parse_math=False, color=INK)
        axes.set_ylim(len(names), 0)
        axes.set_xlabel("subset of the kept document")
        axes.set_ylabel("subset of the removed document")
        note = f"The {len(names)} subsets with the most." if len(self.labels) > len(names) else ""
        yield Figure(
            "Who duplicates whom",
            svg_of(figure, f"Subsets of duplicates, {source.path}"),
            source,
            note,
            wide=len(names) > 8,
        )
        across = counts * ~np.eye(len(counts), dtype=bool)
        if across.any():
            largest = np.argsort(-across, axis=None, kind="stable")[:EXAMPLES]
            found = [np.unravel_index(place, across.shape) for place in largest if across.flat[place]]
            rows = [[self.labels[a], self.labels[b], number(int(across[a, b]))] for a, b in found]
            columns = ["Removed from", "Kept in", "Documents"]
            yield Table.of("Duplicates across subsets", columns, rows, source)

    def clusters(self) -> tuple[list[RemovedPair], list[int], list[float]]:
        """A pair of each of the largest clusters, and the sizes and least similarities of these clusters.

        A cluster is a kept document and the documents that were removed for it.
        """
        order = np.lexsort(self.kept)
        changes = (np.diff(self.kept[:, order], axis=1) != 0).any(axis=0)
        starts = np.append(0, np.flatnonzero(changes) + 1)
        sizes = np.diff(np.append(starts, len(order)))
        largest = [place for place in np.argsort(-sizes, kind="stable")[:CLUSTERS] if sizes[place] > 1]
        lowest = np.minimum.reduceat(self.similarity[order], starts)[largest]
        with readable(self.path) as dataset:
            rows = dataset.take(order[starts[largest]], columns=list(RemovedPair.__dataclass_fields__)).to_pylist()
        return [RemovedPair(**row) for row in rows], sizes[largest].tolist(), lowest.tolist()


def _s_curve(header: Header, texts: Sequence[str], source: Source) -> Figure:
    of, threshold = header.parameters, float(header.parameters["threshold"])
    bands = Bands(of["bands"], of["rows"])
    measured = measured_recall(dict.fromkeys(texts), bands, of["ngram"], of["seed"])
    figure, axes = axes_of(3.0)
    similarities = np.linspace(0, 1, 201)
    computed = [100 * bands.probability(one) for one in similarities]
    axes.plot(similarities, computed, color=OBSERVED, label=f"{bands.bands} bands of {bands.rows} rows")
    axes.axvline(threshold, color=INK, linewidth=1, linestyle="--", label=f"threshold {threshold:g}")
    note = f"At the threshold, {100 * bands.probability(threshold):.2f} % of the pairs are compared."
    if measured:
        at = [one.similarity for one in measured]
        shares = np.array([one.found / one.pairs for one in measured])
        errors = np.abs(np.array([one.interval for one in measured]).T - shares)
        axes.errorbar(at, 100 * shares, 100 * errors, fmt="o", color=PAPER, markersize=4, label="measured")
        near = min(measured, key=lambda one: abs(one.similarity - threshold))
        pairs = sum(one.pairs for one in measured)
        note += (
            f" Measured on {counted(pairs, 'edited copy', 'edited copies')} of texts of this corpus, with 95 % "
            f"intervals: {100 * near.found / near.pairs:.2f} % at {near.similarity:.3f}."
        )
    axes.set_xlabel("Jaccard similarity")
    axes.set_ylabel("compared, %")
    legend(axes)
    return Figure("Recall: the S-curve", svg_of(figure, f"S-curve of {source.path}"), source, note)


def _clusters(
    clusters: Sequence[RemovedPair], sizes: Sequence[int], lowest: Sequence[float], texts: Sequence[str], source: Source
) -> Table:
    columns = ["Kept document", "Subset", "Removed for it", "Least similarity", *(["Its text begins"] if texts else [])]
    rows: list[list[str]] = []
    for place, (pair, size, similarity) in enumerate(zip(clusters, sizes, lowest, strict=True)):
        name = _name(pair.kept_shard, pair.kept_number, pair.kept_corpus)
        row: list[str] = [name, pair.kept_subset, number(size), number(similarity, ".4f")]
        rows.append([*row, *(" ".join(text[:BEGINNING].split()) for text in texts[place : place + 1])])
    return Table.of("Largest clusters", columns, rows, source)


def _examples(pairs: Sequence[RemovedPair], texts: Sequence[tuple[str, str]], source: Source) -> Pairs:
    shown = []
    for pair, both in zip(pairs, texts, strict=False):
        how = "exact copy" if pair.reason == "exact" else f"similarity {pair.similarity:.4f}"
        kept = f"{_name(pair.kept_shard, pair.kept_number, pair.kept_corpus)}, {pair.kept_subset}"
        removed = f"{_name(pair.shard, pair.number, 'this')}, {pair.subset}"
        shown.append(Pair(how, kept, removed, list(diff_rows(word_diff(*both, DIFF_CHARACTERS)))))
    note = "Spread evenly over the similarities, the least similar first. Case, spaces and punctuation do not count."
    return Pairs(f"{counted(len(shown), 'pair')} to judge the threshold by", shown, source, note)


def _name(shard: str, document: int, corpus: str) -> str:
    return f"{shard} {document:,}" + (" (an earlier run)" if corpus == "against" else "")
