"""The section of counted phrases: how often phrases occur, and the most frequent of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from pilekit.display.fitted_table import DASH, Column, FittedTable
from pilekit.errors import shortened
from pilekit.report.figures import bars
from pilekit.trace.phrase_counts import PhraseCounts
from pilekit.trace.phrase_kernel import Int64
from pilekit.trace.result_file import reading_rows, saved_result

MOST_FREQUENT = 50
"""Phrases in the table."""
_CHARACTERS, _SUBSETS = 200, 3
"""Of a phrase in the table, and subsets beside it."""


def counts_content(path: Path) -> dict[str, Any]:
    """The phrases of a file of `pilekit count`."""
    with reading_rows(PhraseCounts, path):
        counts = saved_result(PhraseCounts, path)
        occurrences, rows = counts.occurrences(), counts.most_frequent(MOST_FREQUENT)
    return {
        "summary": counts.summary,
        "occurrences": int(occurrences.sum()),
        "frequencies": _frequencies(occurrences, path),
        "phrases": _table([row for row in rows if row["occurrences"]]),
    }


def _table(rows: list[dict[str, Any]]) -> FittedTable[dict[str, Any]]:
    def subsets(row: dict[str, Any]) -> str:
        return "; ".join(f"{one['subset']} {one['occurrences']:,}" for one in row["subsets"][:_SUBSETS]) or DASH

    columns = [
        Column[dict[str, Any]]("Phrase", lambda row: shortened(row["phrase"], _CHARACTERS)),
        Column("Occurrences", lambda row: f"{row['occurrences']:,}"),
        Column("Documents", lambda row: f"{row['documents']:,}"),
        Column("Most in", subsets),
    ]
    return FittedTable(rows, columns)


def _frequencies(occurrences: Int64, path: Path) -> Markup:
    """A bar for the phrases that do not occur, and for each power of ten of occurrences."""
    found = occurrences[occurrences > 0]
    counts = np.bincount(np.searchsorted(10 ** np.arange(1, 19), found, "right"))
    names = ["never", *(f"{10**place:,} to {10 ** (place + 1) - 1:,} times" for place in range(len(counts)))]
    series = {"phrases": [len(occurrences) - len(found), *counts.tolist()]}
    return bars(names, series, f"Occurrences of phrases in {path}", "phrases")
