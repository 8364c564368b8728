"""Shards behind URLs: fsspec's memory store, archives, caches, and a real HTTP server on this machine."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

from pilekit.corpus import Corpus, Shard, shard_of
from pilekit.errors import PilekitError


@pytest.fixture
def memory() -> Iterator[str]:
    """A small store: a corpus, something that pilekit wrote, hidden files."""
    store = fsspec.filesystem("memory")
    for name in (
        "train/00.jsonl.zst",
        "train/01.jsonl.zst",
        "val.jsonl.zst",
        "README.md",
        "00.index.parquet",
        ".hidden/02.jsonl",
        "clean/pilekit.json",
        "clean/train/00.jsonl.zst",
    ):
        store.pipe(f"/pile/{name}", name.encode())
    yield "memory://pile"
    store.rm("/pile", recursive=True)


def names(corpus: Corpus) -> list[str]:
    return [shard.name for shard in corpus]


def test_a_folder(memory: str) -> None:
    corpus = Corpus(memory + "/")
    assert corpus.root == memory
    assert corpus.shards == Corpus(memory).shards
    assert corpus.shards == (
        Shard("train/00.jsonl", f"{memory}/train/00.jsonl.zst", 18, "train"),
        Shard("train/01.jsonl", f"{memory}/train/01.jsonl.zst", 18, "train"),
        Shard("val.jsonl", f"{memory}/val.jsonl.zst", 13, "val"),
    )


def test_a_file_and_globs(memory: str) -> None:
    corpus = Corpus(f"{memory}/train/00.jsonl.zst")
    assert (corpus.root, names(corpus), corpus.size) == (f"{memory}/train", ["00.jsonl"], 18)
    assert shard_of(f"{memory}/train/00.jsonl.zst").name == "00.jsonl"
    assert names(Corpus(f"{memory}/train/*.jsonl.zst")) == ["00.jsonl", "01.jsonl"]
    assert names(Corpus(f"{memory}/*/00.*")) == ["train/00.jsonl"]
    assert names(Corpus(f"{memory}/**/*.zst")) == ["train/00.jsonl", "train/01.jsonl", "val.jsonl"]


def test_what_pilekit_wrote_is_read_only_when_given(memory: str) -> None:
    assert names(Corpus(f"{memory}/clean")) == ["train/00.jsonl"]
    fsspec.filesystem("memory").pipe("/pile/only/clean/pilekit.json", b"{}")
    fsspec.filesystem("memory").pipe("/pile/only/clean/00.jsonl", b"{}")
    with pytest.raises(PilekitError, match=r"pilekit wrote them: memory://pile/only/clean;"):
        Corpus(f"{memory}/only")


def test_several_urls_are_named_from_their_common_parent(memory: str, tmp_path: Path) -> None:
    corpus = Corpus([f"{memory}/val.jsonl.zst", f"{memory}/train"])
    assert (corpus.root, names(corpus)) == (memory, ["train/00.jsonl", "train/01.jsonl", "val.jsonl"])
    (tmp_path / "x.jsonl").write_text("{}")
    with pytest.raises(PilekitError, match="have no common folder"):
        Corpus([memory, str(tmp_path)])


def test_an_archive_and_a_cache(memory: str, tmp_path: Path) -> None:
    archive = tmp_path / "pile.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("train/00.jsonl", "{}")
        file.writestr("val.jsonl", "{}")
    corpus = Corpus(f"zip://::{archive}")
    assert names(corpus) == ["train/00.jsonl", "val.jsonl"]
    assert fsspec.open(corpus.shards[0].path).open().read() == b"{}"
    corpus = Corpus(f"zip://train/*::{archive}")
    assert corpus.shards == (Shard("00.jsonl", f"zip://train/00.jsonl::{archive}", 2, "train"),)
    corpus = Corpus(f"simplecache::{memory}/train")
    assert (names(corpus), corpus.shards[0].split) == (["00.jsonl", "01.jsonl"], "train")
    assert fsspec.open(corpus.shards[0].path).open().read() == b"train/00.jsonl.zst"


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    (tmp_path / "00.jsonl").write_text("{}")
    assert Corpus(f"file://{tmp_path}").shards[0].path == f"{tmp_path}/00.jsonl"


def test_errors(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as file:
        file.writestr("../../evil.jsonl", "{}")
    for url, message in [
        (f"zip://::{tmp_path}/evil.zip", r"cannot name a shard: names are relative and without '\.\.'"),
        ("memory://nowhere", "there is no such file or folder; check the URL"),
        ("memory://nowhere/00.jsonl.zst", "there is no such file or folder; check the URL"),
        (f"{memory}/*.gz", r"no shards .* in memory://pile/\*\.gz;"),
        ("gopher://x/y", r"^gopher://x/y: cannot be listed: Protocol not known: gopher"),
    ]:
        with pytest.raises(PilekitError, match=message):
            Corpus(url)

    def missing(*arguments: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(PilekitError, match=r"Install s3fs to access S3; `pip install 'pilekit\[cloud\]'`"):
        Corpus("s3://bucket/pile")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp", reason="HTTP needs the extra `cloud`")
    for name in ("train/00.jsonl", "val.jsonl", "README.md"):
        path = tmp_path / "served" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "served")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_web_server(server: str) -> None:
    for query in ("", "?signature=a/b"):
        url = f"{server}/train/00.jsonl{query}"
        assert Corpus(url).shards == (Shard("00.jsonl", url, 3, "train"),)
        assert shard_of(url).name == "00.jsonl"
    assert names(Corpus(server)) == ["train/00.jsonl", "val.jsonl"]
    assert names(Corpus(f"{server}/train/")) == ["00.jsonl"]
    assert names(Corpus(f"{server}/*.jsonl")) == ["val.jsonl"]
    with pytest.raises(PilekitError, match=r"01\.jsonl: there is no such file or folder .*404"):
        Corpus(f"{server}/01.jsonl")
    with pytest.raises(PilekitError, match="Cannot connect"):
        Corpus("http://127.0.0.1:9/00.jsonl")
