"""`Cleaned`: the result of `clean_corpus`, its summary, and its tables with the counts of each rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilekit.errors import PilekitError, visible
from pilekit.shards.read.damage import SkippedLines
from pilekit.table_result import TableResult

if TYPE_CHECKING:
    from pilekit.fitted_table import Column, FittedTable

PARTS = ("kept", "dropped", "skipped", "left_out")

MOST_ROWS = 1000

Row = tuple[str, Mapping[str, Any], int]
"""A subset or rule, its `documents`, `alone` (of a rule) and `bytes`, and the documents read of the subset."""


@dataclass(frozen=True, repr=False)
class Cleaned(TableResult):
    """The result of `clean_corpus`.

    folder    where the shards are; None if they were only counted
    summary   read, kept, dropped, skipped, left_out, edited, bytes and rules, and the same for each subset
    skipped   the bad lines skipped
    judged    the subsets that were judged, the largest first
    """

    folder: Path | None
    summary: dict[str, Any]
    skipped: SkippedLines
    judged: tuple[str, ...]

    def table(self) -> FittedTable[Row]:
        """A row for each judged subset that loses documents and each rule that they fail, then all subsets together."""
        from pilekit.fitted_table import DASH, Column, FittedTable, rounded_bytes

        def rows(name: str, counts: Mapping[str, Any], every: bool) -> list[Row]:
            read, total = counts["read"], {"documents": counts["dropped"], "bytes": counts["bytes"]["dropped"]}
            rules = [(f"  {rule}", of, read) for rule, of in counts["rules"].items() if every or of["documents"]]
            return [(name, total, read), *rules]

        def number(key: str, show: Callable[[int], str]) -> Callable[[Row], str]:
            return lambda row: show(row[1][key]) if key in row[1] else DASH

        judged = [(name, self.summary["subsets"][name]) for name in self.judged]
        if len(judged) == 1:
            shown, totals = rows(*judged[0], every=True), []
        else:
            shown = [row for name, counts in judged if counts["dropped"] for row in rows(name, counts, every=False)]
            together = reduce(added, (counts for _, counts in judged), no_counts())
            totals = rows("All subsets", together, every=True)
        columns: list[Column[Row]] = [
            Column("Dropped by", lambda row: row[0]),
            Column("Documents", number("documents", "{:,}".format)),
            Column("Alone", number("alone", "{:,}".format)),
            Column("Bytes", number("bytes", rounded_bytes)),
            Column("Of docs %", lambda row: f"{100 * row[1]['documents'] / row[2]:.2f}" if row[2] else DASH),
        ]
        return FittedTable(shown, columns, totals, ("Bytes",), MOST_ROWS)


def summarize(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary of all shards' results; `PilekitError` if the counts do not add up."""
    results = list(results)
    subsets: dict[str, Any] = reduce(added, (result["subsets"] for result in results), {})
    subsets = dict(sorted(subsets.items(), key=lambda item: (-item[1]["bytes"]["read"], item[0])))
    total = reduce(added, subsets.values(), no_counts())
    total["skipped"] = sum(result["skipped"] for result in results)
    total["read"] += total["skipped"]
    for name, counts in (("all", total), *subsets.items()):
        if counts["read"] != sum(counts[part] for part in PARTS):
            shown = ", ".join(f"{counts[part]:,} {part}" for part in ("read", *PARTS))
            raise PilekitError(f"documents got lost ({visible(name)}): {shown}; please report this")
    return {**total, "subsets": subsets}


def no_counts(rules: Iterable[str] = ()) -> dict[str, Any]:
    """The counts of a subset before any document was read."""
    return {
        **dict.fromkeys(("read", *PARTS, "edited"), 0),
        "bytes": {"read": 0, "kept": 0, "dropped": 0},
        "rules": {rule: {"documents": 0, "alone": 0, "bytes": 0} for rule in rules},
    }


def added(one: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The sums of the numbers of the same names, in nested dicts too."""
    sums = dict(one)
    for name, value in more.items():
        sums[name] = added(sums.get(name, {}), value) if isinstance(value, Mapping) else sums.get(name, 0) + value
    return sums
