"""The section of a corpus: its composition beside the manifest's, document lengths, up-sampling, findings of verify."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pilekit.artifacts.own_file import read_own
from pilekit.corpus import Manifest
from pilekit.errors import PilekitError, counted, visible
from pilekit.fitted_table import rounded_bytes, rounded_count
from pilekit.report.figures import legend, rows_of, svg_of
from pilekit.report.parts import Facts, Figure, Note, Part, Source, Table, number
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.verify.findings import Finding
from pilekit.stats.histogram import BINS
from pilekit.stats.plot import INK, MOST_ROWS, OBSERVED, draw_lengths, draw_shares, sizes_in_bytes
from pilekit.stats.summary import CorpusStats, SubsetStats


class _Subset(msgspec.Struct, frozen=True):
    documents: int
    bytes: int
    share: float = 1.0
    mean_bytes: float = math.nan
    median_bytes: float = math.nan
    p99_bytes: float = math.nan
    tokens: int | None = None
    copies: int | None = None


class Stats(msgspec.Struct, frozen=True):
    """The output of `pilekit stats --json`."""

    documents: int
    bytes: int
    skipped: int
    subsets: dict[str, _Subset]


class Verification(msgspec.Struct, frozen=True):
    """The output of `pilekit verify --json`."""

    ok: bool
    findings: list[Finding]


def read_output(path: Path) -> Stats | Verification | None:
    """The saved output of `pilekit stats --json` or `pilekit verify --json`; None if the file is neither."""
    try:
        text = read_own(path)
    except OSError as error:
        raise PilekitError(f"{visible(str(path))}: cannot be read: {error.strerror}") from error
    try:
        output = json.loads(text)  # Not msgspec's decoder: sizes are NaN for empty subsets.
        if "findings" in output:
            return msgspec.convert(output, Verification)
        return msgspec.convert(output, Stats)
    except (ValueError, TypeError, RecursionError):
        return None


def stats_of(saved: Stats, manifest: Manifest) -> CorpusStats:
    """The saved output as a result; its histograms are empty, as the output has none."""
    weights = {subset.name: subset.weight_percent for subset in manifest.subsets}

    def figures(name: str, one: _Subset) -> SubsetStats:
        weight = weights.get(name)
        return SubsetStats(
            name,
            one.documents,
            one.bytes,
            one.share,
            None if weight is None else weight / 100,
            mean_bytes=one.mean_bytes,
            median_bytes=one.median_bytes,
            p99_bytes=one.p99_bytes,
            lengths=np.zeros(BINS, dtype=np.int64),
            tokens=one.tokens,
            copies=one.copies,
        )

    subsets = [figures(name, one) for name, one in saved.subsets.items()]
    sums: dict[str, Any] = {"documents": saved.documents, "bytes": saved.bytes}
    for name in ("tokens", "copies"):
        counts = [getattr(one, name) for one in subsets]
        sums[name] = None if None in counts else sum(counts)
    mean = saved.bytes / saved.documents if saved.documents else math.nan
    total = figures("total", _Subset(**sums, mean_bytes=mean))
    return CorpusStats(tuple(subsets), total, SkippedLines(saved.skipped), manifest.name)


def corpus_parts(stats: CorpusStats, manifest: Manifest, source: Source) -> Iterator[Part]:
    """The contents of a corpus."""
    total, subsets = stats.total, stats.subsets
    facts = [("documents", rounded_count(total.documents)), ("text", rounded_bytes(total.bytes))]
    if total.tokens is not None:
        facts.append(("tokens", rounded_count(total.tokens)))
    facts.append(("subsets", f"{len(subsets):,}"))
    if stats.skipped.count:
        facts.append(("bad lines skipped", f"{stats.skipped.count:,}"))
    yield Facts(facts, source)
    given = "the paper" if manifest.name == "pile" else "the manifest"
    first = f"the {MOST_ROWS} largest subsets" if len(subsets) > MOST_ROWS else ""
    figure, axes = rows_of([subset.name for subset in subsets], 0.36)
    draw_shares(axes, subsets[:MOST_ROWS], given)
    if axes.get_legend() is not None:
        legend(axes)
    yield Figure("Composition: share of the bytes", svg_of(figure, f"Composition of {source.path}"), source, first)
    yield _lengths(subsets, source)
    yield _table(stats, manifest, given, source)


def _lengths(subsets: tuple[SubsetStats, ...], source: Source) -> Figure:
    figure, axes = rows_of([subset.name for subset in subsets], 0.36)
    label, title = f"Document lengths of {source.path}", "Document lengths"
    if any(subset.lengths.any() for subset in subsets):
        draw_lengths(axes, subsets[:MOST_ROWS])
        _whole_decades(axes)
        return Figure(title, svg_of(figure, label), source, "Each row to the same height; the bar is the median.")
    sizes_in_bytes(axes)
    for row, subset in enumerate(subsets[:MOST_ROWS]):
        places = [max(size, 1) for size in (subset.median_bytes, subset.mean_bytes, subset.p99_bytes)]
        axes.plot([places[0], places[2]], [row, row], "|-", color=OBSERVED, linewidth=3, markersize=9)
        axes.plot(places[1], row, "o", color=INK, markersize=4)
    axes.set_xlabel("UTF-8 bytes of a document")
    _whole_decades(axes)
    return Figure(title, svg_of(figure, label), source, "From the median to the 99th percentile; the dot is the mean.")


def _whole_decades(axes: Any) -> None:
    """Widen a logarithmic x axis to powers of ten, so that it has two labels or more."""
    low, high = axes.get_xlim()
    axes.set_xlim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))


def _table(stats: CorpusStats, manifest: Manifest, given: str, source: Source) -> Table:
    epochs = {subset.name: subset.epochs for subset in manifest.subsets}
    has = {name: getattr(stats.total, name) is not None for name in ("tokens", "copies")}
    has["paper_share"] = any(one.paper_share is not None for one in stats.subsets)
    columns = ["Subset", "Documents", "Bytes", "Share %"]
    columns += [f"{given.removeprefix('the ').capitalize()} %"] * has["paper_share"]
    columns += ["Tokens", "Tokens/byte"] * has["tokens"] + ["Median", "Mean", "p99"]
    columns += ["Copies", "Times seen"] * has["copies"] + ["Epochs"]

    def row(one: SubsetStats) -> list[str]:
        cells = [number(one.documents), number(one.bytes), number(100 * one.share, ".2f")]
        if has["paper_share"]:
            cells.append(number(None if one.paper_share is None else 100 * one.paper_share, ".2f"))
        if has["tokens"]:
            cells += [number(one.tokens), number(one.tokens_per_byte, ".4f")]
        cells += map(rounded_bytes, (one.median_bytes, one.mean_bytes, one.p99_bytes))
        if has["copies"]:
            originals = one.documents - (one.copies or 0)
            cells += [number(one.copies), number(one.documents / originals if originals else None, ".2f")]
        return [one.name, *cells, number(epochs.get(one.name), ".4g")]

    note = f"Epochs are the times that {given} repeats a subset. "
    if has["copies"]:
        note += (
            "Times seen is documents over different texts: the up-sampling that these shards show. In a part of a "
            "corpus it is lower than the epochs, because the other copies stand in other shards."
        )
    else:
        note += "Give --copies to `pilekit stats` to count the up-sampling that is seen."
    total = replace(stats.total, name="Total")
    return Table.of("Subsets", columns, map(row, stats.subsets), source, totals=[row(total)], note=note)


def verify_parts(saved: Verification, source: Source) -> Iterator[Part]:
    """The findings of `pilekit verify`."""
    if saved.ok and not saved.findings:
        yield Note("Verified: all right.", source)
        return
    columns = ["Shard", "Frame", "Line", "Byte", "Problem"]
    rows = ([one.shard, number(one.frame), number(one.line), number(one.byte), one.problem] for one in saved.findings)
    yield Table.of(f"Verified: {counted(len(saved.findings), 'finding')}", columns, rows, source)
