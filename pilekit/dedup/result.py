"""`DedupResult`: the folder of a finished run, its summary, its proofs and its signatures."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pilekit.artifacts.header import read_header
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus
from pilekit.corpus.manifest import recorded_manifest
from pilekit.dedup.previous_runs import KIND, RECORDS, finished_run
from pilekit.dedup.sketch.minhash import SEED, permutations, signatures
from pilekit.display.fitted_table import OTHERS, Column, FittedTable, count_columns, rounded_bytes
from pilekit.display.table_result import TableResult
from pilekit.errors import PilekitError
from pilekit.shards.index.format import find_index
from pilekit.shards.random_access.document_reader import DocumentReader
from pilekit.shards.read.read_errors import BadLine, SkippedLines

if TYPE_CHECKING:
    import datasketch
    import pyarrow as pa

REMOVED, SUMMARY = "removed.parquet", "summary.json"


@dataclass(frozen=True, repr=False)
class DedupResult(TableResult):
    """A finished run.

    folder     with clean/, masks/, sketches/, removed.parquet, summary.json
    summary    read, kept, removed, exact, near, skipped, and the same for each subset: the content of summary.json
    skipped    the bad lines
    """

    folder: Path
    summary: dict[str, Any]
    skipped: SkippedLines

    @classmethod
    def from_output(cls, output: Output, corpus: Corpus) -> DedupResult:
        """The result of a run whose folder is complete."""
        records = output.results()[RECORDS]
        bad_lines = [BadLine(corpus.shards[place].path, line, reason) for place, line, reason in records["bad_lines"]]
        summary = msgspec.json.decode((output.folder / SUMMARY).read_bytes())
        return cls(output.folder, summary, SkippedLines(summary["skipped"], bad_lines))

    @property
    def removed(self) -> pa.Table:
        """All removed documents by shard and number, each with the kept document that it resembles."""
        from pilekit.dedup.output.removed_format import REMOVALS, RemovalsHeader

        with REMOVALS.open_table(self.folder / REMOVED, RemovalsHeader) as (_, rows):
            return rows.read()

    def minhash(self, document: tuple[str, int]) -> datasketch.MinHash:
        """The MinHash of the document (shard name, document number), computed again from the shard.

        Raises PilekitError if a shard of the run has changed, or if there is no such document.
        """
        from datasketch import MinHash

        name, number = document
        run = finished_run(self.folder)
        shard = next((shard for shard in run.shards if shard.name == name), None)
        if shard is None:
            raise PilekitError(f"there is no shard {name} in what {self.folder} was made of")
        manifest, num_perm = recorded_manifest(run.parameters), run.parameters["num_perm"]
        with closing(DocumentReader(shard, find_index(shard, manifest), manifest=manifest)) as reader:
            text = np.frombuffer(reader.document(number).text.encode(), dtype=np.uint8)
        offsets = np.array([0, len(text)])
        values = signatures(text, offsets, run.parameters["ngram"], *permutations(num_perm))[0]
        return MinHash(num_perm, SEED, scheme="affine32", hashfunc=_low_half, hashvalues=values)

    def table(self) -> FittedTable[tuple[str, dict[str, Any]]]:
        """A row per compared subset, the largest first, one for all others together, and the total."""
        return removals_table(self.summary, read_header(self.folder, KIND).parameters["subsets"])

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.summary[name]:,} {name}" for name in ("read", "kept", "removed", "skipped"))
        return f"DedupResult({str(self.folder)!r}: {counts})"


def removals_table(
    summary: dict[str, Any], compared: Collection[str] | None
) -> FittedTable[tuple[str, dict[str, Any]]]:
    """The table of a summary; `compared` are the subsets that were compared, None for all."""
    names = ["read", "exact", "near", "kept", *(name for name in ("left_out", "like_held_out") if summary.get(name))]
    saved = Column[Any]("Saved", lambda row: rounded_bytes(row[1]["bytes"]["removed"]))
    columns = [*count_columns("Subset", *names), saved]
    rows = summary["subsets"]
    if compared is not None:
        uncompared = [counts for name, counts in rows.items() if name not in compared]
        rows = {name: counts for name, counts in rows.items() if name in compared}
        if uncompared:
            removed = sum(counts["bytes"]["removed"] for counts in uncompared)
            sums = {name: sum(counts[name] for counts in uncompared) for name in names}
            rows[OTHERS] = {**sums, "bytes": {"removed": removed}}
    return FittedTable(list(rows.items()), columns, [("Total", summary)], ("Saved", "Read"))


def _low_half(shingle: int) -> int:
    """datasketch's 32-bit hash of a shingle: the low half of ours."""
    return shingle & 0xFFFFFFFF
