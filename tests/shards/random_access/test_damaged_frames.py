"""Random access to damaged shards, and with an index that does not fit: always an error, never another document."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard

from pilekit.corpus import shard_of
from pilekit.errors import PilekitError
from pilekit.shards.fingerprint import fingerprint
from pilekit.shards.index.build import index_of
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.random_access.document_reader import DocumentReader, read_documents
from pilekit.shards.random_access.frame_cache import FrameLRU
from pilekit.shards.random_access.lines_by_number import LinesByNumber
from pilekit.shards.read.change_check import ShardChanged
from pilekit.shards.read.reader import read
from pilekit.shards.read.zstd_frames import decompress_whole
from tests.shards.index_reference import index_with_marks
from tests.shards.making import flipped, record, some_lines, write_shard, zstd_frame
from tests.shards.random_access.test_document_reader import batch_of, refused, slow_document, written
from tests.shards.reading import error


def moved(index: ShardIndex, frames: int | slice, **by: int) -> ShardIndex:
    """The index with some values of a frame, or of several, changed."""
    columns = {name: getattr(index.frames, name).copy() for name in by}
    for name, amount in by.items():
        columns[name][frames] += amount
    return replace(index, frames=replace(index.frames, **columns))


def test_a_damaged_frame_is_named_and_all_others_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    index = written(path, some_lines(20_000), 100_000)
    # Flip a bit as a disk does, unseen by the fingerprint.
    before, times, frame = fingerprint(str(path)), path.stat(), len(index.frames) // 2
    path.write_bytes(flipped(path.read_bytes(), int(index.frames.offset[frame]) + 20_000, 4))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fingerprint(str(path)) == before
    begin, end = (int(index.frames.line[at]) for at in (frame, frame + 1))
    for number in (begin, (begin + end) // 2, end - 1):
        message = refused(path, number)
        assert f"frame {frame} is damaged" in message
        assert f"noticed at line {number + 1:,})" in message
    rest = [*range(begin), *range(end, 20_000)]
    assert [document.number for document in read_documents(path, rest)] == rest
    with pytest.raises(PilekitError, match="is damaged"):
        list(read(path))


def test_an_index_that_does_not_fit_is_noticed(tmp_path: Path) -> None:
    for name in ("a.jsonl.zst", "a.jsonl"):
        path, some = tmp_path / name, some_lines(200)
        index = index_with_marks(write_shard(path, some, 3000), 3000)
        assert len(index.frames) > 5
        first, behind = int(index.frames.line[3]), int(index.frames.line[4])
        for by, why in (
            ({"line": 1}, "other lines begin"),
            ({"line": -1}, "other lines begin"),
            ({"line_at": 7}, "other lines begin"),
            ({"text_offset": 5}, "another size"),
            ({"text_offset": -5}, "another size"),
        ):
            if by.keys() == {"text_offset"} and name == "a.jsonl":
                continue
            found = 0
            with closing(DocumentReader(shard_of(str(path)), moved(index, 3, **by))) as reader:
                for number in range(200):
                    try:
                        document = reader.document(number)
                    except PilekitError as error:
                        assert f"{index.path}: does not fit {path} ({why}" in str(error) or why in str(error)
                        assert "remove it and make a new one with `pilekit index`" in str(error)
                        found += 1
                    else:
                        assert document == slow_document(some[number], number)
                        assert number < first or number >= behind - 1 or by.keys() == {"line"}
            assert found >= behind - first - 1, by
    # A plain file that was changed in place, and a frame with more newlines than the index knows.
    stored = bytearray(path.read_bytes())
    stored[stored.index(b" ", int(index.frames.offset[2]) + 100)] = 10
    path.write_bytes(stored)
    with pytest.raises(ShardChanged, match="was made of a shard of the same size but other bytes"):
        batch_of(path, [int(index.frames.line[2])], index)
    path = tmp_path / "b.jsonl.zst"
    path.write_bytes(zstd_frame(b"\n" * 100_000))
    index = index_of(shard_of(str(path)))
    wrong = replace(index, header=msgspec.structs.replace(index.header, lines=5))
    with pytest.raises(PilekitError, match="other lines begin in frame 0"):
        batch_of(path, [3], wrong)


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.jsonl", "a.jsonl.gz"])
def test_a_shard_that_was_rewritten_in_place_has_changed(name: str, tmp_path: Path) -> None:
    """After the index was loaded: with another size, and with another time alone."""
    path = tmp_path / name
    index, one, number = written(path, some_lines(3000), 100_000), path.read_bytes(), 1500
    written(tmp_path / f"b{name}", some_lines(2500), 90_000)
    other = (tmp_path / f"b{name}").read_bytes()
    same_size = b"".join([one[:1000], bytes(len(one) - 2000), one[-1000:]])
    for stored, why in ((other, "has"), (other + b"\n" * (len(one) - len(other)), "bytes"), (same_size, "bytes")):
        path.write_bytes(stored)
        message = rf"^{path}: was changed since its index was made: {index.path} .*{why}.*`pilekit index`"
        with closing(DocumentReader(shard_of(str(path)), index)) as reader:
            with pytest.raises(ShardChanged, match=message):
                reader.document(number)
            with pytest.raises(ShardChanged, match=message):
                reader.batch(np.arange(3000))
    path.write_bytes(one[: len(one) // 2])
    for held_bytes in (1 << 26, 0):  # read by number, and in order
        with closing(DocumentReader(shard_of(str(path)), index, frames=FrameLRU(held_bytes))) as reader:
            for _ in range(2):
                with pytest.raises(ShardChanged, match=r"since its index was made: .* was made of a shard of [\d,]+ b"):
                    reader.document(2999)
    stored = bytearray(one)
    stored[len(one) // 2] ^= 255
    path.write_bytes(stored)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    with pytest.raises(ShardChanged, match=r"is older than its shard|other bytes"):
        batch_of(path, list(range(3000)), index)


def test_a_line_longer_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    text = record("short") + b"\n" + record("long" * 5000) + b"\n"
    path.write_bytes(b"".join(zstd_frame(text[at : at + 5000]) for at in range(0, len(text), 5000)))
    shard = shard_of(str(path))
    with closing(DocumentReader(shard, index_of(shard))) as reader:
        assert isinstance(reader._stored, LinesByNumber)
        reader._stored.max_document_bytes = 10_000
        assert reader.document(0).text == "short"
        assert "line 2: is longer than 10,000 bytes" in error(path, lambda _: [reader.document(1)])


def test_damage_is_told_alike_one_by_one_and_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    index = written(path, some_lines(60), 5000)
    good, middle = path.read_bytes(), int(index.frames.offset[2])
    numbers = list(range(int(index.frames.line[2]), int(index.frames.line[3])))
    for data, used, why in (
        (good[:middle] + b"\0" + good[middle + 1 :], index, "."),
        (good[: middle + 30], index, "."),
        (flipped(good, middle + 200), index, "."),
        (good, moved(index, 2, offset=1), "no frame begins where one should; .* index it again .*frame 2, line"),
        (good, moved(index, slice(3, None), text_offset=1), "."),
        (good, moved(index, slice(3, None), line=1), "."),
    ):
        path.write_bytes(data)
        os.utime(path, (0, 0))
        with pytest.raises(PilekitError, match=why) as raised:
            batch_of(path, numbers, used)
        with closing(DocumentReader(shard_of(str(path)), used)) as reader, pytest.raises(PilekitError) as alone:
            reader.document(numbers[0])
        assert str(raised.value) == str(alone.value)


def test_no_changed_byte_of_a_frame_gives_other_text_and_no_claimed_size_is_allocated() -> None:
    text = b"\n".join(some_lines(3))
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    for frame in (compress(text), zstd_frame(text, checksum=True)):
        assert decompress_whole(memoryview(frame + b"behind it"), len(text)) == text
        assert decompress_whole(memoryview(frame), len(text) + 1) is None
        assert decompress_whole(memoryview(frame), len(text) - 1) is None
        for end in range(0, len(frame), 7):
            assert decompress_whole(memoryview(frame)[:end], len(text)) is None, end
        for place in range(len(frame)):
            changed = flipped(frame, place, 1 << place % 8)
            assert decompress_whole(memoryview(changed), len(text)) in (None, text), place
    frame = zstandard.ZstdCompressor(write_checksum=False).compress(b"x" * 100)
    huge = frame[:4] + bytes([frame[4] | 0xC0, *b"\xff" * 7, 0x0F]) + frame[6:]
    assert zstandard.frame_content_size(huge) > 1 << 50
    assert decompress_whole(memoryview(huge), 100) is None
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    wide = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    far = wide.compress(b"x" * 100) + wide.flush()
    assert decompress_whole(memoryview(far), 100) is None
    assert decompress_whole(memoryview(far), 100, max_window=1 << 28) == b"x" * 100
