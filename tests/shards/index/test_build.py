"""Indexes are exact whatever the shard, built once and whole, in bounded memory, beside the shard or in the cache."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit.artifacts.file_lock import locked
from pilekit.corpus import Corpus, shard_of
from pilekit.errors import PilekitError
from pilekit.shards.index.build import index_corpus, index_of
from pilekit.shards.index.format import INDEX_SUFFIX, find_index
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.write.seekable_frames import seek_table
from tests.shards.index_reference import (
    BAD_LINES,
    check_index,
    index_with_marks,
    places_of,
    rows_of,
    slow_frames,
    slow_marks,
    slow_rows,
)
from tests.shards.making import lines, record, some_lines, write_shard, zstd_frame
from tests.shards.reading import value_and_memory

any_lines = st.lists(st.one_of(lines(), lines(), lines(), st.sampled_from([*BAD_LINES, b""])), max_size=25)


@st.composite
def stored_in_frames(draw: st.DrawFn, text: bytes) -> tuple[bytes, list[int], list[bytes]]:
    """The text cut anywhere into frames of any kind, empty ones too, with skippable frames between: (stored bytes,
    where each frame begins, its text)."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stored, offsets = b"", []
    for part in parts:
        if not draw(st.integers(0, 3)):
            stored += seek_table([(1, 1)] * draw(st.integers(0, 3)))
        offsets.append(len(stored))
        if draw(st.booleans()):
            stored += zstandard.ZstdCompressor(write_checksum=True).compress(part)
        else:
            stored += zstd_frame(part, checksum=draw(st.booleans()))
    if draw(st.booleans()):
        stored += seek_table([(1, 1)])
    return stored, offsets, parts


@given(any_lines, st.booleans(), st.booleans(), st.data())
def test_whatever_the_lines_and_wherever_frames_are_cut(
    tmp_path_factory: pytest.TempPathFactory, some: list[bytes], ends: bool, ahead: bool, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("indexed")
    text = b"\n".join(some) + (b"\n" if ends else b"")
    stored, offsets, parts = data.draw(stored_in_frames(text))
    (folder / "a.jsonl.zst").write_bytes(stored)
    members = b"".join(map(gzip.compress, parts))
    (folder / "b.jsonl.gz").write_bytes(members)
    (folder / "c.jsonl").write_bytes(text or b"\n")
    # Texts of a few hundred bytes are to come in several pieces, and to have several marks.
    piece_bytes, stored_bytes = data.draw(st.sampled_from([8, 64, 2 << 20])), data.draw(st.sampled_from([0, 1 << 60]))
    options = ReadOptions(ahead=ahead, stored=stored_bytes, piece_bytes=piece_bytes)
    for name, content, places in (
        ("a.jsonl.zst", text, slow_frames(offsets, parts)),
        ("b.jsonl.gz", text, slow_frames([0], [text])),
        ("c.jsonl", text or b"\n", slow_marks(text or b"\n", 50)),
    ):
        path = folder / name
        index = index_with_marks(path, 50, options)
        assert index.path == f"{path}{INDEX_SUFFIX}"
        check_index(index, path, content, places)


@given(st.lists(st.tuples(st.one_of(st.none(), st.text(max_size=20)), st.sampled_from(["A", "B", None])), max_size=20))
def test_parquet(tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str | None, str | None]]) -> None:
    path = tmp_path_factory.mktemp("indexed") / "a.parquet"
    schema = pa.schema([("text", pa.string()), ("meta", pa.struct([("pile_set_name", pa.string())]))])
    rows = [{"text": text, "meta": {"pile_set_name": label}} for text, label in records]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, row_group_size=3)
    index = index_of(shard_of(str(path)), on_error="skip")
    expected = [
        (number, label or "(none)", len(text.encode()))
        for number, (text, label) in enumerate(records)
        if text is not None
    ]
    assert [row[:3] for row in rows_of(index)] == expected
    header = index.header
    assert (header.lines, header.skipped) == (len(records), len(records) - len(expected))
    assert (header.storage, header.content_hash) == ("parquet", "")
    assert header.subsets == sorted({label for _, label, _ in expected})
    groups = range(max(1, -(-len(records) // 3)))  # pyarrow writes an empty group for an empty table
    assert [(begin, line, at) for begin, _, line, at in places_of(index)] == [(group, 3 * group, 0) for group in groups]


def test_bad_lines_and_damage_are_errors_and_leave_what_was_there(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.jsonl.zst", [record("a"), b"{", record("b")])
    with pytest.raises(PilekitError, match=r"a\.jsonl\.zst, line 2: is not JSON"):
        index_of(shard_of(str(path)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.jsonl.zst"]
    index = index_of(shard_of(str(path)), on_error="skip")
    before = Path(index.path).read_bytes()
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(PilekitError, match="is cut off"):
        index_of(shard_of(str(path)), on_error="skip")
    assert Path(index.path).read_bytes() == before
    with pytest.raises(PilekitError, match="standard input"):
        index_of(shard_of("-"))
    with pytest.raises(PilekitError, match="no such file"):
        index_of(shard_of(str(tmp_path / "folder" / "b.jsonl")))
    assert not (tmp_path / "folder").exists()


def test_rows_are_in_groups_of_bounded_size(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    labels = [f"label {number}" for number in range(300)]
    text = b"".join(record(str(number), labels[number * number % 300]) + b"\n" for number in range(1300))
    path.write_bytes(zstd_frame(text))
    index = index_with_marks(path, rows_per_group=1000)
    assert [len(table) for table in index.row_groups()] == [1000, 300]
    assert rows_of(index) == slow_rows(text).rows
    assert index.columns(["text_bytes"]).column_names == ["text_bytes"]


def test_existing_indexes_that_fit_are_kept(tmp_path: Path) -> None:
    for number in range(2):
        write_shard(tmp_path / f"{number}.jsonl.zst", some_lines(100 * (number + 1)), frame_bytes=5_000)
    rows = pa.table({"text": ["one", "two"], "subset": ["a", "b"]})
    pq.write_table(rows, tmp_path / "2.parquet")
    amounts: list[int] = []
    first = index_corpus(Corpus(tmp_path), jobs=2, advance=amounts.append)
    assert [(index.header.documents, index.built) for index in first] == [(100, True), (200, True), (2, True)]
    assert sum(amounts) == Corpus(tmp_path).size
    # Tools that read `*.parquet`, hidden files too, do not take the index for a part of the table.
    assert {path.name for path in tmp_path.iterdir() if path.name.endswith("2.parquet")} == {"2.parquet"}
    stamps = [Path(index.path).stat().st_mtime_ns for index in first]
    write_shard(tmp_path / "1.jsonl.zst", some_lines(50))
    amounts.clear()
    second = index_corpus(tmp_path, jobs=2, advance=amounts.append)
    assert [(index.header.documents, index.built) for index in second] == [(100, False), (50, True), (2, False)]
    kept = [Path(index.path).stat().st_mtime_ns == stamp for index, stamp in zip(second, stamps, strict=True)]
    assert kept == [True, False, True]
    assert sum(amounts) == Corpus(tmp_path).size
    third = index_of(shard_of(str(tmp_path / "1.jsonl.zst")))
    assert (third.built, third.header) == (False, second[1].header)


def test_where_nothing_can_be_made_the_index_goes_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in the place of the lock's file stands for a folder in which nothing can be made."""
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "data" / "a.jsonl"
    Path(f"{path}{INDEX_SUFFIX}.lock").mkdir(parents=True)
    path.write_bytes(record("a") + b"\n")
    index = index_of(shard_of(str(path)))
    assert Path(index.path).is_relative_to(tmp_path / "cache" / "index")
    found = find_index(shard_of(str(path)))
    assert found is not None
    assert found.path == index.path
    assert not Path(f"{path}{INDEX_SUFFIX}").exists()
    assert [entry.name for entry in Path(index.path).parent.iterdir()] == ["a.jsonl.index.parquet"]
    monkeypatch.setenv("PILEKIT_CACHE", str(path))
    with pytest.raises(PilekitError, match=r"cannot be made: .*; \$PILEKIT_CACHE"):
        index_of(shard_of(str(path)))


def test_a_url_is_indexed_into_the_cache_and_found_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path))
    url = "memory://indexed/00.jsonl.zst"
    with fsspec.open(url, "wb") as file:
        file.write(zstd_frame(record("from memory") + b"\n"))
    index = index_of(shard_of(url))
    assert Path(index.path).is_relative_to(tmp_path)
    assert [row[:3] for row in rows_of(index_of(shard_of(url)))] == [(0, "Github", 11)]
    with fsspec.open(url + INDEX_SUFFIX, "wb") as file:
        file.write(Path(index.path).read_bytes())
    beside = find_index(shard_of(url))
    assert beside is not None
    assert beside.path == url + INDEX_SUFFIX
    # A chained URL has no place beside the shard.
    (built,) = index_corpus(Corpus(f"filecache::{url}"), jobs=2)
    assert Path(built.path).parent.parent == tmp_path / "index"


BUILD = """
import sys
from pilekit.corpus import shard_of
from pilekit.shards.index.build import index_of
print(index_of(shard_of(sys.argv[1])).built)
"""


def test_of_processes_that_want_one_index_one_builds_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(some_lines(100)))
    command = [sys.executable, "-c", BUILD, str(path)]
    with locked(Path(f"{path}{INDEX_SUFFIX}.lock")):
        pipe = subprocess.PIPE
        processes = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(3)]
        for process in processes:
            assert process.stderr is not None
            told = process.stderr.readline()
            assert told == f"{path}{INDEX_SUFFIX}: waiting for another process that builds it\n"
        assert [process.poll() for process in processes] == [None] * 3
    assert sorted(process.communicate() for process in processes) == [("False\n", ""), ("False\n", ""), ("True\n", "")]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl.index.parquet"]


def test_memory_does_not_grow_with_the_shard(tmp_path: Path) -> None:
    text = b"\n".join([record("word " * 1300)] * 150) + b"\n"
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd_frame(text) * 150)
    script = (
        "from pilekit.corpus import shard_of\nfrom pilekit.shards.index.build import index_of\n"
        "value = index_of(shard_of(sys.argv[1])).header.documents"
    )
    documents, kilobytes = value_and_memory(script, path)
    assert documents == 150 * 150
    assert 0 < kilobytes < 90_000, "KiB of 150 MB"
