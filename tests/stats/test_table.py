"""The table of `pilekit stats` at every width."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from rich.console import Console

from pilekit.corpus import load_manifest
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.stats.histogram import BINS
from pilekit.stats.result import CorpusStats, SubsetStats
from pilekit.stats.summary import corpus_stats


def figures(name: str, documents: int, size: int, extras: bool) -> SubsetStats:
    more = {"tokens": size // 4, "copies": documents // 2} if extras else {}
    lengths = np.zeros(BINS, dtype=np.int64)
    return SubsetStats(name, documents, size, 0.1811, 0.1811, size / documents, 999.4, 1023.0, lengths, **more)


def printed(stats: CorpusStats, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(stats.table())
    return file.getvalue().splitlines()


def test_the_whole_pile_fits_into_80_columns_and_documents_and_bytes_into_22(tmp_path: Path) -> None:
    for extras in (True, False):
        names = [subset.name for subset in load_manifest().subsets]
        subsets = tuple(figures(name, 54_953_117, 243_872_121_726, extras) for name in names)
        total = figures("total", 210_607_728, 1_346_690_000_000, extras)
        pile = CorpusStats(subsets, total, SkippedLines(), "pile")
        for width in range(22, 161, 3):
            lines = printed(pile, width)
            assert max(map(len, lines)) <= width
            assert lines[0].split()[1:3] in (["Docs", "Bytes"], ["Documents", "Bytes"])
            assert lines[-1].split()[:2] in (["Total", "211M"], ["Total", "210,607,728"])
        text = "\n".join(printed(pile, 80))
        assert "…" not in text
        for name in ("Gutenberg (PG-19)", "USPTO Backgrounds", "Mean", "p99", "Median", "Paper"):
            assert name in text
        assert ("Copies" in text) == ("Tok/B" in text) == extras
        assert "54,953,117" in "\n".join(printed(pile, 160))
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n")
    assert "Total" in printed(corpus_stats(path, copies=True), 80)[-1]
