"""Verify one shard: in one pass over its stored bytes and, after damage, frame by frame."""

from __future__ import annotations

import hashlib
import re
from contextlib import closing
from dataclasses import replace
from typing import BinaryIO, NamedTuple

import numpy as np

from pilekit.corpus import Manifest, Shard
from pilekit.errors import PilekitError, counted, visible
from pilekit.shards.corpus_job import Share
from pilekit.shards.fingerprint import fingerprint
from pilekit.shards.index.format import ShardIndex, index_places, load_index
from pilekit.shards.index.scan import MARK_BYTES, ShardScan
from pilekit.shards.read.change_check import check_version, version_of
from pilekit.shards.read.open import ReadOptions, exists, open_file, open_stored, storage_of
from pilekit.shards.read.read_errors import LineTooLong, ShardDamage
from pilekit.shards.read.zstd_frames import LARGEST_HEADER, parse_frame_header
from pilekit.shards.verify.checks import IndexComparison, UnknownLabels
from pilekit.shards.verify.findings import Finding, FindingList
from pilekit.shards.verify.frames import KnownFrame, SeekTable, check_frames, compare_table, known_frames, locate
from pilekit.shards.write.seekable_frames import read_seek_table
from pilekit.workers import Advance

READ_BYTES = 1 << 20


class Expected(NamedTuple):
    """The SHA-256 that a shard should have, in hexadecimal, and the name of its source."""

    sha256: str
    source: str


class Verdict(NamedTuple):
    """The result for one shard.

    size        its stored bytes; 0 if it could not be read at all
    sha256      of its stored bytes, in hexadecimal; None if it was not requested
    unjudged    checks that were not possible: "cut" (no seek table, index or sum), "change" (no checksums, index or
                sum), "unread" (lines after damage), "fields" (documents of an index with other fields)
    """

    findings: list[Finding]
    size: int = 0
    sha256: str | None = None
    unjudged: tuple[str, ...] = ()


def verify_shard(
    task: tuple[Shard, Expected | None], advance: Advance, *, manifest: Manifest, hashed: bool, share: Share
) -> Verdict:
    """Read a shard once and list its problems.

    task     the shard, and its expected sum, if known
    hashed   whether its SHA-256 is computed even if none is expected
    """
    (shard, expected), read_bytes = task, 0

    def count_and_advance(amount: int) -> None:
        nonlocal read_bytes
        read_bytes += amount
        advance(amount)

    try:
        version = version_of(shard.path)
        with open_file(shard.path, scattered=True) as file:
            verdict = ShardCheck(shard, file, manifest, expected, hashed).run(share.read_options(count_and_advance))
        check_version(shard.path, version)
        size = verdict.size
    except (PilekitError, ShardDamage, OSError) as error:
        damage = error if isinstance(error, ShardDamage) else error.__cause__
        if isinstance(damage, ShardDamage):
            finding = Finding(shard.name, damage.reason, byte=damage.byte)
        else:
            finding = Finding(shard.name, _drop_place(error, shard))
        verdict, size = Verdict([finding]), shard.size or 0
    advance(max(0, size - read_bytes))
    return verdict


class ShardCheck:
    """One shard, its findings so far, and the index and seek table that it is compared with.

    file   the shard's stored bytes, opened for reading at single places
    """

    def __init__(self, shard: Shard, file: BinaryIO, manifest: Manifest, expected: Expected | None, hashed: bool):
        self.shard, self.file, self.manifest, self.expected = shard, file, manifest, expected
        self.now = fingerprint(shard.path)
        self.storage = storage_of(shard.path)
        self.hash = hashlib.sha256() if hashed or expected is not None else None
        self.hashed_bytes = 0
        self.damage = FindingList(shard.name, "{} more frames are damaged")
        self.whole = FindingList(shard.name, "{} more findings")
        self.labels = UnknownLabels(manifest)
        self.table_wrong_from: int | None = None  # the byte from which on the seek table is wrong
        self.index, self.table = self._load_index(), self._load_table()

    def run(self, options: ReadOptions) -> Verdict:
        """Read the shard once and give the verdict."""
        comparison, other_fields = None, False
        if self.index is not None:
            fields = self.index.header.text_field, self.index.header.label_path
            other_fields = fields != (self.manifest.text_field, self.manifest.label_path)
            comparison = None if other_fields else IndexComparison(self.index, self.now, self.manifest)
        self.scan = scan = ShardScan(
            self.shard, options, manifest=self.manifest, on_error="skip", see_stored=self._see_stored
        )
        error: PilekitError | None = None
        try:
            with closing(scan.rows()) as batches:
                for rows in batches:
                    self.labels.see(rows)
                    try:
                        if comparison is not None:
                            comparison.see(rows)
                    except PilekitError as damage:
                        self.whole.add(f"its index {damage}")
                        comparison = None
        except PilekitError as stopped:
            # Reading may have stopped in a seek table that is known to be wrong, after all frames.
            error = None if self._is_in_table(stopped.__cause__) else stopped
        suspect = None  # The number of the first line whose text may be wrong although it was read.
        if error is not None:
            suspect = self._locate(error)
        elif self.table is not None:
            compare_table(self.file, self.table, scan, self.whole)
        if comparison is not None:
            comparison.conclude(scan, self.whole, whole=error is None, suspect_from=suspect)
        sha256 = self._sum()
        bad_lines, labels = self._bad_lines(suspect), self.labels.findings(self.shard.name, suspect)
        unplaced = [*self.damage.findings(), *self.whole.findings(), *bad_lines, *labels]
        unjudged: tuple[str, ...] = ()
        if error is not None:
            unjudged = ("unread",)
        elif comparison is None and self.expected is None:
            unjudged = self._missing_guards()
        unjudged += ("fields",) * other_fields
        findings = [self._add_place(finding, whole=error is None) for finding in unplaced]
        return Verdict(findings, self.now.size, sha256, unjudged)

    def _load_index(self) -> ShardIndex | None:
        """The index, whether it fits or not."""
        for place in filter(exists, index_places(self.shard)):
            try:
                return load_index(place)
            except PilekitError as error:
                self.whole.add(f"its index {error}")
        return None

    def _load_table(self) -> SeekTable | None:
        if self.storage == "zstd":
            try:
                return read_seek_table(self.file, self.now.size)
            except ShardDamage as damage:
                self.whole.add(damage.reason, byte=damage.byte)
                self.table_wrong_from = damage.byte
        return None

    def _is_in_table(self, damage: BaseException | None) -> bool:
        if self.table_wrong_from is None or not isinstance(damage, ShardDamage):
            return False
        return damage.byte >= self.table_wrong_from and damage.frame == len(self.scan.frames)

    def _bad_lines(self, below: int | None) -> list[Finding]:
        """The bad lines; with `below` only up to that line, as damage may have changed the text after it."""
        bad, name = self.scan.skipped, self.shard.name
        listed = [
            Finding(name, f"{line.reason}; mend the line, or read with --on-error skip", line=line.line)
            for line in bad.examples
            if below is None or line.line <= below
        ]
        if below is None and bad.count > len(listed):
            listed.append(Finding(name, counted(bad.count - len(listed), "more bad line")))
        return listed

    def _see_stored(self, data: bytes) -> None:
        if self.hash is not None:
            self.hash.update(data)
            self.hashed_bytes += len(data)

    def _locate(self, error: PilekitError) -> int | None:
        """Add the damage that ended reading, and check the frames after it.

        Returns the number of the first line whose text may be wrong although it was read; None if all text is right.
        """
        damage, scan = error.__cause__, self.scan
        line = scan.lines + 1
        if not isinstance(damage, ShardDamage):
            line += damage.lines_before if isinstance(damage, LineTooLong) else 0
            no_footer = self.storage == "parquet" and not len(scan.frames)
            self.damage.add(_drop_place(error, self.shard), line=line, byte=0 if no_footer else None)
            return None
        frames: list[KnownFrame] = []
        if self.storage == "zstd":
            fits = self.index is not None and self.index.header.size == self.now.size
            frames = known_frames(self.file, self.table, self.index if fits else None)
        begins = [frame.offset for frame in frames] + ([sum(stored for stored, _ in self.table)] if self.table else [])
        number, begin, problem, suspect = locate(damage, begins, len(scan.frames) if frames else 0, scan.lines)
        if suspect:
            line = int(scan.frames.line[number or 0]) + 1
        self.damage.add(problem, frame=number, line=line, byte=begin)
        behind = number + 1 if number is not None else sum(frame.offset <= damage.byte for frame in frames)
        with open_stored(self.shard.path)[0] as file:
            check_frames(file, frames, behind, self.damage, self.whole)
        return int(scan.frames.line[number or 0]) if suspect else None

    def _add_place(self, finding: Finding, *, whole: bool) -> Finding:
        """The finding with the place of its line: where its frame or row group begins or, in plain text, the line.

        whole   the shard was read to its end, so a later line is missing at the end
        """
        scan, line = self.scan, finding.line
        if line is None or finding.byte is not None:
            return finding
        frame, byte = None, None
        if line > scan.lines and whole:
            frame, byte = len(scan.frames), self.now.size
        elif self.storage == "parquet":
            frame = scan.frames.frame_of(line - 1)
            byte = min(scan.row_groups[frame].columns, default=None)
        elif self.storage == "plain":
            byte = self._begin_of(line - 1)
        elif self.storage == "zstd" and line <= scan.lines:
            frame = scan.frames.frame_of(line - 1)
            byte = int(scan.frames.offset[frame])
        return replace(finding, frame=frame if self.storage in ("zstd", "parquet") else None, byte=byte)

    def _begin_of(self, number: int) -> int:
        """Where this line of plain text begins, from the last mark before it."""
        frames = self.scan.frames
        mark = frames.frame_of(number)
        begin, newlines = (0, number) if mark < 0 else (int(frames.offset[mark]), number - int(frames.line[mark]))
        self.file.seek(begin)
        text = np.frombuffer(self.file.read(MARK_BYTES), dtype=np.uint8)
        ends = np.flatnonzero(text == ord("\n"))[:newlines]
        return begin + int(ends[-1]) + 1 if len(ends) else begin

    def _sum(self) -> str | None:
        """The SHA-256 of the whole file; reads the bytes that were not read so far."""
        if self.hash is None:
            return None
        try:
            with open_file(self.shard.path) as file:
                file.seek(self.hashed_bytes)
                while piece := file.read(READ_BYTES):
                    self.hash.update(piece)
        except ShardDamage as damage:
            self.damage.add(damage.reason, byte=damage.byte)
            return None
        digest = self.hash.hexdigest()
        if self.expected is not None and digest != self.expected.sha256:
            self.whole.add(
                f"its SHA-256 is {digest[:12]}…, {self.expected.source} says {self.expected.sha256[:12]}…; fetch it "
                "again or, if it was changed on purpose, correct the sum"
            )
        return digest

    def _missing_guards(self) -> tuple[str, ...]:
        """The kinds of damage that go unnoticed when the shard is read to its end without index and sum."""
        cut, change = self.storage != "parquet" and self.table is None, self.storage == "plain"
        if self.storage in ("zstd", "parquet") and len(self.scan.frames):
            if self.storage == "parquet":
                from pilekit.shards.read.parquet import has_page_checksums

                change = not has_page_checksums(self.file, self.scan.row_groups[0])
            else:
                self.file.seek(int(self.scan.frames.offset[0]))
                header = parse_frame_header(self.file.read(LARGEST_HEADER))
                change = header is not None and not header.checksum
        return ("cut",) * cut + ("change",) * change


def _drop_place(error: Exception, shard: Shard) -> str:
    """The error's message without the place, because the finding has fields for it."""
    return re.sub(rf"\A{re.escape(visible(shard.path))}(, (line|row) [\d,]+)?: ", "", visible(error))
