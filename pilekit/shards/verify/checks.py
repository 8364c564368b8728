"""Documents against the manifest's labels and the index's rows, compared as they are read, in bounded memory."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import xxhash

from pilekit.corpus import UNLABELLED, Manifest, subset_names
from pilekit.errors import counted, visible
from pilekit.shards.fingerprint import Fingerprint
from pilekit.shards.index.document_rows import DocumentRows, UInt64
from pilekit.shards.index.format import ShardIndex, misfit
from pilekit.shards.index.metadata import Frames
from pilekit.shards.index.scan import ShardScan
from pilekit.shards.verify.findings import MOST_FINDINGS, Finding, FindingList

KEPT_CHARACTERS = 200
"""Labels are cut to this length: a hostile label may be a gigabyte."""
REMEDY = "find out which of the two is right, then make it again with pilekit index"


class UnknownLabels:
    """Labels that the manifest does not list: where each occurs first, and how often.

    A manifest without subsets knows every label.
    """

    def __init__(self, manifest: Manifest):
        self.manifest, self.label_path = visible(manifest.name, 60), visible(manifest.label_path, 60)
        self.known, self.names = {subset.name for subset in manifest.subsets}, subset_names(manifest)
        self.counts: dict[str, list[int]] = {}  # for a hundred labels: the first document's number, and the count
        self.more_documents = 0  # of further labels

    def see(self, rows: DocumentRows) -> None:
        """Count the unknown labels of the next documents."""
        unknown = np.array([label not in self.known for label in rows.named(self.names).labels], dtype=bool)
        if not self.known or not unknown.any():
            return
        places = np.flatnonzero(unknown[rows.codes])
        for number, code in zip(rows.numbers[places].tolist(), rows.codes[places].tolist(), strict=True):
            label = rows.labels[code][:KEPT_CHARACTERS]
            if label in self.counts or len(self.counts) < MOST_FINDINGS:
                self.counts.setdefault(label, [number, 0])[1] += 1
            else:
                self.more_documents += 1

    def findings(self, shard: str, below: int | None) -> list[Finding]:
        """A finding for each label, at its first line; with `below`, only for labels that occur before it."""
        findings = []
        for label, (number, documents) in self.counts.items():
            if below is not None and number >= below:
                continue
            many = counted(documents)
            problem = f'{many} labelled "{visible(label, 60)}", which the manifest {self.manifest} does not list'
            if label == UNLABELLED:
                problem = f'{many} without label, which the manifest {self.manifest} says is at "{self.label_path}"'
            findings.append(
                Finding(shard, f"{problem}; name the corpus's own manifest with --manifest", line=number + 1)
            )
        if self.more_documents and below is None:
            more = (
                f"{counted(self.more_documents, 'more document')} with labels that the manifest {self.manifest} lacks"
            )
            findings.append(Finding(shard, more))
        return findings


class IndexComparison:
    """Compares an index with its shard, both with the same text_field and label_path.

    Call `see` with the rows of the shard, then `conclude`. An index whose fingerprint does not fit is compared too, to
    find the first line at which the documents differ.
    """

    def __init__(self, index: ShardIndex, now: Fingerprint, manifest: Manifest):
        self.index, self.misfit = index, misfit(index.header, now, manifest)
        self.differs_at: int | None = None  # number of the first document that differs
        self.text_bytes = 0
        self._parts = map(_as_numbers, index.rows())
        self._left = np.empty((4, 0), dtype=np.uint64)

    def see(self, rows: DocumentRows) -> None:
        """Compare the next documents of the shard; `PilekitError` if the rows of the index are damaged."""
        if self.differs_at is not None:
            return
        self.text_bytes += int(rows.text_bytes.sum())
        here = _as_numbers(rows)
        there = self._next(here.shape[1])
        different = np.flatnonzero((here[:, : there.shape[1]] != there).any(axis=0))
        if len(different):
            self.differs_at = int(min(here[0, different[0]], there[0, different[0]]))
        elif there.shape[1] < here.shape[1]:
            self.differs_at = int(here[0, there.shape[1]])

    def _next(self, rows: int) -> UInt64:
        """The next rows of the index, or all that are left."""
        while self._left.shape[1] < rows and (part := next(self._parts, None)) is not None:
            self._left = np.concatenate([self._left, part], axis=1)
        there, self._left = np.split(self._left, [rows], axis=1)
        return there

    def conclude(self, scan: ShardScan, findings: FindingList, *, whole: bool, suspect_from: int | None) -> None:
        """Add a finding if the index is wrong, at most one.

        whole          the shard was read to its end
        suspect_from   the number of the first line whose text damage may have changed
        """
        if suspect_from is not None and self.differs_at is not None and self.differs_at >= suspect_from:
            self.differs_at = None
        if whole and self.differs_at is None and (more := self._next(1)).size:
            self.differs_at = int(more[0, 0])
        if whole and self.misfit is not None and self.index.header.lines > scan.lines:
            self.differs_at = scan.lines if self.differs_at is None else min(self.differs_at, scan.lines)
        place = f"its index {visible(self.index.path)}"
        line = None if self.differs_at is None else self.differs_at + 1
        if self.misfit is not None:
            how = ", with the same documents" if whole else ""
            if line is not None:
                how = f", and the documents differ from line {line:,} on"
            findings.add(f"{place} {self.misfit}{how}; {REMEDY}", line=line)
        elif line is not None:
            findings.add(f"{place} says otherwise from line {line:,} on; {REMEDY}", line=line)
        elif whole and (names := self._differing_figures(scan)):
            findings.add(f"{place} says otherwise of the whole shard ({', '.join(names)}); {REMEDY}")

    def _differing_figures(self, scan: ShardScan) -> list[str]:
        """The names of the header's figures that differ although all documents agree."""
        header = self.index.header
        figures: dict[str, tuple[object, object]] = {
            "lines": (header.lines, scan.lines),
            "text_bytes": (header.text_bytes, self.text_bytes),
            "content_bytes": (header.content_bytes, scan.content_bytes),
            "content_hash": (header.content_hash, scan.content_hash),
            "skipped": (header.skipped, scan.skipped.count),
            "examples": (header.examples, [(bad.line, bad.reason) for bad in scan.skipped.examples]),
        }
        names = [name for name, (there, here) in figures.items() if there != here]
        frames = (
            (getattr(self.index.frames, column.name), getattr(scan.frames, column.name)) for column in fields(Frames)
        )
        return names if all(np.array_equal(there, here) for there, here in frames) else [*names, "frames"]


def _as_numbers(rows: DocumentRows) -> UInt64:
    """Number, hash of the label, text bytes and text hash of each document, uint64 [4, documents]."""
    labels = np.array([xxhash.xxh3_64_intdigest(label.encode()) for label in rows.labels], dtype=np.uint64)
    return np.stack(
        [rows.numbers.view(np.uint64), labels[rows.codes], rows.text_bytes.view(np.uint64), rows.text_hashes]
    )
