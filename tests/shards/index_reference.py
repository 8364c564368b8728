"""The expected content of an index, found the slow and obvious way: whole text in memory, standard library, one
loop."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import xxhash

from pilekit.corpus import shard_of
from pilekit.shards.fingerprint import fingerprint
from pilekit.shards.index.build import write_index
from pilekit.shards.index.format import ShardIndex, index_places, load_index
from pilekit.shards.index.metadata import ROWS_PER_GROUP
from pilekit.shards.index.scan import ShardScan
from pilekit.shards.read.open import ReadOptions
from tests.shards.making import slow_documents

BAD_LINES = [b"{", b"[]", b'{"text": 1}', b'{"meta": {"pile_set_name": "ArXiv"}}', b"\xff\xfe", b'{"text": "a"} {}']

Row = tuple[int, str, int, int]
Place = tuple[int, int, int, int]


class Expected(NamedTuple):
    rows: list[Row]
    bad: list[int]
    """Bad lines, counted from 1."""
    lines: int


def slow_rows(text: bytes) -> Expected:
    """(number, subset, text bytes, text hash) of every document, and the lines that are no documents."""
    bad: list[int] = []
    rows = [
        (number, label, len(encoded := found.encode()), xxhash.xxh3_64_intdigest(encoded))
        for number, found, label in slow_documents(text, bad)
    ]
    lines = text.count(b"\n") + bool(text.rpartition(b"\n")[2])
    return Expected(rows, [number + 1 for number in bad], lines)


def slow_frames(offsets: list[int], texts: list[bytes]) -> list[Place]:
    """(offset, text offset, line, line at) of frames of these texts that begin at these stored bytes."""
    text = b"".join(texts)
    begins = [0] + [place + 1 for place, byte in enumerate(text) if byte == 10]
    if begins[-1] == len(text):
        begins.pop()
    places, before = [], 0
    for offset, part in zip(offsets, texts, strict=True):
        line = next((number for number, begin in enumerate(begins) if begin >= before), len(begins))
        begin = begins[line] if line < len(begins) else len(text)
        places.append((offset, before, line, min(begin - before, len(part))))
        before += len(part)
    return places


def slow_marks(text: bytes, apart: int) -> list[Place]:
    """The marks of a plain file: the first line's beginning, then each time the first line at least `apart` bytes
    later."""
    places: list[Place] = []
    begin = 0
    for number, line in enumerate(text.split(b"\n")):
        if begin < len(text) and (not places or begin >= places[-1][0] + apart):
            places.append((begin, begin, number, 0))
        begin += len(line) + 1
    return places


def rows_of(index: ShardIndex) -> list[Row]:
    table = index.columns()
    assert table.column_names == ["number", "subset", "text_bytes", "text_hash"]
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def places_of(index: ShardIndex) -> list[Place]:
    frames = index.frames
    columns = (frames.offset, frames.text_offset, frames.line, frames.line_at)
    assert {str(column.dtype) for column in columns} == {"int64"}
    return list(zip(*(column.tolist() for column in columns), strict=True))


def check_index(index: ShardIndex, shard: Path, text: bytes, places: list[Place]) -> None:
    """Check the index, as returned and on disk, against the shard with these decompressed bytes and frames."""
    expected = slow_rows(text)
    for found in (index, load_index(index.path)):
        assert rows_of(found) == expected.rows
        assert places_of(found) == places
        header = found.header
        counts = (expected.lines, len(expected.rows), len(expected.bad))
        assert (header.lines, header.documents, header.skipped) == counts
        assert [line for line, _ in header.examples] == expected.bad[:100]
        assert header.text_bytes == sum(size for _, _, size, _ in expected.rows)
        assert header.subsets == sorted({subset for _, subset, _, _ in expected.rows})
        assert header.content_bytes == len(text)
        assert header.content_hash == xxhash.xxh3_128_hexdigest(text)
        assert header.size == shard.stat().st_size


def index_with_marks(
    path: Path, mark_bytes: int = 1 << 20, options: ReadOptions | None = None, rows_per_group: int = ROWS_PER_GROUP
) -> ShardIndex:
    """A new index of the shard; in plain text, a line about every `mark_bytes` is marked."""
    shard = shard_of(str(path))
    scan = ShardScan(shard, options, on_error="skip", mark_bytes=mark_bytes)
    return write_index(
        index_places(shard)[0], shard.path, scan, scan.rows(), lambda: fingerprint(shard.path), rows_per_group
    )
