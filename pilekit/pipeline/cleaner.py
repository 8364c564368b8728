"""`Cleaner` cleans each batch of `clean_corpus` and counts the documents; `CleanResult` holds the counts of all.

All rules judge the unchanged text. Then documents that fail a rule are dropped, and the texts of the others are cut and
redacted. Documents of subsets that are not judged pass untouched, or are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pilekit.display.table_result import TableResult
from pilekit.documents import DocumentBatch, add_counts, check_labels, check_none_lost
from pilekit.pipeline.language import Language
from pilekit.pipeline.rules.rule_set import Fails, RuleSet
from pilekit.pipeline.rules.scanned_texts import ScannedTexts
from pilekit.shards.read.read_errors import SkippedLines

if TYPE_CHECKING:
    from pilekit.display.fitted_table import FittedTable

PARTS = ("kept", "dropped", "skipped", "left_out")

Row = tuple[str, Mapping[str, Any], int]
"""A subset or rule, its `documents`, `alone` (of a rule) and `bytes`, and the documents read of the subset."""


@dataclass(frozen=True)
class Cleaner:
    """How documents are judged and changed.

    rules     sets by name
    subsets   the subsets that are judged; None: all
    edits     functions that are applied in turn to the documents that stay
    only      leave out the documents of subsets that are not judged
    """

    rules: Mapping[str, RuleSet] = field(default_factory=dict)
    subsets: Sequence[str] | None = None
    language: Language | None = None
    edits: Sequence[Callable[[DocumentBatch], DocumentBatch]] = ()
    only: bool = False

    def judges(self, subset: str) -> bool:
        """Whether documents of the subset are judged."""
        return self.subsets is None or subset in self.subsets

    def judge(self, batch: DocumentBatch) -> tuple[dict[str, Fails], dict[str, Any]]:
        """(whether each document fails, the values judged) for each rule, by SET.rule; all subsets are judged."""
        texts, sets = ScannedTexts(batch), {f"{name}.": rules for name, rules in self.rules.items()}
        fails: dict[str, Fails] = {}
        values: dict[str, Any] = {}
        for prefix, rules in (sets if self.language is None else {**sets, "": self.language}).items():
            measured = rules.measure(texts)
            fails.update({prefix + rule: of_rule for rule, of_rule in rules.fails(measured).items()})
            values.update({prefix + rule: of_rule for rule, of_rule in measured.items()})
        return fails, values

    def clean(
        self, batch: DocumentBatch, subsets: dict[str, dict[str, Any]]
    ) -> tuple[DocumentBatch, list[dict[str, Any]]]:
        """(the documents to write, a row of `dropped.parquet` for each dropped document).

        subsets   counts by subset; the counts of the batch are added
        """
        chosen = [index for index, subset in enumerate(batch.subsets) if self.judges(subset)]
        fails, values = self.judge(batch.take(chosen) if len(chosen) < len(batch) else batch)
        failed: list[list[str]] = [[] for _ in range(len(batch))]
        for rule, of_rule in fails.items():
            for index in np.flatnonzero(of_rule).tolist():
                failed[chosen[index]].append(rule)
        passed = [index for index in chosen if not failed[index]]
        edited = batch
        if self.edits:
            new_texts = reduce(lambda part, edit: edit(part), self.edits, batch.take(passed)).texts
            texts = dict(enumerate(batch.texts)) | dict(zip(passed, new_texts, strict=True))
            edited = batch.with_texts(list(texts.values()))  # the same batch if no text is changed
        for name in sorted(set(batch.subsets) - subsets.keys()):
            subsets[name] = no_counts(fails if self.judges(name) else ())
        check_labels(subsets)
        rows, stay = [], []
        sizes = batch.text_bytes()
        new_sizes = sizes if edited is batch else edited.text_bytes()
        columns = (batch.numbers.tolist(), batch.subsets, sizes.tolist(), new_sizes.tolist(), failed)
        for index, (number, name, size, new_size, rules) in enumerate(zip(*columns, strict=True)):
            part = "dropped" if rules else "kept" if self.judges(name) or not self.only else "left_out"
            counts = subsets[name]
            counts["read"] += 1
            counts[part] += 1
            counts["edited"] += index in edited.edited
            counts["bytes"]["read"] += size
            if part in counts["bytes"]:
                counts["bytes"][part] += new_size
            stay.append(part == "kept")
            if rules:
                rows.append({"shard": batch.shard, "number": number, "subset": name, "bytes": size, "rules": rules})
            for rule in rules:
                rule_counts = counts["rules"][rule]
                rule_counts["documents"] += 1
                rule_counts["alone"] += len(rules) == 1
                rule_counts["bytes"] += size
        for index, (label, _) in zip(chosen, values.get("language", ()), strict=False):
            languages = subsets[batch.subsets[index]].setdefault("languages", {})
            languages[label] = languages.get(label, 0) + 1
        return edited.where(stay), rows


@dataclass(frozen=True, repr=False)
class CleanResult(TableResult):
    """The result of `clean_corpus`.

    folder    where the shards are; None if they were only counted
    summary   read, kept, dropped, skipped, left_out, edited, bytes and rules, and the same for each subset
    skipped   the bad lines skipped
    """

    folder: Path | None
    summary: dict[str, Any]
    skipped: SkippedLines

    def table(self) -> FittedTable[Row]:
        """A row for each judged subset and, below it, each rule; then all subsets together, if there are several."""
        from pilekit.display.fitted_table import DASH, Column, FittedTable, percentage, rounded_bytes

        def rows(name: str, counts: Mapping[str, Any]) -> list[Row]:
            read, total = counts["read"], {"documents": counts["dropped"], "bytes": counts["bytes"]["dropped"]}
            return [
                (name, total, read),
                *((f"  {rule}", rule_counts, read) for rule, rule_counts in counts["rules"].items()),
            ]

        def number(key: str, show: Callable[[int], str]) -> Callable[[Row], str]:
            return lambda row: show(row[1][key]) if key in row[1] else DASH

        judged = [(name, counts) for name, counts in self.summary["subsets"].items() if counts["rules"]]
        shown = [row for name, counts in judged for row in rows(name, counts)]
        together = reduce(add_counts, (counts for _, counts in judged), no_counts())
        totals = rows("All subsets", together) if len(judged) > 1 else []
        columns: list[Column[Row]] = [
            Column("Dropped by", lambda row: row[0]),
            Column("Documents", number("documents", "{:,}".format)),
            Column("Alone", number("alone", "{:,}".format)),
            Column("Bytes", number("bytes", rounded_bytes)),
            Column("Of docs %", lambda row: percentage(row[1]["documents"] / row[2]) if row[2] else DASH),
        ]
        return FittedTable(shown, columns, totals, ("Bytes",), most_rows=len(shown))


def summarize(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary of all shards' results; `PilekitError` if the counts do not add up."""
    results = list(results)
    subsets: dict[str, Any] = reduce(add_counts, (result["subsets"] for result in results), {})
    subsets = dict(sorted(subsets.items(), key=lambda item: (-item[1]["bytes"]["read"], item[0])))
    total = reduce(add_counts, subsets.values(), no_counts())
    total["skipped"] = sum(result["skipped"] for result in results)
    total["read"] += total["skipped"]
    check_none_lost({"all": total, **subsets}, PARTS)
    return {**total, "subsets": subsets}


def no_counts(rules: Iterable[str] = ()) -> dict[str, Any]:
    """The counts of a subset before any document was read."""
    return {
        **dict.fromkeys(("read", *PARTS, "edited"), 0),
        "bytes": {"read": 0, "kept": 0, "dropped": 0},
        "rules": {rule: {"documents": 0, "alone": 0, "bytes": 0} for rule in rules},
    }
