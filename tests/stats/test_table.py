from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from rich.console import Console

from pilekit.corpus import load_manifest
from pilekit.shards.read.damage import SkippedLines
from pilekit.stats.histogram import BINS
from pilekit.stats.summary import CorpusStats, SubsetStats, corpus_stats
from pilekit.stats.table import stats_table


def figures(name: str, documents: int = 210_607_728, size: int = 1_346_690_000_000, extras: bool = True) -> SubsetStats:
    return SubsetStats(
        name,
        documents,
        size,
        0.1811,
        0.1811,
        size / documents,
        999.4,
        1023.0,
        np.zeros(BINS, dtype=np.int64),
        tokens=size // 4 if extras else None,
        copies=documents // 2 if extras else None,
    )


def the_pile(extras: bool) -> CorpusStats:
    subsets = [figures(subset.name, 54_953_117, 243_872_121_726, extras) for subset in load_manifest().subsets]
    return CorpusStats(tuple(subsets), figures("total", extras=extras), SkippedLines(), "pile")


def printed(stats: CorpusStats, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(stats_table(stats))
    return file.getvalue()


def test_the_whole_pile_fits_into_80_columns_with_nothing_cut() -> None:
    for extras in (True, False):
        text = printed(the_pile(extras), 80)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
        for name in ("Gutenberg (PG-19)", "USPTO Backgrounds", "Mean", "p99", "Median", "Paper"):
            assert name in text
        assert ("Copies" in text) == ("Tok/B" in text) == extras


def test_a_wide_terminal_shows_exact_counts() -> None:
    text = printed(the_pile(True), 160)
    assert "210,607,728" in text
    assert "54,953,117" in text


def test_at_every_width_documents_and_bytes_stay() -> None:
    for width in range(22, 130):
        text = printed(the_pile(True), width)
        assert max(map(len, text.splitlines())) <= width
        assert text.splitlines()[0].split()[1:3] in (["Docs", "Bytes"], ["Documents", "Bytes"])
        total = text.splitlines()[-1].split()
        assert total[0] == "Total"
        assert total[1] in ("211M", "210,607,728")


def test_without_documents_there_is_a_total_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n")
    assert "Total" in printed(corpus_stats(path, copies=True), 80)
