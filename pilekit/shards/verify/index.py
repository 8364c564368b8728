"""Whether an index says what the shard says: compared batch by batch as the shard is read, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from pilekit.corpus import Manifest, Shard
from pilekit.errors import visible
from pilekit.shards.fingerprint import Fingerprint
from pilekit.shards.index.format import ShardIndex, misfit
from pilekit.shards.index.metadata import Frames
from pilekit.shards.index.scan import IndexScan
from pilekit.shards.read.reader import record_format

if TYPE_CHECKING:
    import pyarrow as pa

    from pilekit.shards.verify.findings import FindingList

REMEDY = "find out which of the two is right, then make it anew with pilekit index"


class IndexComparison:
    """Compares an index with the shard it lies beside.

    Call `see` with each batch of the scan, then `conclude`. An index of other bytes (its fingerprint does not fit) is
    compared too, to say from which line on the two differ.
    """

    def __init__(self, index: ShardIndex, shard: Shard, now: Fingerprint, manifest: Manifest):
        self.index, self.shard = index, shard
        self.misfit = misfit(index.header, now, manifest)
        format = record_format(manifest)
        places = index.header.text_field, index.header.label_path
        self.comparable = places == (format.text_field, ".".join(format.label_path))
        # Of this very shard, but of other documents: nothing is wrong, and the stored text can still be compared.
        self.other_fields = not self.comparable and (index.header.size, index.header.sample) == (now.size, now.sample)
        self.differs_at: int | None = None  # number of the first document that is not the same in both
        self.text_bytes = 0
        self._parts = index.row_groups()
        self._rows: pa.Table | None = None

    def see(self, batch: pa.RecordBatch) -> None:
        """Compare the next documents of the shard; `PilekitError` if the rows of the index are damaged."""
        if not self.comparable or self.differs_at is not None:
            return
        self.text_bytes += int(np.sum(batch.column("text_bytes").to_numpy()))
        at = 0
        for rows in self._next(len(batch)):
            self.differs_at = _first_difference(batch.slice(at, len(rows)), rows)
            if self.differs_at is not None:
                return
            at += len(rows)
        if at < len(batch):
            self.differs_at = batch.column("number")[at].as_py()

    def forget_from(self, number: int) -> None:
        """Drop what was seen at or behind a document number: the text was damaged there."""
        if self.differs_at is not None and self.differs_at >= number:
            self.differs_at = None

    def conclude(self, scan: IndexScan | None, findings: FindingList) -> None:
        """Add what is wrong, at most one finding; `scan` is None where the shard was not read to its end."""
        if scan is not None and self.comparable and self.differs_at is None:
            for rows in self._next(1):
                self.differs_at = rows.column("number")[0].as_py()
        if scan is not None and self.misfit is not None and self.index.header.lines > scan.lines:
            self.differs_at = scan.lines if self.differs_at is None else min(self.differs_at, scan.lines)
        place = f"its index {visible(self.index.path)}"
        line = None if self.differs_at is None else self.differs_at + 1
        if self.misfit is not None and not self.other_fields:
            if line is not None:
                how = f", and the documents differ from line {line:,} on"
            else:
                how = ", with the same documents" if scan is not None and self.comparable else ""
            findings.add(f"{place} {self.misfit}{how}; {REMEDY}", line=line)
        elif line is not None:
            findings.add(f"{place} says otherwise from line {line:,} on; {REMEDY}", line=line)
        elif scan is not None and (others := self._other_figures(scan)):
            findings.add(f"{place} says otherwise of the whole shard ({', '.join(others)}); {REMEDY}")

    def _next(self, wanted: int) -> Iterator[pa.Table]:
        """The next `wanted` rows of the index, in parts; fewer if there are no more."""
        while wanted:
            if self._rows is None or not len(self._rows):
                self._rows = next(self._parts, None)
                if self._rows is None:
                    return
                continue
            part, self._rows = self._rows.slice(0, wanted), self._rows.slice(wanted)
            wanted -= len(part)
            yield part

    def _other_figures(self, scan: IndexScan) -> list[str]:
        """Which figures of the header differ where all documents agree."""
        header = self.index.header
        figures = {
            "lines": (header.lines, scan.lines),
            "text_bytes": (header.text_bytes, self.text_bytes),
            "content_bytes": (header.content_bytes, scan.content_bytes),
            "content_hash": (header.content_hash, scan.content_hash),
            "skipped": (header.skipped, scan.skipped.count),
            "examples": (header.examples, [(bad.line, bad.reason) for bad in scan.skipped.examples]),
        }
        if not self.comparable:
            figures = {name: figures[name] for name in ("lines", "content_bytes", "content_hash")}
        others = [name for name, (there, here) in figures.items() if there != here]
        here = scan.frames
        same = all(np.array_equal(getattr(self.index.frames, f.name), getattr(here, f.name)) for f in fields(Frames))
        return others if same else [*others, "frames"]


def _first_difference(batch: pa.RecordBatch, rows: pa.Table) -> int | None:
    """The number of the first document that is not the same in both, which are equally long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    differs = np.zeros(len(batch), dtype=bool)
    for name in ("number", "text_bytes", "text_hash"):
        differs |= batch.column(name).to_numpy() != rows.column(name).to_numpy()
    # As text: equal labels may have other numbers in each of the two dictionaries.
    here, there = (pa.chunked_array(part).cast(pa.string()) for part in ([batch["subset"]], rows["subset"].chunks))
    differs |= pc.not_equal(here, there).to_numpy()
    if not differs.any():
        return None
    first = int(differs.argmax())
    return int(min(batch.column("number")[first].as_py(), rows.column("number")[first].as_py()))
