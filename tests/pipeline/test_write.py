"""Lines byte for byte, and a file that is whole or absent."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import zstandard

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.pipeline import Document, MinBytes, Pipeline, Write, document_map
from pilekit.shards.read.reader import read
from tests.pipeline.making import batch, identities


def stored(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return data


@pytest.mark.parametrize("name", ["out.jsonl.zst", "out.jsonl.gz", "out.jsonl"])
def test_lines_as_they_stood(tmp_path: Path, name: str) -> None:
    batches = [batch(["a", "long enough", "\xe9\n\u2028"]), batch([]), batch(["another long one"], first=9)]
    pipeline = Pipeline([MinBytes(4), Write(tmp_path / name)])
    passed = identities(pipeline(iter(batches)))
    assert [text for *_, text in passed] == ["long enough", "\xe9\n\u2028", "another long one"]
    assert batches[0].lines is not None
    assert batches[2].lines is not None
    lines = [batches[0].lines[1], batches[0].lines[2], batches[2].lines[0]]
    assert stored(tmp_path / name) == b"".join(bytes(line) + b"\n" for line in lines)
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_only_changed_texts_are_encoded_anew(tmp_path: Path) -> None:
    @document_map
    def repaired(document: Document) -> str:
        return document.text.replace("\ufffd", "?")

    one = batch(["fine", "bro\ufffdken"])
    list(Pipeline([repaired, Write(tmp_path / "out.jsonl")])(iter([one])))
    first, second = stored(tmp_path / "out.jsonl").splitlines()
    assert one.lines is not None
    assert first == one.lines[0]
    assert orjson.loads(second) == orjson.loads(one.lines[1]) | {"text": "bro?ken"}


def test_written_is_read_again(tmp_path: Path) -> None:
    one = batch(["x" * 50, "y \u20ac", ""], ["ArXiv", "Github", "Books3"])
    list(Write(tmp_path / "out.jsonl.zst")(iter([one])))
    again = identities(read(tmp_path / "out.jsonl.zst"))
    assert [(subset, text) for _, _, subset, text in again] == list(zip(one.subsets, one.texts, strict=True))


def test_no_documents_make_an_empty_shard(tmp_path: Path) -> None:
    assert list(Write(tmp_path / "out.jsonl.zst")(iter([]))) == []
    assert stored(tmp_path / "out.jsonl.zst") == b""


def failing() -> Iterator[DocumentBatch]:
    yield batch(["one"])
    raise PilekitError("the shard is damaged")


@pytest.mark.parametrize("before", [None, b"an earlier result\n"])
@pytest.mark.parametrize("how", ["upstream fails", "consumer leaves", "consumer fails", "consumer throws"])
def test_whole_or_absent(tmp_path: Path, how: str, before: bytes | None) -> None:
    path = tmp_path / "out.jsonl"
    if before is not None:
        path.write_bytes(before)
    out = Write(path)(failing() if how == "upstream fails" else iter([batch(["one"]), batch(["two"], first=1)]))
    next(out)
    if how == "upstream fails":
        with pytest.raises(PilekitError, match="damaged"):
            next(out)
    elif how == "consumer leaves":
        out.close()  # type: ignore[attr-defined]
    elif how == "consumer fails":
        with pytest.raises(ZeroDivisionError):
            for _ in out:
                raise ZeroDivisionError
        del out
    else:
        with pytest.raises(KeyboardInterrupt):
            out.throw(KeyboardInterrupt())  # type: ignore[attr-defined]
    assert (path.read_bytes() if path.exists() else None) == before
    assert [file for file in tmp_path.iterdir() if file != path] == []


def test_nothing_is_opened_before_the_first_batch_is_asked_for(tmp_path: Path) -> None:
    Write(tmp_path / "out.jsonl")(iter([batch(["one"])]))
    assert list(tmp_path.iterdir()) == []
