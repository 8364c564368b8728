"""The labels of a shard that its manifest does not list: where each occurs first, and how often."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

from pilekit.corpus import UNLABELLED, Manifest
from pilekit.errors import visible
from pilekit.shards.verify.findings import MOST_FINDINGS, Finding, StateBefore

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_CHARACTERS = 200
"""What is kept of a label: a hostile one may be a gigabyte."""


class UnknownLabels:
    """Counts them, batch by batch; a manifest without subsets knows every label."""

    def __init__(self, manifest: Manifest):
        self.manifest, self.label_path = visible(manifest.name, 60), visible(manifest.label_path, 60)
        self.known = {subset.name for subset in manifest.subsets}
        self.found: dict[str, tuple[int, int]] = {}  # label -> first line, documents
        self.others = 0
        self.before: StateBefore[tuple[dict[str, tuple[int, int]], int]] = StateBefore()

    def see(self, batch: pa.RecordBatch, frame_of: Callable[[int], int]) -> None:
        """Count those in a batch of the scan, which tells the frame of each document."""
        if not self.known or self.known.issuperset(batch.column("subset").dictionary.to_pylist()):
            return
        numbers = batch.column("number").to_numpy()
        while len(numbers):
            frame = frame_of(int(numbers[0]))
            self.before.enter(frame, lambda: (dict(self.found), self.others))
            count = bisect_right(numbers, frame, key=lambda number: frame_of(int(number)))
            self._count(batch.slice(len(batch) - len(numbers), count))
            numbers = numbers[count:]

    def _count(self, batch: pa.RecordBatch) -> None:
        column = batch.column("subset")
        labels = column.dictionary.to_pylist()
        for value in column.indices.value_counts().to_pylist():
            label, documents = labels[value["values"]], value["counts"]
            if label in self.known:
                continue
            label = label[:KEPT_CHARACTERS]
            if label in self.found:
                line, before = self.found[label]
                self.found[label] = line, before + documents
            elif len(self.found) < MOST_FINDINGS:
                first = column.indices.index(value["values"]).as_py()
                self.found[label] = batch.column("number")[first].as_py() + 1, documents
            else:
                self.others += documents

    def forget_from(self, frame: int) -> None:
        """Drop what was seen in a frame, if it is the last one in which something was."""
        self.found, self.others = self.before.of(frame) or (self.found, self.others)

    def findings(self, shard: str) -> list[Finding]:
        """One for each label, by its first line."""
        findings = []
        for label, (line, documents) in sorted(self.found.items(), key=lambda item: item[1]):
            many = f"{documents:,} document{'s' * (documents > 1)}"
            if label == UNLABELLED:
                what = f'{many} without label, which the manifest {self.manifest} says is at "{self.label_path}"'
            else:
                what = f'{many} labelled "{visible(label, 60)}", which the manifest {self.manifest} does not list'
            findings.append(Finding(shard, f"{what}; name the corpus's own manifest with --manifest", line=line))
        if self.others:
            more = f"{self.others:,} more documents with labels that the manifest {self.manifest} does not list"
            findings.append(Finding(shard, more))
        return findings
