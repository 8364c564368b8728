"""The result of `tokenize_corpus`: counts of each subset, and the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilekit.shards.read.damage import BadLine, SkippedLines

if TYPE_CHECKING:
    import pyarrow as pa

    from pilekit.fitted_table import FittedTable


@dataclass(frozen=True, slots=True)
class TokenizedSubset:
    """Documents, tokens (EOD counted) and UTF-8 bytes of text of one subset, or of all."""

    name: str
    documents: int
    tokens: int
    bytes: int

    def to_dict(self) -> dict[str, int]:
        """The counts, for programs."""
        return {"documents": self.documents, "tokens": self.tokens, "bytes": self.bytes}


@dataclass(frozen=True, slots=True)
class TokenizedCorpus:
    """The result of `tokenize_corpus`.

    subsets   those that have documents, the largest first
    total     all subsets together
    empty     documents without tokens; they are in no file and not in the counts
    skipped   the bad lines skipped
    dtype     of the ids: "uint16", "int32" or "uint32"
    files     all files written but the header
    """

    subsets: tuple[TokenizedSubset, ...]
    total: TokenizedSubset
    empty: int
    skipped: SkippedLines
    dtype: str
    files: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path, results: Mapping[str, Any]) -> TokenizedCorpus:
        """The result that a header in `folder` tells."""
        subsets = [TokenizedSubset(name, **counts) for name, counts in results["subsets"].items()]
        skipped = SkippedLines(results["skipped"], [BadLine(*bad) for bad in results["bad_lines"]])
        total = TokenizedSubset("total", *(results[name] for name in ("documents", "tokens", "bytes")))
        files = tuple(folder / name for name in results["files"])
        return cls(tuple(subsets), total, results["empty"], skipped, results["dtype"], files)

    def to_dict(self) -> dict[str, Any]:
        """All counts and paths, for programs."""
        return {
            **self.total.to_dict(),
            "empty": self.empty,
            "skipped": self.skipped.count,
            "dtype": self.dtype,
            "files": [str(path) for path in self.files],
            "subsets": {subset.name: subset.to_dict() for subset in self.subsets},
        }

    def to_arrow(self) -> pa.Table:
        """A row per subset with its counts, for pandas, polars and plots."""
        import pyarrow as pa

        return pa.Table.from_pylist([{"subset": subset.name, **subset.to_dict()} for subset in self.subsets])

    def table(self) -> FittedTable[TokenizedSubset]:
        """A row per subset, the largest first, and the total."""
        from pilekit.fitted_table import Column, FittedTable, rounded_bytes

        columns: list[Column[TokenizedSubset]] = [
            Column("Subset", lambda row: "Total" if row is self.total else row.name),
            Column("Documents", lambda row: f"{row.documents:,}"),
            Column("Tokens", lambda row: f"{row.tokens:,}"),
            Column("Text", lambda row: rounded_bytes(row.bytes)),
        ]
        return FittedTable(self.subsets, columns, [self.total])

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def joined_results(shards: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of all shards together, as a header keeps them."""
    sums: dict[str, list[int]] = {}
    empty, skipped = 0, SkippedLines()
    for shard in shards:
        for name, counts in shard["subsets"].items():
            sums[name] = [one + more for one, more in zip(sums.get(name, [0] * 3), counts, strict=True)]
        empty += shard["empty"]
        skipped.merge(SkippedLines(shard["skipped"], [BadLine(*bad) for bad in shard["bad_lines"]]))
    subsets = [TokenizedSubset(name, *counts) for name, counts in sums.items()]
    subsets.sort(key=lambda subset: (-subset.bytes, -subset.documents, subset.name))
    total = TokenizedSubset("total", *(sum(column) for column in zip(*sums.values(), strict=True)))
    return {
        **total.to_dict(),
        "empty": empty,
        "skipped": skipped.count,
        "bad_lines": [[bad.path, bad.line, bad.reason] for bad in skipped.examples],
        "subsets": {subset.name: subset.to_dict() for subset in subsets},
    }
