"""The section of a corpus: shares compared with the manifest's, document lengths, up-sampling, findings of verify."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pilekit.artifacts.own_file import read_own
from pilekit.corpus import Manifest
from pilekit.display.fitted_table import DASH, Column, FittedTable
from pilekit.errors import PilekitError
from pilekit.report.figures import WIDTH, svg_of
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.verify.findings import Finding
from pilekit.stats.histogram import BINS
from pilekit.stats.plot import MOST_ROWS, chart_rows, draw_lengths, draw_shares, legend, source_of_shares
from pilekit.stats.result import CorpusStats, SubsetStats
from pilekit.stats.summary import paper_shares


def read_output(path: Path) -> CorpusStats | list[Finding] | None:
    """The saved output of `pilekit stats --json` or `pilekit verify --json`; None if the file is neither."""
    try:
        output = json.loads(read_own(path))  # Not msgspec's decoder: sizes are NaN for empty subsets.
        return msgspec.convert(output["findings"], list[Finding]) if "findings" in output else _stats(output)
    except OSError as error:
        raise PilekitError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _stats(output: dict[str, Any]) -> CorpusStats:
    """The output of `pilekit stats --json` as a result, without histograms and shares of a manifest."""
    missing = {"paper_share": None, "lengths": np.zeros(BINS, dtype=np.int64)}

    def stats_of(name: str, figures: dict[str, Any]) -> SubsetStats:
        return msgspec.convert({**figures, "name": name, **missing}, SubsetStats, dec_hook=lambda _, array: array)

    subsets = tuple(stats_of(name, figures) for name, figures in output["subsets"].items())
    columns = {name: [getattr(row, name) for row in subsets] for name in ("documents", "bytes", "tokens", "copies")}
    total = {name: None if None in values else sum(values) for name, values in columns.items()}
    mean = output["bytes"] / (output["documents"] or math.nan)
    sizes = {"share": 1.0, "mean_bytes": mean, "median_bytes": math.nan, "p99_bytes": math.nan}
    skipped = SkippedLines(msgspec.convert(output["skipped"], int))
    selected = msgspec.convert(output.get("selected"), tuple[str, ...] | None)
    return CorpusStats(subsets, stats_of("total", {**total, **sizes}), skipped, "", selected)


def with_shares_of(manifest: Manifest, saved: CorpusStats) -> CorpusStats:
    """The result, its subsets compared with the shares of this manifest."""
    shares = paper_shares(manifest, saved.selected)
    subsets = (replace(subset, paper_share=shares.get(subset.name)) for subset in saved.subsets)
    return replace(saved, subsets=tuple(subsets), manifest=manifest.name)


def corpus_content(stats: CorpusStats, manifest: Manifest, path: str) -> dict[str, Any]:
    """The figures and the table of a corpus."""
    subsets = stats.subsets[:MOST_ROWS]
    names = [subset.name for subset in subsets]
    shares, axes = chart_rows(names, 0.36, WIDTH, 1.1)
    draw_shares(axes, subsets, source_of_shares(manifest.name, stats.selected is not None))
    legend(shares, axes)
    lengths, axes = chart_rows(names, 0.36, WIDTH, 0.9)
    draw_lengths(axes, subsets)
    low, high = axes.get_xlim()
    axes.set_xlim(10 ** max(0, math.floor(math.log10(low))), 10 ** math.ceil(math.log10(high)))  # two labels or more
    return {
        "stats": stats,
        "source_of_epochs": source_of_shares(manifest.name, selected=False),
        "shares": svg_of(shares, f"Composition of {path}"),
        "lengths": svg_of(lengths, f"Document lengths of {path}"),
        "has_histograms": any(subset.lengths.any() for subset in stats.subsets),
        "subsets": _table(stats, manifest),
    }


def _table(stats: CorpusStats, manifest: Manifest) -> FittedTable[SubsetStats]:
    """The command's table, with the up-sampling that the shards show and the epochs that the manifest states."""

    def times_seen(row: SubsetStats) -> str:
        originals = row.documents - (row.copies or 0)
        return f"{row.documents / originals:.2f}" if originals else DASH

    epochs = {subset.name: f"{subset.epochs:.4g}" for subset in manifest.subsets if subset.epochs is not None}
    up_sampling = [Column("Times seen", times_seen)] if stats.total.copies is not None else []
    up_sampling.append(Column("Epochs", lambda row: epochs.get(row.name, DASH)))
    table = stats.table()
    return FittedTable(table.rows, [*table.columns, *up_sampling], table.totals, notes=table.notes)
