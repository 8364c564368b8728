"""Documents against the manifest's labels and the index's rows, compared as they are read, in bounded memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import numpy as np

from pilekit.corpus import UNLABELLED, Manifest
from pilekit.errors import visible
from pilekit.shards.fingerprint import Fingerprint
from pilekit.shards.index.document_rows import DocumentRows
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
        self.known = {subset.name for subset in manifest.subsets}
        self.first: dict[str, int] = {}  # label -> number of its first document, of a hundred labels
        self.documents: Counter[str] = Counter()  # of the same labels
        self.others = 0

    def see(self, rows: DocumentRows) -> None:
        """Count the unknown labels of the next documents."""
        unknown = np.array([label not in self.known for label in rows.labels], dtype=bool)
        if not self.known or not unknown.any():
            return
        places = np.flatnonzero(unknown[rows.codes])
        for number, code in zip(rows.numbers[places].tolist(), rows.codes[places].tolist(), strict=True):
            label = rows.labels[code][:KEPT_CHARACTERS]
            if label in self.first or len(self.first) < MOST_FINDINGS:
                self.first.setdefault(label, number)
                self.documents[label] += 1
            else:
                self.others += 1

    def findings(self, shard: str, below: int | None) -> list[Finding]:
        """A finding for each label, by its first line; with `below` only of labels that occur up to that line."""
        findings = []
        for label, number in self.first.items():
            if below is not None and number >= below:
                continue
            many = f"{self.documents[label]:,} document{'s' * (self.documents[label] > 1)}"
            if label == UNLABELLED:
                what = f'{many} without label, which the manifest {self.manifest} says is at "{self.label_path}"'
            else:
                what = f'{many} labelled "{visible(label, 60)}", which the manifest {self.manifest} does not list'
            findings.append(Finding(shard, f"{what}; name the corpus's own manifest with --manifest", line=number + 1))
        if self.others and below is None:
            more = f"{self.others:,} more documents with labels that the manifest {self.manifest} does not list"
            findings.append(Finding(shard, more))
        return findings


class IndexComparison:
    """Compares an index with the shard it lies beside, by the same text_field and label_path.

    Call `see` with the rows of the shard, then `conclude`. An index whose fingerprint does not fit is compared too, to
    find the first line at which the documents differ.
    """

    def __init__(self, index: ShardIndex, now: Fingerprint, manifest: Manifest):
        self.index, self.misfit = index, misfit(index.header, now, manifest)
        self.differs_at: int | None = None  # number of the first document that differs
        self.text_bytes = 0
        self._parts = index.rows()
        self._rows: DocumentRows | None = None

    def see(self, rows: DocumentRows) -> None:
        """Compare the next documents of the shard; `PilekitError` if the rows of the index are damaged."""
        if self.differs_at is not None:
            return
        self.text_bytes += int(rows.text_bytes.sum())
        while len(rows.numbers) and self.differs_at is None:
            there = self._next_rows()
            if there is None:
                self.differs_at = int(rows.numbers[0])
                return
            count = min(len(rows.numbers), len(there.numbers))
            self.differs_at = _first_difference(_part(rows, 0, count), _part(there, 0, count))
            rows, self._rows = _part(rows, count, None), _part(there, count, None)

    def _next_rows(self) -> DocumentRows | None:
        """Rows of the index that were not compared yet; None after the last."""
        if self._rows is None or not len(self._rows.numbers):
            self._rows = next(self._parts, None)
        return self._rows

    def conclude(self, scan: ShardScan, findings: FindingList, *, whole: bool, suspect_from: int | None) -> None:
        """Add a finding if the index is wrong, at most one.

        whole          the shard was read to its end
        suspect_from   the number of the first line whose text damage may have changed
        """
        if suspect_from is not None and self.differs_at is not None and self.differs_at >= suspect_from:
            self.differs_at = None
        if whole and self.differs_at is None and (left := self._next_rows()) is not None:
            self.differs_at = int(left.numbers[0])
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
        elif whole and (others := self._other_figures(scan)):
            findings.add(f"{place} says otherwise of the whole shard ({', '.join(others)}); {REMEDY}")

    def _other_figures(self, scan: ShardScan) -> list[str]:
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
        others = [name for name, (there, here) in figures.items() if there != here]
        frames = (
            (getattr(self.index.frames, column.name), getattr(scan.frames, column.name)) for column in fields(Frames)
        )
        return others if all(np.array_equal(there, here) for there, here in frames) else [*others, "frames"]


def _part(rows: DocumentRows, begin: int, end: int | None) -> DocumentRows:
    numbers, codes, labels, sizes, hashes = rows
    return DocumentRows(numbers[begin:end], codes[begin:end], labels, sizes[begin:end], hashes[begin:end])


def _first_difference(here: DocumentRows, there: DocumentRows) -> int | None:
    """The number of the first document that differs; both are equally long."""
    places = {label: place for place, label in enumerate(here.labels)}
    codes = np.array([places.get(label, -1) for label in there.labels], dtype=np.int64)[there.codes]
    differs = (here.numbers != there.numbers) | (here.codes != codes)
    differs |= (here.text_bytes != there.text_bytes) | (here.text_hashes != there.text_hashes)
    if not differs.any():
        return None
    first = int(differs.argmax())
    return int(min(here.numbers[first], there.numbers[first]))
