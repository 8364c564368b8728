"""Every kind of damage is found with its frame, line and byte; there are no findings about text that damage changed."""

from __future__ import annotations

import errno
import io
import os
import random
from itertools import product
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import pyzstd
import zstandard

from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError
from pilekit.shards.random_access.document_reader import read_documents
from pilekit.shards.read.reader import read
from pilekit.shards.read.zstd_frames import PIECE_BYTES
from pilekit.shards.write.parquet_writer import parquet_writer
from pilekit.shards.write.seekable_frames import seek_table
from tests.shards.making import record, some_lines, unzstd, zstd_frame
from tests.shards.verify.verified import CHANGE, CUT, findings, flip, frames_of, index, note, only, sums, verify, write


def small(path: Path) -> Path:
    return write(path, [record(f"document {i}", label) for i in range(9) for label in ("Github", "ArXiv")], 200)


def test_a_flipped_bit_anywhere_is_found_in_its_frame(shard: Path) -> None:
    whole = shard.read_bytes()
    frames = frames_of(whole)
    assert len(frames) > 90
    for indexed, tenth in product((False, True), (0, 5, 9)):
        rng = random.Random(tenth)
        position = rng.randrange(len(whole) * tenth // 10, min(frames[-1].end, len(whole) * (tenth + 1) // 10))
        shard.write_bytes(whole)
        if indexed:
            index(shard)
        flip(shard, position, rng.randrange(8))
        [number] = [number for number, frame in enumerate(frames) if frame.begin <= position < frame.end]
        [damage] = [finding for finding in findings(shard) if finding.frame is not None]
        assert (damage.frame, damage.byte, damage.line) == (number, frames[number].begin, frames[number].line)
        assert "fetch it again" in damage.problem
    # A flip can make a frame seem to reach to the end of the file.
    header = zstandard.frame_header_size(whole[frames[-2].begin : frames[-2].end])
    shard.write_bytes(whole)
    flip(shard, frames[-2].begin + header + 2)  # its block is 8 KiB longer than it was
    [damage] = [finding for finding in findings(shard) if finding.frame is not None]
    assert (damage.frame, damage.line, damage.byte) == (len(frames) - 2, frames[-2].line, frames[-2].begin)
    assert "cut off" not in damage.problem


def test_all_damaged_frames_are_found_and_only_they(shard: Path) -> None:
    frames = frames_of(shard.read_bytes())
    chosen = [0, 7, 8, 50, len(frames) - 1]
    index(shard)
    for number in chosen:
        flip(shard, (frames[number].begin + frames[number].end) // 2)
    found = verify(shard)
    damaged = [finding for finding in found.findings if finding.frame is not None]
    assert [finding.frame for finding in damaged] == chosen
    assert [finding.line for finding in damaged] == [frames[number].line for number in chosen]
    assert [finding.byte for finding in damaged] == [frames[number].begin for number in chosen]
    assert any("lines behind the damage were not checked" in line for line in found.notes)
    # Without an index the seek table tells where frames begin, but not their lines.
    Path(f"{shard}.index.parquet").unlink()
    damaged = list(findings(shard))
    assert [finding.frame for finding in damaged] == chosen
    assert [finding.line for finding in damaged] == [1, None, None, None, None]
    # Without either, reading ends at the first damage.
    shard.write_bytes(shard.read_bytes()[: frames[-1].end])
    assert only(shard).frame == 0


def test_no_line_of_a_damaged_frame_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "00.jsonl.zst"
    lines = [record(f"{i} " + "word " * 200) for i in range(12_000)]
    lines[3] = lines[7000] = b"bad"
    lines[4] = lines[7001] = record("text", "unheard-of")
    lines[7002] = record("text", "unheard-of too")
    parts = [b"".join(line + b"\n" for line in part) for part in (lines[:5000], lines[5000:11_000], lines[11_000:])]
    assert len(parts[1]) > 3 * PIECE_BYTES  # Text that is decoded together with the frame's end is not yielded.
    path.write_bytes(b"".join(zstd_frame(part, checksum=True) for part in parts))
    frames = frames_of(path.read_bytes())
    flip(path, frames[1].end - 1)  # the checksum: the decoder yields all lines before it reads the checksum
    found = findings(path)
    assert [(finding.frame, finding.line) for finding in found] == [(1, 5001), (0, 4), (0, 5)]
    assert found[0].byte == frames[1].begin
    assert '"unheard-of"' in found[2].problem
    # More bad lines than are listed: before the damaged frame, in it, and both.
    for counts in ((150, 0), (90, 40), (0, 130), (150, 150)):
        parts = []
        for number, count in enumerate(counts):
            lines = [*[b"bad"] * count, *(record("text", f"label {number} {i}") for i in range(count)), record("text")]
            parts.append(b"".join(line + b"\n" for line in lines))
        path.write_bytes(b"".join(zstd_frame(part, checksum=True) for part in parts))
        second = frames_of(path.read_bytes())[1]
        flip(path, second.end - 1)
        damage, *before = findings(path)
        assert (damage.frame, damage.line, damage.byte) == (1, second.line, second.begin)
        path.write_bytes(zstd_frame(parts[0], checksum=True))
        assert before == [finding for finding in findings(path) if finding.line is not None], counts


class Failing(io.BytesIO):
    """A file on a disk with one unreadable byte."""

    bad = 0

    def read(self, size: int | None = -1, /) -> bytes:
        begin = self.tell()
        data = super().read(size)
        if begin <= self.bad < begin + len(data):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return data


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "00.jsonl.zst", some_lines(15_000), frame_bytes=100_000)
    whole, really_open = path.read_bytes(), Path.open
    frames = frames_of(whole)
    monkeypatch.setattr(
        Path, "open", lambda self, *how, **more: Failing(whole) if self == path else really_open(self, *how, **more)
    )
    monkeypatch.setattr(Failing, "bad", len(whole) * 7 // 10)
    monkeypatch.setattr(Failing, "fileno", lambda self: os.open(path, os.O_RDONLY))
    assert (1 << 20) + 100_000 < Failing.bad < len(whole) - 200_000
    found = findings(path)
    assert all("cannot be read further" in finding.problem for finding in found)
    assert found[0].byte == 1 << 20  # the disk is read by the MiB
    unreadable = [number for number, frame in enumerate(frames) if 1 << 20 < frame.begin <= Failing.bad]
    assert [finding.frame for finding in found] == [None, *unreadable]
    # A piece of the fingerprint cannot be read.
    monkeypatch.setattr(Failing, "bad", 5)
    assert (only(path).frame, only(path).byte) == (None, 0)


@pytest.mark.slow
def test_every_byte_of_a_small_file_matters(tmp_path: Path) -> None:
    path = small(tmp_path / "00.jsonl.zst")
    whole, right = path.read_bytes(), unzstd(path)
    frames = frames_of(whole)
    assert len(frames) > 4
    # Bits without meaning in the formats: one in each frame's descriptor, two in the seek table's.
    unused = {(frame.begin + 4, 4) for frame in frames} | {(len(whole) - 5, bit) for bit in (0, 1)}
    rng = random.Random()
    passed = set()
    flipped = {(position, rng.randrange(8)) for position in range(len(whole))}
    # Without its checksum flag a frame ends four bytes early, where no other frame begins.
    for position, bit in sorted(flipped | {(frame.begin + 4, 2) for frame in frames}):
        path.write_bytes(whole)
        flip(path, position, bit)
        found = findings(path)
        in_frame = [number for number, frame in enumerate(frames) if frame.begin <= position < frame.end]
        if not found:
            # Some bits do not change the text, so no checksum notices them.
            assert unzstd(path) == right, (position, bit)
            passed.add((position, bit))
            continue
        assert (position, bit) not in unused
        if in_frame:
            assert found[0].frame == in_frame[0], (position, bit)
            assert found[0].byte is not None
            assert found[0].line is not None
            assert found[0].line >= frames[in_frame[0]].line
        elif position > frames[-1].end or bit >= 4:  # Lower bits keep the magic of a skippable frame.
            [finding] = found
            assert "seek table" in finding.problem, (position, bit)
            begins = [frames[-1].end, len(whole)] if finding.frame is None else [frames[finding.frame].begin] * 2
            assert finding.byte is not None
            assert begins[0] <= finding.byte <= begins[1]
    assert len(passed) < len(whole) // 40
    # A SHA-256 sum detects those too.
    path.write_bytes(whole)
    place = sums(path)
    for position, bit in passed | unused:
        path.write_bytes(whole)
        flip(path, position, bit)
        assert str(place) in only(path).problem


@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_a_cut_at_every_byte(tmp_path: Path, step: int) -> None:
    path = small(tmp_path / "00.jsonl.zst")
    whole = path.read_bytes()
    frames = frames_of(whole)
    borders = {frame.end: number for number, frame in enumerate(frames)}
    for make, every in ((None, step), (index, 7 * step), (sums, 7 * step)):
        path.write_bytes(whole)
        guard = None if make is None else make(path)
        for length in sorted({*range(0, len(whole), every), *borders} - {len(whole)}):
            path.write_bytes(whole[:length])
            found = verify(path)
            if length in borders:
                assert (guard is None) == found.ok, length
                assert (guard is None) == any(CUT in line for line in found.notes)
            else:
                assert found.findings[0].byte == length
                assert found.findings[0].line is not None
                number = sum(border <= length for border in borders) if length else None
                assert found.findings[0].frame == number
            if make is index:
                assert any("bytes, it has" in finding.problem for finding in found.findings)
        # An index gives the line at which the damage ends.
        if make is index and guard is not None:
            path.write_bytes(whole[: frames[2].end])
            finding = only(path)
            assert (finding.line, finding.frame, finding.byte) == (frames[3].line, 3, frames[2].end)
            assert f"differ from line {frames[3].line} on" in finding.problem
            guard.unlink()


def test_a_seek_table_that_lists_other_frames(tmp_path: Path) -> None:
    path = tmp_path / "00.jsonl.zst"
    with pyzstd.SeekableZstdFile(path, "w", max_frame_content_size=10_000) as file:
        file.write(b"".join(line + b"\n" for line in some_lines(200)))
    # Another tool's frames end in the middle of lines, and have no checksums.
    found = verify(path)
    assert found.ok
    assert any(CHANGE in line for line in found.notes)
    assert not any(CUT in line for line in found.notes)

    parts = [zstd_frame(record(f"document {i}") + b"\n", checksum=True) for i in range(4)]
    size = len(record("document 0")) + 1
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"

    def listing(*entries: tuple[int, int]) -> Path:
        path.write_bytes(parts[0] + skippable + b"".join(parts[1:]) + seek_table(entries))
        return path

    stored = [len(part) for part in parts]
    right = [(stored[0], size), (len(skippable), 0), *((length, size) for length in stored[1:])]
    assert verify(listing(*right)).ok
    wrong_size = only(listing(*right[:3], (stored[2], size + 1), right[4]))
    assert (wrong_size.frame, wrong_size.line) == (2, 3)
    assert wrong_size.byte == stored[0] + len(skippable) + stored[1]
    assert f"{size + 1:,}" in wrong_size.problem
    assert only(listing(*right[:2], (stored[1] - 1, size), (stored[2] + 1, size), right[4])).frame == 2
    assert only(listing(*right[:3], (stored[2] + stored[3], 2 * size))).frame == 2
    assert only(listing(*right[:4], (stored[3] - 9, size), (9, 0))).frame == 4
    assert only(listing((stored[0], size), (len(skippable), 5), *right[2:])).frame == 1
    assert only(listing((sum(stored) + len(skippable), 4 * size))).frame == 0
    # After damage, where frames are checked one by one.
    flip(listing(*right[:4], (stored[3], size + 1)), stored[0] - 1)
    damaged, wrong_size = findings(path)
    assert (damaged.frame, wrong_size.frame) == (0, 3)
    assert f"{size + 1:,}" in wrong_size.problem
    assert "add up" in only(listing(*right[:-1])).problem


def test_a_flipped_bit_in_our_parquet_is_found(tmp_path: Path) -> None:
    source, path = write(tmp_path / "source.jsonl.zst", some_lines(2000), 1 << 20), tmp_path / "00.parquet"
    with parquet_writer(path, RecordFormat(), group_bytes=200_000) as rows, read(source) as batches:
        for batch in batches:
            rows.write(batch)
    assert verify(path).notes == ()
    whole, metadata = path.read_bytes(), pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert len(groups) >= 3
    begins = [group.column(0).data_page_offset for group in groups]
    for position in (len(whole) // 7, len(whole) * 6 // 7):
        path.write_bytes(whole)
        flip(path, position)
        number = sum(begin <= position for begin in begins) - 1
        finding = only(path)
        first = sum(group.num_rows for group in groups[:number])
        assert (finding.frame, finding.byte) == (number, begins[number])
        assert finding.line is not None
        assert first < finding.line <= first + groups[number].num_rows
        assert finding.problem.startswith("is not a whole Parquet file (")
        assert str(path) not in finding.problem
        # Readers notice too.
        with pytest.raises(PilekitError, match=f"(row {finding.line:,}|parquet): is not a whole Parquet file"):
            sum(len(batch) for batch in read(path))
        with pytest.raises(PilekitError, match="is not a whole Parquet file"):
            list(read_documents(path, [first + groups[number].num_rows - 1]))
    path.write_bytes(whole)
    table = pq.read_table(path).slice(0, 100)
    for version, checksum in product(("1.0", "2.0"), (True, False)):
        pq.write_table(table, path, write_page_checksum=checksum, data_page_version=version)
        assert note(path, CHANGE) != checksum
