"""Reading whole shards in every storage form, with every kind of damage, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.shards.read.reader import read, read_corpus
from tests.memory_limit import value_and_peak
from tests.shards import making
from tests.shards.making import LABELS, flipped, lines, record, slow_documents, some_lines, zstd_frame
from tests.shards.reading import Found, documents, error, value_and_memory
from tests.web_server import serving

TEXT = b"\n".join(some_lines(9000)) + b"\n"


@given(st.lists(lines(), min_size=1, max_size=30), st.booleans(), st.integers(0, 30), st.data())
def test_all_storage_forms_give_the_same_documents(
    tmp_path_factory: pytest.TempPathFactory, some: list[bytes], ends: bool, start: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("stored")
    text = b"\n".join(some) + (b"\n" if ends else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    (folder / "a.jsonl").write_bytes(text)
    (folder / "b.jsonl.zst").write_bytes(b"".join(zstd_frame(part) for part in parts))
    (folder / "c.json.zst").write_bytes(zstd_frame(text, checksum=True))
    (folder / "d.jsonl.gz").write_bytes(b"".join(gzip.compress(part) for part in parts))
    expected = [document for document in slow_documents(text) if document[0] >= start]
    for path in sorted(folder.iterdir()):
        if path.stat().st_size:
            assert documents(read(path, start=start)) == expected
            chosen = LABELS[:2]
            assert documents(read(path, chosen, start=start)) == [d for d in expected if d[2] in chosen]


def test_many_tiny_frames_make_few_batches_and_a_document_may_be_longer_than_many_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(zstd_frame(line + b"\n") for line in some_lines(3000)))
    batches = list(read(path))
    assert len(documents(batches)) == 3000
    assert len(batches) <= 2
    path.write_bytes(zstd_frame(b"\n".join([record("before"), record("long " * 3_000_000), record("after")])))
    assert [text for _, text, _ in documents(read(path))] == ["before", "long " * 3_000_000, "after"]


def test_a_truncated_file_gives_the_documents_before_its_end_and_then_an_error(tmp_path: Path) -> None:
    for name, stored in (("a.jsonl.zst", zstd_frame(TEXT)), ("a.jsonl.gz", gzip.compress(TEXT))):
        path = tmp_path / name
        path.write_bytes(stored[: len(stored) * 9 // 10])
        seen: Found = []
        with pytest.raises(PilekitError) as raised:
            for batch in read(path):
                seen += documents([batch])
        message = str(raised.value)
        assert "is cut off" in message
        assert f"byte {len(stored) * 9 // 10:,} of the file" in message
        assert f"line {len(seen) + 1:,})" in message
        assert seen == slow_documents(TEXT)[: len(seen)]
        assert len(seen) > 7000
        assert "is cut off" in error(path, on_error="skip")


def test_damage_is_named_by_frame_line_and_byte(tmp_path: Path) -> None:
    lines_100 = b"\n".join(some_lines(100)) + b"\n"
    stream = zstandard.ZstdCompressor().compressobj()
    endless = stream.compress(lines_100) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    # The decoder alone reports no error, and the text after this place would be lost.
    assert zstandard.ZstdDecompressor().stream_reader(endless).read() == lines_100
    one = zstd_frame(b'{"text": "first frame"}\n')
    long = zstd_frame(TEXT[:500_000] + b"\n", checksum=True)
    summed = zstd_frame(b"\n".join([record("x" * 1000)] * 50), checksum=True)
    for stored, *words in (
        (endless, "is cut off: frame 0 has no end", "line 101)"),
        (one + flipped(long, len(long) // 2, 16), "frame 1 is damaged", "bytes 33 to ", "frame 1, noticed at line 2)"),
        (
            flipped(summed, -1, 16),
            "frame 0 is damaged (Restored data doesn't match checksum); fetch it again",
            f"(somewhere in bytes 0 to {len(summed):,} of the file, frame 0, noticed at line 1)",
        ),
        (one + b"<html>", "what follows frame 0 is not a zstd frame", f"byte {len(one):,} of the file", "line 2"),
    ):
        path = tmp_path / "a.jsonl.zst"
        path.write_bytes(stored)
        message = error(path)
        for word in words:
            assert word in message
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(record("a")) + b"<html>")
    assert "damaged" in error(tmp_path / "b.jsonl.gz")


@pytest.mark.parametrize("named", ["jsonl.zst", "jsonl.gz", "jsonl", "parquet", "-"])
def test_a_file_under_the_name_of_another_storage_is_told_as_such(
    tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (record("some words") + b"\n") * 50
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["some words"]}), table)
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("a.jsonl", text)
    stored = {
        "zstd": ("jsonl.zst", zstandard.compress(text)),
        "gzip": ("jsonl.gz", gzip.compress(text)),
        "JSON without compression": ("jsonl", text),
        "Parquet": ("parquet", table.getvalue()),
        "xz": ("", lzma.compress(text)),
        "bzip2": ("", bz2.compress(text)),
        "zip": ("", zipped.getvalue()),
    }
    for what, (right, content) in stored.items():
        path = tmp_path / f"{what}.{named}"
        path.write_bytes(content)
        if named == "-":
            if right and what != "Parquet":
                continue
            with path.open("rb") as piped:
                monkeypatch.setattr(sys, "stdin", piped)
                with pytest.raises(PilekitError) as raised:
                    list(read("-", on_error="skip"))
                message = str(raised.value)
        elif right == named:
            assert len(documents(read(path))) == (1 if named == "parquet" else 50)
            continue
        else:
            with pytest.raises(PilekitError) as raised:
                list(read(path, on_error="skip"))
            message = str(raised.value)
        assert f": is {what}, not " in message
        assert f"rename it to .{right}" in message if right else "; pilekit does not read that: " in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    for name, content, why in (
        ("a.jsonl.zst", b"", "is empty (0 bytes)"),
        ("a.jsonl.gz", b"", "is empty (0 bytes)"),
        ("a.jsonl", b"", "is empty (0 bytes)"),
        ("b.jsonl.zst", b"<html>", "is not a zstd file; fetch it again"),
        ("c.txt", record("a"), "not named like a shard"),
        ("d.jsonl", None, "no such file"),
        ("folder.jsonl", None, "no shards"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        assert why in error(tmp_path / name)
    (tmp_path / "a.jsonl").chmod(0)
    if os.geteuid() != 0:  # root may read every file
        assert "permission denied" in error(tmp_path / "a.jsonl")
    with pytest.raises(PilekitError, match="on_error"):
        read(tmp_path / "a.jsonl", on_error="ignore")  # type: ignore[arg-type]


def test_a_bomb_of_zeros_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd_frame(bytes(256 << 20)))
    assert path.stat().st_size < 100_000
    message = error(path, max_document_bytes=8 << 20)
    assert "line 1: is longer than 8,388,608 bytes" in message
    assert "max_document_bytes" in message
    script = "try: list(read(sys.argv[1], max_document_bytes=8 << 20))\nexcept PilekitError: value = 1"
    value, memory = value_and_memory(script, path)
    assert value == 1
    assert 0 < memory < 60_000, "kilobytes of memory for a line of at most 8 MiB"


@pytest.mark.parametrize("line", [b"\n", b" \n", b"\r\n", b"{}\n"])
def test_millions_of_short_lines_take_no_memory_each(tmp_path: Path, line: bytes) -> None:
    """Blank lines and bad lines between two documents; both keep their numbers."""
    count = (6 << 20) // len(line)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(making.zstd_frame(record("first") + b"\n" + line * count + record("last") + b"\n"))
    script = """
reader = read(sys.argv[1], on_error="skip")
value = sum(int(number) for batch in reader for number in batch.numbers)
"""
    value, memory = value_and_memory(script, path)
    assert value == count + 1
    assert memory < 60_000, "kilobytes of memory for 6 MiB of short lines"


def test_a_connection_that_drops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp", reason="HTTP needs the extra `cloud`")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # A failed request is repeated at once.
    (tmp_path / "a.jsonl.zst").write_bytes(zstd_frame(TEXT))
    (tmp_path / "a.jsonl").write_bytes(TEXT)
    texts = [str(line) for line in TEXT.splitlines()]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=500)
    for name, ranges in (("a.jsonl.zst", True), ("a.jsonl", False), ("a.parquet", True)):
        with serving(tmp_path, ranges=ranges) as server:
            server.always = "cut"
            message = error(f"{server.url}{name}")
        assert "cannot be read further (" in message
        assert " of the file, line " in message


def test_standard_input_and_other_stores() -> None:
    line = record("piped") + b"\n"
    script = "from pilekit import PilekitError, read\ntry: print(*((b.shard, b.texts) for b in read('-')))\n"
    script += "except PilekitError as error: print(error)"
    for stored in (zstd_frame(line), gzip.compress(line), line):
        result = subprocess.run([sys.executable, "-c", script], input=stored, check=True, capture_output=True)
        assert result.stdout == b"('(stdin)', ['piped'])\n"
    closed = subprocess.run(f'"{sys.executable}" -c "{script}" <&-', shell=True, check=True, capture_output=True)
    assert closed.stdout.startswith(b"standard input (-) is closed")
    with fsspec.open("memory://corpus/00.jsonl.zst", "wb") as file:
        file.write(zstd_frame(record("from memory") + b"\n"))
    assert documents(read("memory://corpus/00.jsonl.zst")) == [(0, "from memory", "Github")]
    assert "no such file" in error("memory://corpus/01.jsonl.zst")


def test_real_text(real_corpus: Path) -> None:
    path = real_corpus / "genuine_pile_sample.jsonl"
    assert documents(read(path)) == slow_documents(path.read_bytes())
    path = real_corpus / "minipile-00.jsonl.zst"
    expected = slow_documents(making.unzstd(path))
    assert documents(read(path)) == expected
    chosen = ["Github", "Wikipedia (en)"]
    assert documents(read(path, chosen)) == [d for d in expected if d[2] in chosen]


def test_a_folder_a_glob_a_list_and_a_corpus_are_read_alike(tmp_path: Path) -> None:
    paths = [tmp_path / "00.jsonl", tmp_path / "1[2].jsonl.gz"]
    paths[0].write_bytes(TEXT[: TEXT.index(b"\n", 5000) + 1])
    paths[1].write_bytes(gzip.compress(TEXT))
    expected = documents(read(paths[0])) + documents(read(paths[1]))  # a name that looks like a glob, of a file
    store = fsspec.filesystem("memory")
    for path in paths:
        store.pipe_file(f"/alike/{path.name}", path.read_bytes())
    stored = ["memory://alike", "memory://alike/", "memory://alike/*.gz"]
    for source in (tmp_path, f"{tmp_path}/*", paths, Corpus(tmp_path), *stored):
        of_all = str(source).endswith("gz") is False
        for way in (read, read_corpus):
            assert documents(way(source)) == (expected if of_all else documents(read(paths[1])))
    with pytest.raises(PilekitError, match="start= is a document number of one shard"):
        read(tmp_path, start=1)
    making.write_shard(tmp_path / "2.jsonl", [b"bad", record("third", "ArXiv"), b"bad"])
    reader = read_corpus(tmp_path, ["pile_arxiv"], "skip")
    assert [(batch.shard, batch.texts) for batch in reader] == [("2.jsonl", ["third"])]
    assert reader.skipped.count == 2
    for subsets, why in ((["arxif"], "ArXiv"), ([], "subsets is empty")):
        with pytest.raises(PilekitError, match=why):
            read(paths[0], subsets)


PEAK_OF_A_BAD_LINE = """
import sys
from pilekit import read
[batch] = read(sys.argv[1], on_error="skip")
print(len(batch.texts))
"""


@pytest.mark.slow
def test_a_long_line_that_is_not_json_takes_three_times_its_size(tmp_path: Path) -> None:
    peaks = []
    for size in (10, 200_000_000):
        path = tmp_path / f"{size}.jsonl.zst"
        path.write_bytes(zstd_frame(bytes(size) + b"\n" + record("a") + b"\n"))
        documents, peak = value_and_peak(PEAK_OF_A_BAD_LINE, path)
        assert documents == 1
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 3.3 * 200_000_000
