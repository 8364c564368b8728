"""Every command that reads takes URLs, and gives the same output for a URL as for a folder with the same files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from pilekit.corpus import shard_of
from pilekit.shards.index.format import find_index
from pilekit.shards.random_access.document_reader import read_documents
from pilekit.shards.random_access.pile_documents import PileDocuments
from pilekit.shards.write.shard_writer import ShardWriter
from tests.cli.running import refused, run, run_json
from tests.shards.making import LABELS, record, some_lines, zstd_frame
from tests.web_server import serving

KNOWN = [label for label in LABELS if label.isascii()]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder: indexes of URLs go there."""
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus of three shards, stored in three ways, and a Parquet shard."""
    some = [record(json.loads(line)["text"], KNOWN[i % 3]) for i, line in enumerate(some_lines(900))]
    with ShardWriter(tmp_path / "pile" / "train" / "00.jsonl.zst", frame_bytes=20_000) as writer:
        writer.write_lines(some[:600])
    with ShardWriter(tmp_path / "pile" / "train" / "01.jsonl.gz") as writer:
        writer.write_lines(some[600:800])
    (tmp_path / "pile" / "val.jsonl.zst").write_bytes(zstd_frame(b"\n".join(some[800:]) + b"\n", checksum=True))
    return tmp_path / "pile"


@pytest.fixture(params=["http", pytest.param("memory", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The URL of the same folder."""
    if request.param == "http":
        with web(folder) as server:
            yield server.url.rstrip("/")
        return
    memory = fsspec.filesystem("memory")
    memory.put(f"{folder}/", "/urls/", recursive=True)
    yield "memory://urls"
    memory.rm("/urls", recursive=True)


def web(folder: Path, *, ranges: bool = True) -> Any:
    pytest.importorskip("aiohttp", reason="HTTP needs the extra `cloud`")
    return serving(folder, ranges=ranges)


def store(folder: Path, url: str, name: str, content: bytes) -> None:
    """Write a file into the folder, so that it has that URL too."""
    (folder / name).write_bytes(content)
    if url.startswith("memory"):
        fsspec.filesystem("memory").pipe(f"/urls/{name}", content)


def files(folder: Path) -> dict[str, bytes]:
    """All shards below a folder."""
    names = (path for path in folder.rglob("*.*") if path.name != "pilekit.json" and ".index." not in path.name)
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def test_every_command_gives_the_same_for_a_url(folder: Path, url: str, cache: Path, tmp_path: Path) -> None:
    def comparable(shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in shard.items() if key not in ("index", "built")} for shard in shards]

    for indexed in (False, True):
        for options in ([], ["--copies"], ["--subsets", "ArXiv"]):
            assert run_json("stats", url, *options) == run_json("stats", folder, *options)
        for name, number in (("train/00.jsonl.zst", 599), ("train/01.jsonl.gz", 150)):
            shown = run("show", f"{url}/{name}", number).stdout_bytes
            assert shown == run("show", folder / name, number).stdout_bytes
        made = run_json("index", url)["shards"]
        assert indexed or all(Path(shard["index"]).is_relative_to(cache) for shard in made)
        assert comparable(made) == comparable(run_json("index", folder)["shards"])
    assert [shard["built"] for shard in made] == [False] * 3
    for command, options in (
        ("reframe", ["--frame", "16KiB", "--jobs", 1]),
        ("select", ["--subsets", "arxiv", "--sample", 0.5, "--jobs", 1]),
    ):
        results = []
        for place, out in ((folder, "local"), (url, "remote")):
            results.append(run_json(command, place, "--out", tmp_path / command / out, *options))
        assert results[0] == results[1]
        assert files(tmp_path / command / "local") == files(tmp_path / command / "remote") != {}


def test_verify_and_damage(folder: Path, url: str, tmp_path: Path) -> None:
    assert run_json("verify", url) == run_json("verify", folder) == {"ok": True, "findings": []}
    refused("write", "verify", url, "--write-sums")
    stored = bytearray((folder / "train/00.jsonl.zst").read_bytes())
    stored[len(stored) // 2] ^= 1
    store(folder, url, "train/00.jsonl.zst", bytes(stored))
    found = run_json("verify", url, exit_code=1)
    assert found == run_json("verify", folder, exit_code=1)
    assert found["findings"][0]["frame"] is not None
    for name, options in (("stats", []), ("reframe", ["--out", tmp_path / "r", "--jobs", 1])):
        refused(r"train/00\.jsonl\.zst: frame \d+ is damaged", name, url, *options)
    store(folder, url, "SHA256SUMS", f"{'0' * 64}  val.jsonl.zst\n".encode())
    for place in (url, folder):
        *_, finding = run_json("verify", place, exit_code=1)["findings"]
        assert finding["shard"] == "val.jsonl"
        assert f"{place}/SHA256SUMS says 000000000000" in finding["problem"]


def test_parquet(url: str, folder: Path, tmp_path: Path) -> None:
    table = pa.table({"text": [f"row {i}" for i in range(500)], "meta": [{"pile_set_name": "ArXiv"}] * 500})
    path, place = tmp_path / "a.parquet", f"{url}/a.parquet"
    pq.write_table(table, path, row_group_size=90)
    store(folder, url, "a.parquet", path.read_bytes())
    for _ in range(2):  # before and after `index`
        assert run("show", place, 450).stdout == "row 450"
        assert run_json("index", place)["shards"][0]["documents"] == 500
    assert run_json("stats", place) == run_json("stats", path)
    assert run_json("verify", place)["ok"]
    for name, where in (("local", path), ("remote", place)):
        run("select", where, "--min-bytes", 7, "--out", tmp_path / name)
    assert files(tmp_path / "local") == files(tmp_path / "remote")
    refused("Parquet cannot be reframed", "reframe", place, "--out", tmp_path / "x")


def test_an_index_published_beside_its_shard_is_used(folder: Path, cache: Path) -> None:
    run("index", folder)
    with web(folder) as server:
        assert run_json("stats", server.url)["documents"] == 900
        fetched = {path for path, _ in server.requests if path.endswith(".index.parquet")}
        assert fetched == {f"{name}.index.parquet" for name in files(folder)}
        assert not cache.exists()
        assert max(size for path, size in server.requests if ".index." not in path) <= 16 << 10, "fingerprints"
        # A query is a part of the URL, so no index is published beside it.
        url = f"{server.url}val.jsonl.zst?signature=a/b"
        assert find_index(shard_of(url)) is None
        (made,) = run_json("index", url)["shards"]
        assert (made["documents"], Path(made["index"]).is_relative_to(cache)) == (100, True)
        assert run("show", url, 7).stdout == run("show", folder / "val.jsonl.zst", 7).stdout


def test_only_what_is_needed_is_fetched(folder: Path) -> None:
    path = folder / "large.jsonl.zst"
    with ShardWriter(path) as writer:
        writer.write_lines(some_lines(25_000))
    size = path.stat().st_size
    with web(folder) as server:
        url = f"{server.url}{path.name}"
        run("index", url)
        for name, arguments in (("show", [24_500]), ("show", [3]), ("stats", [])):
            server.requests.clear()
            run(name, url, *arguments)
            assert server.sent < size / 2 < 3 << 20, name


def test_documents_are_read_by_number_and_by_several_processes_from_a_web_server(folder: Path) -> None:
    with web(folder) as server:
        assert len(run_json("index", server.url, "--jobs", 2)["shards"]) == 3
        documents = PileDocuments(server.url)
        documents[0]  # A connection is open when the workers start.
        loader = DataLoader(documents, batch_size=50, num_workers=2, multiprocessing_context="fork", collate_fn=list)
        found = [document for batch in loader for document in batch]
        some = [599, 0, 300, 301, 299]
        by_number = list(read_documents(f"{server.url}train/00.jsonl.zst", some))
    assert found == PileDocuments(folder)[:]
    assert by_number == list(read_documents(folder / "train/00.jsonl.zst", some))


def test_without_ranges_only_reading_in_order_works_and_missing_files_are_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r"
    large = folder / "large.jsonl"  # longer than the piece that is fetched at a time, 5 MiB
    large.write_bytes(b"\n".join(some_lines(25_000)))
    with web(folder, ranges=False) as server:
        url = f"{server.url}train/00.jsonl.zst"
        for name in ("train/00.jsonl.zst", large.name):
            assert run_json("stats", f"{server.url}{name}") == run_json("stats", folder / name)
        assert run("show", url, 599).stdout == run("show", folder / "train/00.jsonl.zst", 599).stdout
        for name, options in (("index", []), ("reframe", ["--out", out])):
            assert url in refused("range.*copy the file first", name, url, *options)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)  # A failed request is repeated at once.
        for place in (f"{server.url}99.jsonl.zst", "memory://nowhere/00.jsonl.zst", "http://127.0.0.1:9/00.jsonl.zst"):
            for name, options in (("stats", []), ("verify", []), ("show", [0]), ("reframe", ["--out", out])):
                refused(re.escape(place), name, place, *options)
    assert not (out / "00.jsonl.zst").exists()


def test_nothing_is_written_to_a_url(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/kept", recursive=True)
    before = memory.find("/kept")
    assert len(before) == 3
    for name in ("index", "stats", "verify"):
        run(name, "memory://kept")
    assert memory.find("/kept") == before
    memory.rm("/kept", recursive=True)
