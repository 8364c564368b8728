from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pilekit.display.fitted_table import (
    MOST_ROWS,
    SHORTEN,
    Column,
    FittedTable,
    facts_table,
    rounded_bytes,
    rounded_count,
)

Row = tuple[str, int]

COLUMNS = [
    Column[Row]("Subset", lambda row: row[0]),
    Column("Documents", lambda row: f"{row[1]:,}", Column("Docs", lambda row: rounded_count(row[1]))),
    Column("Bytes", lambda row: rounded_bytes(row[1])),
    Column("Kind", lambda row: "kept", justify="left"),
]
ROWS = [("Wikipedia (en)", 12_345_678), ("ArXiv", 999)]
TOTAL = [("Overall", 12_346_677), ("Weighted", 7)]


def table(rows: list[Row] = ROWS, priority: tuple[str, ...] = (SHORTEN, "Kind", "Bytes")) -> FittedTable[Row]:
    return FittedTable(rows, COLUMNS, TOTAL, priority)


def lines(of: FittedTable[Row], width: int, terminal: bool = False) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, force_terminal=terminal).print(of)
    return file.getvalue().splitlines()


def test_columns_give_way_in_the_order_of_priority_and_names_last() -> None:
    wide = lines(table(), 60)
    assert wide[0].split() == ["Subset", "Documents", "Bytes", "Kind"]
    assert wide[2].split() == ["Wikipedia", "(en)", "12,345,678", "12.3", "MB", "kept"]
    assert [line.split()[0] for line in wide[5:]] == ["Overall", "Weighted"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "60")
        assert str(table()).splitlines() == [line.rstrip() for line in wide]
    titles = []
    for width in range(60, 13, -1):
        printed = lines(table(), width)
        assert max(map(len, printed)) <= width
        number = printed[2].split("(en)")[-1].split("…")[-1].split()[0]
        assert number in ("12,345,678", "12.3M")
        if printed[0].split() not in titles:
            titles.append(printed[0].split())
    assert titles == [
        ["Subset", "Documents", "Bytes", "Kind"],
        ["Subset", "Docs", "Bytes", "Kind"],
        ["Subset", "Docs", "Bytes"],
        ["Subset", "Docs"],
    ]


def test_hostile_labels_stay_text_and_wide_characters_count_as_two_cells() -> None:
    hostile = "[red]x[/red] \x1b[31m \x07 \u202e \u009b2J"
    for terminal in (False, True):
        text = "\n".join(lines(table([(hostile, 1), ("[/]" * 50, 2)]), 120, terminal))
        assert "[red]x[/red] \\x1b[31m \\x07" in text
        assert "[/][/]" in text
        assert "\x1b[31m" not in text
    narrow = table([("日本語" * 8, 1)])
    assert Console(width=40, file=io.StringIO()).measure(narrow.fit(40)).maximum <= 40


def test_sentences_and_names_in_full_take_several_lines_and_lose_nothing() -> None:
    sentence = "a shard [b]ends\x1b too early; " * 8
    names = Column[str]("Shard\x1b", lambda _: "n" * 30, fold=12)
    shown = FittedTable([sentence], [names, Column("Problem", str, justify="left", fold=1000)])
    for width in (40, 80):
        printed = lines(shown, width)  # type: ignore[arg-type]
        assert max(map(len, printed)) <= width
        assert printed[0].split() == ["Shard\\x1b", "Problem"]
        assert "".join(line[:12].strip() for line in printed[2:]) == "n" * 30
        told = " ".join(line[13:].strip() for line in printed[2:]).split()
        assert told == sentence.replace("\x1b", "\\x1b").split()
    facts = lines(facts_table([("limit", "the first 3"), ("data\x07", "[b]a.jsonl")]), 40)  # type: ignore[arg-type]
    assert [line.rstrip().split(None, 1) for line in facts] == [["limit", "the first 3"], ["data\\x07", "[b]a.jsonl"]]


def test_very_many_rows_are_counted_instead_of_shown() -> None:
    printed = lines(table([(f"label {number}", number) for number in range(MOST_ROWS + 5)]), 100)
    assert "(5 more)" in {line.strip() for line in printed}
    assert len(printed) < MOST_ROWS + 10
    for most_rows in (1, 3):
        shown = FittedTable(ROWS, COLUMNS, most_rows=most_rows)._repr_html_()
        assert ("ArXiv" in shown, "(1 more)" in shown) == (most_rows > 1, most_rows == 1)


def test_notebooks_get_every_column_and_escaped_labels() -> None:
    shown = table([("<script>\x1b", 1234)])._repr_html_()
    assert "<td>&lt;script&gt;\\x1b</td><td>1,234</td><td>1.23 kB</td><td>kept</td>" in shown
    assert shown.count("<tr>") == 4


def test_counts_are_rounded_to_three_digits() -> None:
    rounded = {0: "0", 999: "999", 1000: "1.00k", 9995: "10.0k", 99_950: "100k", 999_500: "1.00M", 10**18: "1000P"}
    assert {number: rounded_count(number) for number in rounded} == rounded
    assert rounded_bytes(float("nan")) == "–"


@given(st.integers(0, 10**17))
def test_rounded_numbers_are_short_and_near(number: int) -> None:
    text = rounded_count(number)
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}.get(text[-1], 1)
    assert len(text) <= 5
    assert float(text.rstrip("kMGTP")) * factor == pytest.approx(number, rel=0.00501)
    value, unit = rounded_bytes(number).split()
    assert len(value) <= 4
    power = ["B", "kB", "MB", "GB", "TB", "PB"].index(unit)
    assert float(value) * 1000**power == pytest.approx(number, rel=0.00501, abs=0.5)
    assert len(rounded_bytes(number, "")) <= 5
