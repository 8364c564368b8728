from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pilekit.corpus import load_manifest
from pilekit.shards.read.damage import BadLine, SkippedLines
from pilekit.stats import CorpusStats, SubsetStats, corpus_stats
from pilekit.stats.histogram import BINS
from pilekit.stats.table import MOST_ROWS, rounded_bytes, rounded_count, stats_table
from tests.shards import making


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


def printed(stats: CorpusStats, width: int, terminal: bool = False) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, force_terminal=terminal).print(stats_table(stats, width))
    return file.getvalue()


@pytest.mark.parametrize("extras", [True, False])
def test_the_whole_pile_fits_into_80_columns_with_nothing_cut(extras: bool) -> None:
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


@pytest.mark.parametrize("width", range(20, 130))
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width: int) -> None:
    text = printed(the_pile(True), width)
    assert max(map(len, text.splitlines())) <= width
    assert "Bytes" in text
    total = text.splitlines()[-1].split()
    assert total[0] == "Total"
    assert total[1] in ("211M", "210,607,728")


def test_markup_and_escapes_in_labels_stay_text(tmp_path: Path) -> None:
    hostile = "[red]x[/red] \x1b[31mred\x1b]0;title\x07 \u202e \u009b2J"
    path = tmp_path / "a.jsonl"
    path.write_bytes(making.record("text", hostile) + b"\n" + making.record("text", "[/]" * 50))
    text = printed(corpus_stats(path), 120)
    assert "[red]x[/red] \\x1b[31mred\\x1b]0;" in text
    assert "[/][/]" in text
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text.replace("\n", ""))
    assert "\x1b[31m" not in printed(corpus_stats(path), 100, terminal=True)


def test_wide_characters_in_labels_count_as_two_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(making.record("text", "日本語" * 8))
    table = stats_table(corpus_stats(path), 60)
    console = Console(width=60, file=io.StringIO())
    assert console.measure(table).maximum <= 60


def test_very_many_subsets_are_cut_and_said_so() -> None:
    subsets = tuple(figures(f"label {number}") for number in range(MOST_ROWS + 5))
    text = printed(CorpusStats(subsets, figures("total"), SkippedLines(), "pile"), 100)
    assert "5 further subsets" in text
    assert len(text.splitlines()) < MOST_ROWS + 10


def test_skipped_lines_are_told() -> None:
    skipped = SkippedLines()
    assert "skipped" not in printed(the_pile(False), 80)
    skipped.add(BadLine("a", 3, "not JSON"))
    one = CorpusStats((), figures("total"), skipped, "pile")
    assert "1 bad line skipped." in printed(one, 80)


def test_without_documents_there_is_a_total_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n")
    assert "Total" in printed(corpus_stats(path, copies=True), 80)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1000, "1.00k"), (9995, "10.0k"), (99_950, "100k"), (999_500, "1.00M"), (10**18, "1000P")],
)
def test_counts_are_rounded_to_three_digits(number: int, text: str) -> None:
    assert rounded_count(number) == text


@given(st.integers(0, 10**17))
def test_rounded_counts_are_short_and_near(number: int) -> None:
    text = rounded_count(number)
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}.get(text[-1], 1)
    assert len(text) <= 5
    assert float(text.rstrip("kMGTP")) * factor == pytest.approx(number, rel=0.00501)


@given(st.floats(0, 2**59))
def test_rounded_bytes_are_short_and_near(number: float) -> None:
    value, unit = rounded_bytes(number).split()
    assert len(value) <= 4
    assert float(value) * 1024 ** ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].index(unit) == pytest.approx(
        number, rel=0.00501, abs=0.5
    )
    assert len(rounded_bytes(number, "")) <= 5


def test_rounded_bytes_of_nothing_are_a_dash() -> None:
    assert rounded_bytes(float("nan")) == "–"
