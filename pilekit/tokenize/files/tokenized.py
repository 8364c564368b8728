"""The result of `tokenize_corpus`: counts of each subset, and the files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pilekit.shards.read.damage import SkippedLines
from pilekit.table_result import TableResult

COUNTS = ("documents", "tokens", "bytes")


@dataclass(frozen=True, repr=False)
class TokenizedCorpus(TableResult):
    """The result of `tokenize_corpus`.

    summary   `documents` with tokens, their `tokens` (EOD counted) and UTF-8 `bytes`, of all and of each of `subsets`,
              the largest first; the number of `empty` documents, which are in no file, and of `skipped` lines; `dtype`
              of the ids; `files`, all that were written but the header
    skipped   the bad lines skipped
    """

    summary: dict[str, Any]
    skipped: SkippedLines


def summed(shards: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of all shards summed, as a header keeps them."""
    sums = defaultdict[str, Counter[str]](Counter)
    empty, skipped = 0, SkippedLines()
    for shard in shards:
        for name, counts in shard["subsets"].items():
            sums[name].update(counts)
        empty += shard["empty"]
        skipped.merge(SkippedLines.noted(shard))
    largest = sorted(sums.items(), key=lambda item: (-item[1]["bytes"], -item[1]["documents"], item[0]))
    subsets = {name: {count: counts[count] for count in COUNTS} for name, counts in largest}
    total = {count: sum(counts[count] for counts in subsets.values()) for count in COUNTS}
    return {**total, "empty": empty, "skipped": skipped.count, "bad_lines": skipped.listed(), "subsets": subsets}
