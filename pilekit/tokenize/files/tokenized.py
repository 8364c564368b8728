"""The result of `tokenize_corpus`: counts of each subset, and the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pilekit.shards.read.damage import SkippedLines
from pilekit.table_result import TableResult

_COUNTS = ("documents", "tokens", "bytes")


@dataclass(frozen=True, slots=True, repr=False)
class TokenizedCorpus(TableResult):
    """The result of `tokenize_corpus`.

    documents, tokens, bytes   of all subsets: documents with tokens, their tokens (EOD counted) and UTF-8 bytes
    empty                      documents without tokens, which are in no file
    skipped                    the bad lines skipped
    dtype                      of the ids: "uint16", "int32" or "uint32"
    files                      all files written but the header; none for a part of a job
    subsets                    documents, tokens and bytes of each subset, by its name, the largest first
    """

    documents: int
    tokens: int
    bytes: int
    empty: int
    skipped: SkippedLines
    dtype: str
    files: tuple[Path, ...]
    subsets: dict[str, dict[str, int]]

    @classmethod
    def of(cls, folder: Path, results: Mapping[str, Any]) -> TokenizedCorpus:
        """The result in a header in `folder`."""
        told = {name: results[name] for name in (*_COUNTS, "empty", "dtype", "subsets")}
        return cls(**told, skipped=SkippedLines.noted(results), files=tuple(folder / name for name in results["files"]))

    def to_dict(self) -> dict[str, Any]:
        """All counts and paths, for programs."""
        return {**asdict(self), "skipped": self.skipped.count, "files": [*map(str, self.files)]}


def summed(shards: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of all shards summed, as a header keeps them."""
    sums: dict[str, list[int]] = {}
    empty, skipped = 0, SkippedLines()
    for shard in shards:
        for name, counts in shard["subsets"].items():
            sums[name] = [one + more for one, more in zip(sums.get(name, [0] * 3), counts, strict=True)]
        empty += shard["empty"]
        skipped.merge(SkippedLines.noted(shard))
    largest = sorted(sums.items(), key=lambda item: (-item[1][2], -item[1][0], item[0]))
    return {
        **dict(zip(_COUNTS, map(sum, zip([0] * 3, *sums.values(), strict=True)), strict=True)),
        "empty": empty,
        "skipped": skipped.count,
        "bad_lines": skipped.listed(),
        "subsets": {name: dict(zip(_COUNTS, counts, strict=True)) for name, counts in largest},
    }
