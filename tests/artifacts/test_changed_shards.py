"""A shard that changes while a command reads it: the command names it and publishes nothing of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pilekit import Corpus, PilekitError, PileStream, Pipeline, Write, read_corpus
from pilekit.dedup import run as steps
from pilekit.dedup.run import dedup_corpus
from pilekit.pipeline.selecting import select_corpus
from pilekit.shards.fingerprint import fingerprint
from pilekit.shards.index.build import index_corpus
from pilekit.shards.read.open import _StoredFile
from pilekit.shards.read.parquet import RowBlocks
from pilekit.shards.verify.verify import verify_corpus
from pilekit.shards.write.reframe import reframe_corpus
from pilekit.tokenize.training import train_tokenizer
from tests.stream.collecting import read_in_turn

LINES = [
    json.dumps({"text": f"document {number} " + "word " * 200, "meta": {"pile_set_name": "ArXiv"}}).encode() + b"\n"
    for number in range(1000)
]


def shrink(path: Path) -> None:
    """Cut the shard at a line end, as `rsync --inplace` or `cp` leave it for a moment."""
    with path.open("rb+") as file:
        file.truncate(sum(map(len, LINES[:800])))


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(LINES[0])


def replace(path: Path) -> None:
    """Another file of the same size and time under its name, as a download leaves it."""
    about = path.stat()
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes().replace(b"word word", b"work word"))
    os.utime(other, ns=(about.st_atime_ns, about.st_mtime_ns))
    other.replace(path)


def rewrite(path: Path) -> None:
    """Other bytes in place; size and time are as before, as `cp -p` leaves them."""
    about = path.stat()
    with path.open("rb+") as file:
        file.seek(len(LINES[0]) * 7 + 20)
        file.write(b"X")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def verify(source: str, out: Path) -> None:
    """`verify --write-sums`, whose answer is a finding."""
    found = verify_corpus(source, write_sums=True, jobs=1)
    if not found.ok:
        raise PilekitError(" ".join(finding.problem + finding.shard for finding in found.findings))


COMMANDS: dict[str, Callable[[str, Path], object]] = {
    "select": lambda source, out: select_corpus(source, out, jobs=1),
    "to_parquet": lambda source, out: select_corpus(source, out, format="parquet", jobs=1),
    "reframe": lambda source, out: reframe_corpus(source, out, jobs=1),
    "index": lambda source, out: index_corpus(source, jobs=1),
    "dedup": lambda source, out: dedup_corpus(source, out=out, jobs=1),
    "verify": verify,
    "write": lambda source, out: list(Pipeline([Write(out / "part.jsonl.zst")])(read_corpus(Corpus(source)))),
    "tokenizer": lambda source, out: train_tokenizer(source, 300, out / "tokenizer.json"),
}
WhenRead = Callable[[Callable[[], object]], None]


@pytest.fixture
def when_read(monkeypatch: pytest.MonkeyPatch) -> WhenRead:
    """Run an action once, as soon as the first bytes or rows of a shard are read."""
    waiting: list[Callable[[], object]] = []
    really_read, really_iterate = _StoredFile.read, RowBlocks.__iter__

    def read(self: _StoredFile, size: int = -1, /) -> bytes:
        data = really_read(self, size)
        while waiting and self.storage is not None:  # not while a fingerprint is taken
            waiting.pop()()
        return data

    def iterate(self: RowBlocks) -> Iterator[Any]:
        for block in really_iterate(self):
            while waiting:
                waiting.pop()()
            yield block

    monkeypatch.setattr(_StoredFile, "read", read)
    monkeypatch.setattr(RowBlocks, "__iter__", iterate)
    return waiting.append


def files(*folders: Path) -> dict[str, bytes]:
    """The published files, without scratch files and sketches, which a killed run may leave."""
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {path.name: path.read_bytes() for path in found if path.name not in ("pilekit.json", "DONE")}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_published_of_a_shard_that_changes_and_the_good_one_gives_what_it_always_does(
    tmp_path: Path, when_read: WhenRead, name: str
) -> None:
    data, kept, out = tmp_path / "data", tmp_path / "kept.jsonl", tmp_path / "out"
    path = data / "00.jsonl"
    data.mkdir()
    kept.write_bytes(b"".join(LINES))
    expected: dict[str, bytes] = {}
    for change in (None, shrink, rewrite, *((grow, replace) if name == "select" else ())):
        shutil.rmtree(out, ignore_errors=True)
        for old in data.iterdir():
            old.unlink()
        shutil.copy2(kept, path)
        if change is not None:
            when_read(partial(change, path))
            with pytest.raises(PilekitError, match=r"was changed while it was read|00\.jsonl.* was changed"):
                COMMANDS[name](str(data), out)
            assert set(files(data, out)) == {"00.jsonl"}, change
            shutil.copy2(kept, path)  # size and times are those of the beginning
        COMMANDS[name](str(data), out)
        expected = expected or files(data, out)
        assert files(data, out) == expected
        assert len(expected) > 1


def test_nothing_is_published_of_parquet_and_urls_that_change(tmp_path: Path, when_read: WhenRead) -> None:
    path, other, out = tmp_path / "data/00.parquet", tmp_path / "other.parquet", tmp_path / "out"
    path.parent.mkdir()
    for file, texts in ((path, ["one"] * 5000), (other, ["two"] * 5000)):
        pq.write_table(pa.table({"text": texts}), file, row_group_size=500)
    for name in set(COMMANDS) - {"reframe"}:
        when_read(partial(shutil.copy2, other, path))
        with pytest.raises(PilekitError, match="was changed"):
            COMMANDS[name](str(path.parent), out)
        assert set(files(path.parent, out)) == {"00.parquet"}
    store = fsspec.filesystem("memory")
    for name in ("select", "to_parquet", "reframe", "dedup", "write"):
        store.pipe_file("/changing/00.jsonl", b"".join(LINES))
        when_read(partial(store.pipe_file, "/changing/00.jsonl", b"".join(LINES).replace(b"word", b"work")))
        with pytest.raises(PilekitError, match="was changed while it was read"):
            COMMANDS[name]("memory://changing", out)
        assert not files(out)


def write_line_480(path: Path, line: bytes) -> None:
    """Write a line that lies between two pieces of the fingerprint."""
    with path.open("rb+") as file:
        file.seek(sum(map(len, LINES[:480])))
        file.write(line)


def damaged(data: Path) -> Path:
    """Make a corpus with one damaged line; returns its shard."""
    data.mkdir()
    path = data / "00.jsonl"
    path.write_bytes(b"".join(LINES))
    write_line_480(path, LINES[480].replace(b"document", b"damaged!"))
    (data / "01.jsonl").write_bytes(LINES[480])
    return path


@pytest.mark.parametrize("name", ["select", "reframe", "dedup"])
def test_a_mended_shard_is_done_again_although_size_and_samples_are_the_same(tmp_path: Path, name: str) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    path = damaged(data)
    before = fingerprint(str(path))
    COMMANDS[name](str(data), out)
    write_line_480(path, LINES[480])
    assert fingerprint(str(path)) == before
    COMMANDS[name](str(data), out)
    COMMANDS[name](str(data), tmp_path / "expected")
    assert files(out) == files(tmp_path / "expected")
    assert b"damaged" not in b"".join(files(out).values())


def test_a_shard_mended_after_a_stopped_dedup_is_compared_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    path = damaged(data)
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(steps, "decide", lambda *arguments, **options: 1 // 0)
        COMMANDS["dedup"](str(data), out)
    write_line_480(path, LINES[480])
    COMMANDS["dedup"](str(data), out)
    COMMANDS["dedup"](str(data), tmp_path / "expected")
    assert files(out) == files(tmp_path / "expected")


def test_a_stream_of_whole_shards_stops_at_one_that_changes(tmp_path: Path, when_read: WhenRead) -> None:
    path = tmp_path / "00.jsonl"
    path.write_bytes(b"".join(LINES))
    COMMANDS["tokenizer"](str(path), tmp_path)
    for change, after in ((shrink, None), (rewrite, None), (grow, 0), (replace, 0)):
        path.write_bytes(b"".join(LINES))
        settings = {"tokenizer": tmp_path / "tokenizer.json", "seq_len": 512, "batch_size": 4}
        with read_in_turn():
            stream = PileStream(str(path), **settings, shuffle_block=16)  # a shard of one block is read at once
        if after is None:
            when_read(partial(change, path))
        with pytest.raises(PilekitError, match=r"00\.jsonl: was changed while it was read"):
            for step, _ in enumerate(stream):
                if step == after:
                    change(path)
                assert step < 10_000
