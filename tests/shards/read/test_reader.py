"""Reading whole shards in every storage form, with every kind of damage, in bounded memory."""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Corpus, stores
from pilekit.errors import PilekitError
from pilekit.shards.read.reader import read, read_corpus
from pilekit.shards.write.shard_writer import ShardWriter
from tests.shards.making import LABELS, lines, record, slow_documents, some_lines, unzstd, zstd_frame
from tests.shards.reading import Found, documents, error, value_and_memory


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


def test_many_tiny_frames_make_few_batches(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(zstd_frame(line + b"\n") for line in some_lines(3000)))
    batches = list(read(path))
    assert len(documents(batches)) == 3000
    assert len(batches) <= 2


def test_a_document_longer_than_many_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    long = "long " * 3_000_000
    with ShardWriter(path) as writer:
        writer.write_lines([record("before"), record(long), record("after")])
    assert [text for _, text, _ in documents(read(path))] == ["before", long, "after"]


@pytest.fixture(scope="module")
def shard_text() -> bytes:
    return b"\n".join(some_lines(9000)) + b"\n"


def test_a_truncated_file(tmp_path: Path, shard_text: bytes) -> None:
    for name, stored in (("a.jsonl.zst", zstd_frame(shard_text)), ("a.jsonl.gz", gzip.compress(shard_text))):
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
        assert seen == slow_documents(shard_text)[: len(seen)]
        assert len(seen) > 7000
        assert "is cut off" in error(path, on_error="skip")


def test_a_frame_without_end_whose_text_ends_with_a_line(tmp_path: Path) -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    stored = stream.compress(b"\n".join(some_lines(100)) + b"\n") + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(stored)
    # The decoder alone reports nothing: text would be lost silently.
    assert zstandard.ZstdDecompressor().stream_reader(stored).read().count(b"\n") == 100
    message = error(path)
    assert "is cut off: frame 0 has no end" in message
    assert "line 101" in message


def test_a_damaged_frame(tmp_path: Path, shard_text: bytes) -> None:
    whole = zstd_frame(shard_text[:500_000] + b"\n", checksum=True)
    stored = bytearray(zstd_frame(b'{"text": "first frame"}\n') + whole)
    stored[-len(whole) // 2] ^= 16
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(bytes(stored))
    message = error(path)
    assert "frame 1 is damaged" in message
    assert "somewhere in bytes 33 to " in message
    assert "frame 1, noticed at line 2)" in message
    stored = bytearray(zstd_frame(b"\n".join([record("x" * 1000)] * 50), checksum=True))
    stored[-1] ^= 1
    path.write_bytes(bytes(stored))
    message = error(path)
    assert "frame 0 is damaged (Restored data doesn't match checksum); fetch it again" in message
    assert message.endswith(f"(somewhere in bytes 0 to {len(stored):,} of the file, frame 0, noticed at line 1)")


def test_garbage_appended(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    stored = zstd_frame(record("a") + b"\n")
    path.write_bytes(stored + b"<html>not found</html>")
    message = error(path)
    assert "what follows frame 0 is not a zstd frame" in message
    assert f"byte {len(stored):,} of the file" in message
    assert "line 2" in message
    path.with_name("b.jsonl.gz").write_bytes(gzip.compress(record("a")) + b"<html>")
    assert "damaged" in error(path.with_name("b.jsonl.gz"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("a.jsonl.zst", "a.jsonl.gz", "a.jsonl"):
        (tmp_path / name).touch()
        assert "is empty (0 bytes)" in error(tmp_path / name)
    (tmp_path / "folder.jsonl").mkdir()
    assert "is a folder" in error(tmp_path / "folder.jsonl")
    assert "no such file" in error(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").write_bytes(record("a"))
    (tmp_path / "c.jsonl").chmod(0)
    if os.geteuid() != 0:  # root may read every file
        assert "permission denied" in error(tmp_path / "c.jsonl")
    (tmp_path / "d.txt").write_bytes(record("a"))
    assert "not named like a shard" in error(tmp_path / "d.txt")
    (tmp_path / "e.jsonl.zst").write_bytes(record("a"))
    assert "is not a zstd file" in error(tmp_path / "e.jsonl.zst")


def test_bad_lines_in_a_shard(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd_frame(b"\n".join([record("a"), b"", b"{", record("b"), b'{"text": 1}'])))
    assert error(path).startswith(f"{path}, line 3: is not JSON")
    reader = read(path, on_error="skip")
    assert documents(reader) == [(0, "a", "Github"), (3, "b", "Github")]
    assert [bad.line for bad in reader.skipped.examples] == [3, 5]
    with pytest.raises(PilekitError, match="on_error"):
        read(path, on_error="ignore")  # type: ignore[arg-type]


def test_a_bomb_of_zeros_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    bomb = zstandard.ZstdCompressor().compressobj()
    with path.open("wb") as file:
        for _ in range(256):
            file.write(bomb.compress(bytes(1 << 20)))
        file.write(bomb.flush())
    assert path.stat().st_size < 100_000
    message = error(path, max_document_bytes=8 << 20)
    assert "line 1: is longer than 8,388,608 bytes" in message
    assert "max_document_bytes" in message
    script = "try: list(read(sys.argv[1], max_document_bytes=8 << 20))\nexcept PilekitError: value = 1"
    value, memory = value_and_memory(script, path)
    assert value == 1
    assert 0 < memory < 60_000, "kilobytes of memory for a line of at most 8 MiB"


def test_an_oversized_window_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    parameters = zstandard.ZstdCompressionParameters(window_log=29, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path.write_bytes(stream.compress(record("a") + b"\n") + stream.flush())
    message = error(path)
    assert "needs a window of 512 MiB" in message
    assert "--long=31" in message
    assert len(documents(read(path, max_window=1 << 29))) == 1


def times_open(path: Path) -> int:
    """The number of open descriptors of the file in this process."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # other threads close files too
            count += descriptor.readlink() == path
    return count


def test_closing_early_ends_the_thread_and_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd_frame(b"\n".join(some_lines(9000)) * 8))
    before = set(threading.enumerate())
    with read(path) as reader:
        next(reader)
        assert times_open(path) == 1
    assert times_open(path) == 0
    assert not [thread for thread in set(threading.enumerate()) - before if "pilekit" in thread.name]


def test_a_corpus_gives_its_shards_in_order(tmp_path: Path) -> None:
    for number in range(3):
        with ShardWriter(tmp_path / "train" / f"{number:02}.jsonl.zst") as writer:
            writer.write_lines([record(f"{number}.{i}", LABELS[i % 2]) for i in range(10)] + [b"bad"])
    corpus = Corpus(tmp_path)
    reader = read_corpus(corpus, on_error="skip")
    batches = list(reader)
    assert [batch.shard for batch in batches] == [f"train/{number:02}.jsonl" for number in range(3)]
    assert [text for _, text, _ in documents(batches)] == [f"{number}.{i}" for number in range(3) for i in range(10)]
    assert reader.skipped.count == 3
    arxiv = documents(read_corpus(corpus, ["ArXiv"], "skip"))
    assert [text for _, text, _ in arxiv] == [f"{number}.{i}" for number in range(3) for i in range(1, 10, 2)]


def test_subsets_in_any_spelling(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a.jsonl.zst") as writer:
        writer.write_lines([record("a", "Github"), record("b", "ArXiv"), b'{"text": "c"}'])
    assert [text for _, text, _ in documents(read(tmp_path / "a.jsonl.zst", ["pile_github"]))] == ["a"]
    assert [text for _, text, _ in documents(read(tmp_path / "a.jsonl.zst", ["(none)", "arxiv"]))] == ["b", "c"]
    with pytest.raises(PilekitError, match="ArXiv"):
        read(tmp_path / "a.jsonl.zst", ["arxif"])
    with pytest.raises(PilekitError, match="subsets is empty"):
        read(tmp_path / "a.jsonl.zst", [])


def test_urls(tmp_path: Path) -> None:
    import fsspec

    with fsspec.open("memory://corpus/00.jsonl.zst", "wb") as file:
        file.write(zstd_frame(record("from memory") + b"\n"))
    (batch,) = read("memory://corpus/00.jsonl.zst")
    assert batch.texts == ["from memory"]
    assert "no such file" in error("memory://corpus/01.jsonl.zst")


class Failing(io.BytesIO):
    """A file with one byte that cannot be read, as on a disk with a bad sector."""

    def read(self, size: int | None = -1, /) -> bytes:
        begin = self.tell()
        data = super().read(size)
        if begin <= len(self.getvalue()) - 20_000 < begin + len(data):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return data


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
def test_a_disk_that_fails_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path, some = tmp_path / name, some_lines(9000)
    if name == "a.parquet":
        pq.write_table(pa.table({"text": [str(line) for line in some]}), path, row_group_size=500)
    else:
        with ShardWriter(path) as writer:
            writer.write_lines(some)
    stored = Failing(path.read_bytes())
    monkeypatch.setattr(stored, "fileno", path.open("rb").fileno, raising=False)
    monkeypatch.setattr(Path, "open", lambda *arguments: stored)
    message = error(path)
    assert "cannot be read further (OSError: [Errno 5] Input/output error); check the connection or disk" in message
    byte, line = re.findall(r"\(byte ([\d,]+) of the file, line ([\d,]+)\)$", message)[0]
    assert 0 < int(byte.replace(",", "")) <= path.stat().st_size - 20_000
    assert 5_000 < int(line.replace(",", "")) < 9_000, "the lines before the damage are read"


@pytest.mark.parametrize(("name", "ranges"), [("a.jsonl.zst", True), ("a.jsonl", False), ("a.parquet", True)])
def test_a_connection_that_drops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ranges: bool) -> None:
    pytest.importorskip("aiohttp", reason="HTTP needs the extra `cloud`")
    monkeypatch.setattr(stores, "RETRY_AFTER", (0.0, 0.0))
    path, some = tmp_path / name, some_lines(9000)
    if name == "a.parquet":
        pq.write_table(pa.table({"text": [str(line) for line in some]}), path)
    else:
        path.write_bytes(b"\n".join(some) if name == "a.jsonl" else zstd_frame(b"\n".join(some)))
    stored = path.read_bytes()

    class Dropping(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(stored)))
            if ranges:
                self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(stored[: len(stored) // 2])

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Dropping) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        message = error(f"http://127.0.0.1:{server.server_port}/{name}")
        server.shutdown()
    assert "cannot be read further (" in message
    assert " of the file, line " in message


def test_standard_input() -> None:
    script = "from pilekit import read\nfor b in read('-'): print(b.shard, b.texts)"
    line = record("piped") + b"\n"
    for stored in (zstd_frame(line), gzip.compress(line), line):
        result = subprocess.run([sys.executable, "-c", script], input=stored, check=True, capture_output=True)
        assert result.stdout.decode() == "(stdin) ['piped']\n"
    script = "from pilekit import PilekitError, read\ntry: list(read('-'))\nexcept PilekitError as error: print(error)"
    command = f'"{sys.executable}" -c "{script}" <&-'
    closed = subprocess.run(command, shell=True, check=True, capture_output=True, text=True)
    assert closed.stdout.startswith("standard input (-) is closed")


def test_real_text(real_corpus: Path) -> None:
    path = real_corpus / "genuine_pile_sample.jsonl"
    assert documents(read(path)) == slow_documents(path.read_bytes())
    path = real_corpus / "minipile-00.jsonl.zst"
    expected = slow_documents(unzstd(path))
    assert documents(read(path)) == expected
    chosen = ["Github", "Wikipedia (en)"]
    assert documents(read(path, chosen)) == [d for d in expected if d[2] in chosen]
