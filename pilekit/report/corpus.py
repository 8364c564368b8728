"""The section of a corpus: its composition beside the manifest's, document lengths, up-sampling, findings of verify."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pilekit.artifacts.own_file import read_own
from pilekit.corpus import Manifest
from pilekit.errors import PilekitError, visible
from pilekit.fitted_table import DASH, Column, FittedTable
from pilekit.report.figures import legend, rows_of, svg_of
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.verify.findings import Finding
from pilekit.stats.histogram import BINS
from pilekit.stats.plot import MOST_ROWS, draw_lengths, draw_shares
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


class SavedStats(msgspec.Struct, frozen=True):
    """The output of `pilekit stats --json`."""

    documents: int
    bytes: int
    skipped: int
    subsets: dict[str, _Subset]


class SavedFindings(msgspec.Struct, frozen=True):
    """The output of `pilekit verify --json`."""

    ok: bool
    findings: list[Finding]


def read_output(path: Path) -> SavedStats | SavedFindings | None:
    """The saved output of `pilekit stats --json` or `pilekit verify --json`; None if the file is neither."""
    try:
        output = json.loads(read_own(path))  # Not msgspec's decoder: sizes are NaN for empty subsets.
        if "findings" in output:
            return msgspec.convert(output, SavedFindings)
        return msgspec.convert(output, SavedStats)
    except OSError as error:
        raise PilekitError(f"{visible(str(path))}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError):
        return None


def stats_of(saved: SavedStats, manifest: Manifest) -> CorpusStats:
    """The saved output as a result; its histograms are empty, as the output has none."""
    weights = {subset.name: subset.weight_percent for subset in manifest.subsets}

    def figures(name: str, one: _Subset) -> SubsetStats:
        weight, lengths = weights.get(name), np.zeros(BINS, dtype=np.int64)
        paper_share = None if weight is None else weight / 100
        return SubsetStats(name=name, paper_share=paper_share, lengths=lengths, **msgspec.structs.asdict(one))

    of = saved.subsets.values()
    tokens, copies = ([one.tokens for one in of], [one.copies for one in of])
    total = _Subset(
        saved.documents,
        saved.bytes,
        mean_bytes=saved.bytes / saved.documents if saved.documents else math.nan,
        tokens=None if None in tokens else sum(filter(None, tokens)),
        copies=None if None in copies else sum(filter(None, copies)),
    )
    subsets = tuple(figures(name, one) for name, one in saved.subsets.items())
    return CorpusStats(subsets, figures("total", total), SkippedLines(saved.skipped), manifest.name)


def corpus_content(stats: CorpusStats, manifest: Manifest, path: str) -> dict[str, Any]:
    """The figures and the table of a corpus."""
    names = [subset.name for subset in stats.subsets]
    given = "the paper" if manifest.name == "pile" else "the manifest"
    shares, axes = rows_of(names, 0.36)
    draw_shares(axes, stats.subsets[:MOST_ROWS], given)
    legend(axes)
    lengths, axes = rows_of(names, 0.36)
    draw_lengths(axes, stats.subsets[:MOST_ROWS])
    low, high = axes.get_xlim()
    axes.set_xlim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))  # two labels or more
    return {
        "stats": stats,
        "given": given,
        "shares": svg_of(shares, f"Composition of {path}"),
        "lengths": svg_of(lengths, f"Document lengths of {path}"),
        "has_histograms": any(subset.lengths.any() for subset in stats.subsets),
        "subsets": _table(stats, manifest),
    }


def _table(stats: CorpusStats, manifest: Manifest) -> FittedTable[SubsetStats]:
    """The command's table, with the up-sampling that is seen and that the manifest tells of."""

    def times_seen(row: SubsetStats) -> str:
        originals = row.documents - (row.copies or 0)
        return f"{row.documents / originals:.2f}" if originals else DASH

    epochs = {subset.name: subset.epochs for subset in manifest.subsets}
    seen = [Column("Times seen", times_seen)] if stats.total.copies is not None else []
    known = Column[SubsetStats]("Epochs", lambda row: f"{epochs[row.name]:.4g}" if row.name in epochs else DASH)
    table = stats.table()
    return FittedTable(table.rows, [*table.columns, *seen, known], table.totals)
