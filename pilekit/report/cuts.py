"""The sections of `clean`, `decontaminate` and `substrings`: what they dropped or cut, by which rule or text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pilekit.artifacts.header import Header
from pilekit.cutting.cut_result import CutCorpus, Decontamination
from pilekit.errors import visible
from pilekit.fitted_table import rounded_bytes, rounded_count
from pilekit.pipeline.cleaned import Cleaned
from pilekit.report.figures import bars
from pilekit.report.parts import Facts, Figure, Part, Source, Table, Texts
from pilekit.shards.read.damage import SkippedLines

LONGEST_PASSAGE = 400


def cleaning_parts(folder: Path, header: Header, summary: dict[str, Any], source: Source) -> Iterator[Part]:
    """The documents that `pilekit clean` dropped, by rule."""
    size = summary["bytes"]["dropped"]
    facts = [("documents read", rounded_count(summary["read"])), ("dropped", _share(summary["dropped"], summary))]
    facts += [("text dropped", rounded_bytes(size)), ("edited", rounded_count(summary["edited"]))]
    yield Facts(facts, source)
    rules = sorted(summary["rules"].items(), key=lambda item: -item[1]["documents"])
    rules = [(name, of) for name, of in rules if of["documents"]]
    if rules:
        series = {
            "fail this rule alone": [of["alone"] for _, of in rules],
            "fail other rules too": [of["documents"] - of["alone"] for _, of in rules],
        }
        svg = bars([name for name, _ in rules], series, f"Documents dropped by rule, {source.path}", "documents", 40)
        yield Figure("Dropped by each rule", svg, source)
    judged = header.parameters["subsets"] or list(summary["subsets"])
    cleaned = Cleaned(folder, summary, SkippedLines(), tuple(name for name in summary["subsets"] if name in judged))
    yield Table.fitted("Dropped, by subset and rule", cleaned.table(), source, "Alone: by no other rule.")


def cut_parts(folder: Path, header: Header, summary: dict[str, Any], source: Source) -> Iterator[Part]:
    """The cuts of `pilekit decontaminate` or `pilekit substrings`."""
    facts = [("documents read", rounded_count(summary["read"])), ("cut", _share(summary["cut"], summary))]
    facts += [("dropped", _share(summary["dropped"], summary)), ("spans", rounded_count(summary["spans"]))]
    yield Facts([*facts, ("characters removed", rounded_count(summary["characters_removed"]))], source)
    subsets = {name: one for name, one in summary["subsets"].items() if one["read"]}
    series = {kind: [100 * one[kind] / one["read"] for one in subsets.values()] for kind in ("cut", "dropped")}
    if any(map(any, series.values())):
        svg = bars(list(subsets), series, f"Cut from each subset, {source.path}", "documents, %")
        yield Figure("Documents cut and dropped", svg, source)
    yield Table.fitted("Cut from each subset", CutCorpus(folder, summary, SkippedLines()).table(), source)
    if "evaluations" in summary:
        evaluations = Decontamination(folder, summary, SkippedLines()).evaluations()
        yield Table.fitted(
            "Evaluations found in the corpus", evaluations, source, "Dirty: some of it is in the corpus."
        )
    if passages := summary.get("passages"):
        texts = [(f"{one['count']:,} times", visible(one["text"][:LONGEST_PASSAGE])) for one in passages]
        yield Texts("The passages that occur most often", texts, source)


def _share(count: int, summary: dict[str, Any]) -> str:
    return f"{100 * count / max(1, summary['read']):.1f} %"
