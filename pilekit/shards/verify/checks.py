"""What is said about a shard against its text: labels by the manifest, rows by the index, frames by a seek table.

Labels and rows are compared batch by batch as the shard is read, in bounded memory. Frames matter after damage: a
decoder cannot resume behind it, and nothing in a frame says where the next one begins. A seek table or an index does.
With one, every frame is checked by itself, and of two frames that ran into each other the first is the damaged one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import zip_longest
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from pilekit.corpus import UNLABELLED, Manifest, Shard
from pilekit.errors import visible
from pilekit.shards.fingerprint import Fingerprint
from pilekit.shards.index.format import ShardIndex, misfit
from pilekit.shards.index.metadata import Frames
from pilekit.shards.index.scan import IndexScan
from pilekit.shards.read.damage import ShardDamage
from pilekit.shards.read.reader import record_format
from pilekit.shards.read.zstd_frames import decompress_frame_at, is_skippable
from pilekit.shards.verify.findings import MOST_FINDINGS, Finding, FindingList, Tally

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_CHARACTERS = 200
"""The length at which labels are cut: a hostile one may be a gigabyte."""
REMEDY = "find out which of the two is right, then make it anew with pilekit index"

SeekTable = list[tuple[int, int]]


class UnknownLabels:
    """Labels that the manifest does not list: where each occurs first, and how often.

    A manifest without subsets knows every label.
    """

    def __init__(self, manifest: Manifest):
        self.manifest, self.label_path = visible(manifest.name, 60), visible(manifest.label_path, 60)
        self.known = {subset.name for subset in manifest.subsets}
        self.found: dict[str, tuple[int, Tally]] = {}  # label -> first line, documents
        self.others = Tally()

    def see(self, batch: pa.RecordBatch, frame_of: Callable[[int], int]) -> None:
        """Count those of a batch of the scan, which tells the frame of each document."""
        subsets = batch.column("subset")
        labels = subsets.dictionary.to_pylist()
        unknown = np.array([label not in self.known for label in labels], dtype=bool)
        if not self.known or not unknown.any():
            return
        codes = subsets.indices.to_numpy()
        places = np.flatnonzero(unknown[codes])
        numbers = batch.column("number").to_numpy()[places].tolist()
        for number, code in zip(numbers, codes[places].tolist(), strict=True):
            label = labels[code][:KEPT_CHARACTERS]
            if label not in self.found and len(self.found) < MOST_FINDINGS:
                self.found[label] = number + 1, Tally()
            (self.found[label][1] if label in self.found else self.others).add(frame_of(number))

    def findings(self, shard: str, below: int | None) -> list[Finding]:
        """One for each label, by its first line; with `below` only of documents in frames before that one."""
        findings = []
        for label, (line, tally) in sorted(self.found.items(), key=lambda item: item[1][0]):
            documents = tally.below(below)
            if not documents:
                continue
            many = f"{documents:,} document{'s' * (documents > 1)}"
            if label == UNLABELLED:
                what = f'{many} without label, which the manifest {self.manifest} says is at "{self.label_path}"'
            else:
                what = f'{many} labelled "{visible(label, 60)}", which the manifest {self.manifest} does not list'
            findings.append(Finding(shard, f"{what}; name the corpus's own manifest with --manifest", line=line))
        if others := self.others.below(below):
            more = f"{others:,} more documents with labels that the manifest {self.manifest} does not list"
            findings.append(Finding(shard, more))
        return findings


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

    def conclude(self, scan: IndexScan, findings: FindingList, *, whole: bool, suspect_from: int | None) -> None:
        """Add what is wrong, at most one finding.

        whole          the shard was read to its end
        suspect_from   the number of the line from which on damage may have changed the text
        """
        if suspect_from is not None and self.differs_at is not None and self.differs_at >= suspect_from:
            self.differs_at = None
        if whole and self.comparable and self.differs_at is None:
            for rows in self._next(1):
                self.differs_at = rows.column("number")[0].as_py()
        if whole and self.misfit is not None and self.index.header.lines > scan.lines:
            self.differs_at = scan.lines if self.differs_at is None else min(self.differs_at, scan.lines)
        place = f"its index {visible(self.index.path)}"
        line = None if self.differs_at is None else self.differs_at + 1
        if self.misfit is not None and not self.other_fields:
            how = ", with the same documents" if whole and self.comparable else ""
            if line is not None:
                how = f", and the documents differ from line {line:,} on"
            findings.add(f"{place} {self.misfit}{how}; {REMEDY}", line=line)
        elif line is not None:
            findings.add(f"{place} says otherwise from line {line:,} on; {REMEDY}", line=line)
        elif whole and (others := self._other_figures(scan)):
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


class KnownFrame(NamedTuple):
    """What is known of a frame without decoding it: where it begins and, if told, its text's bytes and first line."""

    offset: int
    size: int | None
    line: int | None


def known_frames(file: BinaryIO, table: SeekTable | None, index: ShardIndex | None) -> list[KnownFrame]:
    """The frames that the seek table lists or, without one, the index; none if there is neither.

    Lines are the index's, for the frames on which both agree.
    """
    frames = () if index is None else zip(index.frames.offset.tolist(), index.frames.line.tolist(), strict=True)
    lines = {offset: line + 1 for offset, line in frames}
    if table is None:
        return [KnownFrame(offset, None, line) for offset, line in lines.items()]
    return [KnownFrame(offset, size, lines.get(offset)) for offset, size in _listed(file, table)]


def locate(damage: ShardDamage, begins: list[int], read: int, lines: int) -> tuple[int | None, int, str, bool]:
    """What stopped reading: (frame, its first suspect byte, what is wrong, whether all its lines are suspect).

    Without frames (gzip) all lines from that byte on.

    begins   where frames begin, as far as that is known, and behind them where the last one ends
    read     how many frames reading came to
    lines    how many lines were read
    """
    number = damage.frame
    if damage.since is not None:
        place = f"it lies in bytes {damage.since:,} to {damage.byte:,} and was noticed after {lines:,} lines"
        return number, damage.since, f"{damage.reason} ({place})", True
    if number is None:
        return None, damage.byte, damage.reason, False
    if 0 < number == read < len(begins) and begins[number] != damage.byte:
        number -= 1  # No frame was where one should be: the frame before ended there, and is the damaged one.
    elif not (number + 1 < len(begins) and damage.byte > begins[number + 1]):
        return number, damage.byte, damage.reason, False
    return number, begins[number], f"frame {number} does not end where the next one begins; fetch it again", True


def check_frames(file: BinaryIO, frames: list[KnownFrame], first: int, damage: FindingList, other: FindingList) -> None:
    """Decode each of the frames from number `first` on by itself; adds what is damaged, and what has another size."""
    for number, frame in enumerate(frames[first:], first):
        try:
            decoded = sum(map(len, decompress_frame_at(file, frame.offset, number=number)))
        except ShardDamage as found:
            damage.add(found.reason, frame=number, line=frame.line, byte=frame.offset)
        else:
            if frame.size not in (None, decoded):
                other.add(_wrong_size(number, decoded, frame.size), frame=number, line=frame.line, byte=frame.offset)


def compare_table(file: BinaryIO, table: SeekTable, scan: IndexScan, findings: FindingList) -> None:
    """Whether the seek table lists just the frames that were read; the first that differs is told."""
    begins, texts = scan.frames.offset.tolist(), [*scan.frames.text_offset.tolist(), scan.content_bytes]
    read = [(begin, texts[number + 1] - texts[number]) for number, begin in enumerate(begins)]
    for number, (listed, found) in enumerate(zip_longest(_listed(file, table), read)):
        if listed != found:
            line = int(scan.frames.line[number]) + 1 if found else None
            byte = min(frame[0] for frame in (listed, found) if frame)
            if listed and found and listed[0] == found[0]:
                what = _wrong_size(number, found[1], listed[1])
            else:
                what = f"frame {number} is not where the seek table says; write the file anew with pilekit reframe"
            findings.add(what, frame=number, line=line, byte=byte)
            return


def _listed(file: BinaryIO, table: SeekTable) -> Iterator[tuple[int, int]]:
    """(offset, decoded bytes) of the zstd frames in a table, which lists skippable ones too."""
    offset = 0
    for stored, decoded in table:
        if not decoded:
            file.seek(offset)
        if decoded or not is_skippable(file.read(4)):
            yield offset, decoded
        offset += stored


def _wrong_size(number: int, size: int, listed: int | None) -> str:
    return (
        f"frame {number} decodes to {size:,} bytes, the seek table says {listed:,}; write the file anew with "
        "pilekit reframe"
    )
