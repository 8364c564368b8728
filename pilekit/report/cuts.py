"""The sections of `clean`, `decontaminate` and `substrings`: what they dropped or cut, by which rule or text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pilekit.artifacts.checked import reason_of_damage
from pilekit.artifacts.own_file import read_own
from pilekit.cutting.result import SUMMARY, cuts_table, evaluations_table, has_answers, verdicts_table
from pilekit.errors import PilekitError
from pilekit.pipeline.cleaner import CleanResult
from pilekit.report.figures import bars
from pilekit.shards.read.read_errors import SkippedLines


def read_summary(folder: Path) -> dict[str, Any]:
    """The folder's `summary.json`; PilekitError if it cannot be read or has no subsets."""
    path = folder / SUMMARY
    try:
        summary: dict[str, Any] = msgspec.json.decode(read_own(path), type=dict[str, Any])
        summary["subsets"].items()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, AttributeError) as error:
        raise PilekitError(f"{path}: is no summary: {reason_of_damage(error)}; run it again") from error
    return summary


def cleaning_content(folder: Path) -> dict[str, Any]:
    """The documents that `pilekit clean` dropped, by rule."""
    summary = read_summary(folder)
    rules = {name: counts for name, counts in summary["rules"].items() if counts["documents"]}
    names = sorted(rules, key=lambda name: -rules[name]["documents"])
    series = {
        "fail this rule alone": [rules[name]["alone"] for name in names],
        "fail other rules too": [rules[name]["documents"] - rules[name]["alone"] for name in names],
    }
    label = f"Documents dropped by rule, {folder}"
    return {
        "summary": summary,
        "svg": bars(names, series, label, "documents") if names else None,
        "dropped": CleanResult(folder, summary, SkippedLines()).table() if summary["rules"] else None,
    }


def cut_content(folder: Path) -> dict[str, Any]:
    """The cuts of `pilekit decontaminate` or `pilekit substrings`."""
    summary = read_summary(folder)
    is_judged = "evaluations" in summary and has_answers(summary)
    return {
        "summary": summary,
        "svg": shares_of(summary, ("cut", "dropped"), f"Cut from each subset, {folder}"),
        "removed": cuts_table(summary),
        "evaluations": evaluations_table(summary) if "evaluations" in summary else None,
        "verdicts": verdicts_table(summary) if is_judged else None,
    }


def shares_of(summary: dict[str, Any], kinds: tuple[str, str], label: str) -> Any:
    """A bar for each subset that was read: the share of its documents that is counted under each of `kinds`."""
    subsets = {name: counts for name, counts in summary["subsets"].items() if counts["read"]}
    series = {kind: [100 * counts[kind] / counts["read"] for counts in subsets.values()] for kind in kinds}
    return bars(list(subsets), series, label, "documents, %")
