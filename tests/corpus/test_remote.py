"""Shards behind URLs: fsspec's memory store, archives, caches, and a real HTTP server on this machine."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pilekit.artifacts.header import write_header
from pilekit.corpus import Corpus, Shard, shard_of
from pilekit.corpus.stores import store_of
from pilekit.errors import PilekitError
from tests.corpus.making import names
from tests.web_server import serving


@pytest.fixture
def memory() -> Iterator[str]:
    """A small store: a corpus, something that pilekit wrote, hidden files."""
    store = fsspec.filesystem("memory")
    shards = ["train/00.jsonl.zst", "train/01.jsonl.zst", "val.jsonl.zst"]
    others = ["README.md", "00.index.parquet", ".hidden/02.jsonl", "clean/train/00.jsonl.zst"]
    for name in (*shards, *others):
        store.pipe(f"/pile/{name}", name.encode())
    store.pipe("/pile/clean/pilekit.json", b'{"format":1,"pilekit":"1","kind":"selection"}')
    yield "memory://pile"
    store.rm("/pile", recursive=True)


def test_a_folder_a_file_and_globs(memory: str) -> None:
    corpus = Corpus(memory + "/")
    assert corpus.root == memory
    assert corpus.shards == (
        Shard("train/00.jsonl", f"{memory}/train/00.jsonl.zst", 18, "train"),
        Shard("train/01.jsonl", f"{memory}/train/01.jsonl.zst", 18, "train"),
        Shard("val.jsonl", f"{memory}/val.jsonl.zst", 13, "val"),
    )
    one = Corpus(f"{memory}/train/00.jsonl.zst")
    assert (one.root, names(one), one.size) == (f"{memory}/train", ["00.jsonl"], 18)
    assert shard_of(f"{memory}/train/00.jsonl.zst").name == "00.jsonl"
    for pattern, expected in [
        ("train/*.jsonl.zst", ["00.jsonl", "01.jsonl"]),
        ("*/00.*", ["train/00.jsonl"]),
        ("**/*.zst", ["train/00.jsonl", "train/01.jsonl", "val.jsonl"]),
        ("clean", ["train/00.jsonl"]),  # pilekit wrote it: it is searched only when it is given
    ]:
        assert names(Corpus(f"{memory}/{pattern}")) == expected


def test_several_urls_are_named_from_their_common_parent(memory: str, tmp_path: Path) -> None:
    corpus = Corpus([f"{memory}/val.jsonl.zst", f"{memory}/train"])
    assert (corpus.root, names(corpus)) == (memory, ["train/00.jsonl", "train/01.jsonl", "val.jsonl"])
    (tmp_path / "x.jsonl").write_text("{}")
    assert Corpus(f"file://{tmp_path}").shards[0].path == f"{tmp_path}/x.jsonl"
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


def test_the_folder_of_a_finished_job_is_its_shards(memory: str, tmp_path: Path) -> None:
    """In a store as in a local folder, inside an archive and through a cache too."""
    local = tmp_path / "unique"
    for name in ("clean/train/00.jsonl", "clean/val.jsonl"):
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).write_text("{}\n")
    (local / "removed.parquet").write_bytes(b"no shard")
    archive, store = tmp_path / "unique.zip", fsspec.filesystem("memory")

    def stored(**header: Any) -> list[str]:
        write_header(local, kind="dedup", inputs={}, **header)
        with zipfile.ZipFile(archive, "w") as file:
            for path in local.rglob("*"):
                file.write(path, path.relative_to(local))
                if path.is_file():
                    store.pipe(f"/pile/unique/{path.relative_to(local)}", path.read_bytes())
        return [f"{memory}/unique", f"{memory}/unique/", f"zip://::{archive}", f"simplecache::{memory}/unique"]

    for url in stored(parameters={"write": True}, finished=True):
        corpus = Corpus(url)
        assert names(corpus) == ["train/00.jsonl", "val.jsonl"]
        assert [shard.split for shard in corpus] == ["train", "val"]
        for shard in corpus:
            with fsspec.open(shard.path) as file:
                assert file.read() == b"{}\n"
    assert names(Corpus(f"{memory}/unique/clean")) == ["train/00.jsonl", "val.jsonl"]
    with pytest.raises(PilekitError, match=r"not searched, .*pilekit wrote them: memory://pile/unique;"):
        Corpus(f"{memory}/uniqu*/**")
    for url in stored(parameters={"write": True}, finished=False):
        with pytest.raises(PilekitError, match="is not finished, so shards may be missing; run the command that wrote"):
            Corpus(url)


def test_errors(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as file:
        file.writestr("../../evil.jsonl", "{}")
    store = fsspec.filesystem("memory")
    store.pipe({"/pile/only/clean/pilekit.json": b"{}", "/pile/only/clean/00.jsonl": b"{}"})
    for url, message in [
        (f"{memory}/only", r"pilekit wrote them: memory://pile/only/clean;"),
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


def test_a_web_server(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="HTTP needs the extra `cloud`")
    (tmp_path / "train").mkdir()
    for name in ("train/00.jsonl", "val.jsonl", "README.md"):
        (tmp_path / name).write_text("{}\n")
    with serving(tmp_path) as server:
        limits = store_of(server.url)[0].client_kwargs["timeout"]
        assert (limits.total, limits.sock_connect, limits.sock_read) == (None, 30, 30), "silence ends a request"
        for query in ("", "?signature=a/b"):
            url = f"{server.url}train/00.jsonl{query}"
            assert Corpus(url).shards == (Shard("00.jsonl", url, 3, "train"),)
            assert shard_of(url).name == "00.jsonl"
        assert names(Corpus(server.url)) == ["train/00.jsonl", "val.jsonl"]
        assert names(Corpus(f"{server.url}train/")) == ["00.jsonl"]
        assert names(Corpus(f"{server.url}*.jsonl")) == ["val.jsonl"]
        with pytest.raises(PilekitError, match=r"01\.jsonl: there is no such file or folder; check"):
            Corpus(f"{server.url}01.jsonl")
    with pytest.raises(PilekitError, match="cannot be listed: Cannot connect"):
        Corpus("http://127.0.0.1:9/00.jsonl")
