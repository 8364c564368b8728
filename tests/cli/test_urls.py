"""Every command that reads takes URLs: a web server with ranges, one without, and fsspec's memory store.

What a command makes of a URL must be what it makes of the same files in a folder.
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from torch.utils.data import DataLoader

from pilekit.corpus import shard_of, stores
from pilekit.errors import PilekitError
from pilekit.shards.index.format import find_index
from pilekit.shards.random_access.document_reader import StoredDocument, read_documents
from pilekit.shards.random_access.pile_documents import PileDocuments
from pilekit.shards.write.shard_writer import ShardWriter
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
    """A corpus of three shards, stored in three ways."""
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
    store = fsspec.filesystem("memory")
    for path in folder.rglob("*.*"):
        store.pipe(f"/urls/{path.relative_to(folder)}", path.read_bytes())
    yield "memory://urls"
    store.rm("/urls", recursive=True)


def web(folder: Path, *, ranges: bool = True) -> Any:
    pytest.importorskip("aiohttp", reason="HTTP needs the extra `cloud`")
    return serving(folder, ranges=ranges)


def run(name: str, *arguments: object, exit_code: int = 0) -> Result:
    command = importlib.import_module(f"pilekit.cli.{name}").command
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == exit_code, result.output
    return result


def run_json(name: str, *arguments: object, exit_code: int = 0) -> Any:
    return json.loads(run(name, *arguments, "--json", exit_code=exit_code).stdout)


def files(folder: Path) -> dict[str, bytes]:
    """All shards below a folder."""
    names = (path for path in folder.rglob("*.*") if path.name != "pilekit.json" and ".index." not in path.name)
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def test_stats(folder: Path, url: str) -> None:
    for options in ([], ["--copies"], ["--subsets", "ArXiv"]):
        before = run_json("stats", url, *options)
        assert before == run_json("stats", folder, *options)
        assert before["documents"] == (300 if "ArXiv" in options else 900)
    run("index", url)
    for options in ([], ["--copies"], ["--subsets", "ArXiv"]):
        assert run_json("stats", url, *options) == run_json("stats", folder, *options)


def test_index(folder: Path, url: str, cache: Path) -> None:
    def comparable(shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in shard.items() if key not in ("index", "built")} for shard in shards]

    made = run_json("index", url)["shards"]
    assert [shard["built"] for shard in made] == [True] * 3
    assert all(Path(shard["index"]).is_relative_to(cache) for shard in made)
    assert comparable(made) == comparable(run_json("index", folder)["shards"])
    assert [shard["built"] for shard in run_json("index", url)["shards"]] == [False] * 3


def test_reframe(folder: Path, url: str, tmp_path: Path) -> None:
    for place, out in ((folder, "local"), (url, "remote")):
        run("reframe", place, "--out", tmp_path / out, "--frame", "16KiB", "--jobs", 1)
    remote = files(tmp_path / "remote")
    assert sorted(remote) == ["train/00.jsonl.zst", "train/01.jsonl.zst", "val.jsonl.zst"]
    assert remote == files(tmp_path / "local")
    for name in remote:
        assert find_index(shard_of(str(tmp_path / "remote" / name))) is not None


def test_select(folder: Path, url: str, tmp_path: Path) -> None:
    told = [
        run_json("select", place, "--subsets", "arxiv", "--sample", 0.5, "--out", tmp_path / out, "--jobs", 1)
        for place, out in ((folder, "local"), (url, "remote"))
    ]
    assert told[0] == told[1]
    assert 50 < told[1]["documents"] < 250
    remote = files(tmp_path / "remote")
    assert len(remote) == 3
    assert remote == files(tmp_path / "local")


def test_verify(folder: Path, url: str, tmp_path: Path) -> None:
    assert run_json("verify", url) == run_json("verify", folder) == {"ok": True, "findings": []}
    with pytest.raises(PilekitError, match="write"):
        run("verify", url, "--write-sums")
    run("verify", folder, "--write-sums")
    sums = folder / "SHA256SUMS"
    assert run_json("verify", url, "--sums", sums)["ok"]
    text = sums.read_text()
    sums.write_text(("0" if text[0] != "0" else "1") + text[1:])
    found = run_json("verify", url, "--sums", sums, exit_code=1)
    assert found == run_json("verify", folder, "--sums", sums, exit_code=1)
    assert [finding["shard"] for finding in found["findings"]] == ["train/00.jsonl"]


def test_show(folder: Path, url: str) -> None:
    for name, number in (("train/00.jsonl.zst", 0), ("train/00.jsonl.zst", 599), ("train/01.jsonl.gz", 150)):
        for _ in range(2):
            shown = run("show", f"{url}/{name}", number).stdout_bytes
            assert shown == run("show", folder / name, number).stdout_bytes
            run("index", f"{url}/{name}")
    with pytest.raises(PilekitError, match="has no document 100: its 100 lines"):
        run("show", f"{url}/val.jsonl.zst", 100)


def test_documents_by_number(folder: Path, url: str) -> None:
    asked = [599, 0, 300, 301, 299]
    for name, some in (("train/00.jsonl.zst", asked), ("train/01.jsonl.gz", [199, 0]), ("val.jsonl.zst", [99, 5])):
        local_ones = list(read_documents(folder / name, some))
        assert list(read_documents(f"{url}/{name}", some)) == local_ones
    with PileDocuments(url) as documents, PileDocuments(folder) as local:
        assert documents[::7] == local[::7]
        assert len(PileDocuments(url, subsets=["ArXiv"])) == 300


def test_parquet(url: str, folder: Path, tmp_path: Path) -> None:
    table = pa.table({"text": [f"row {i}" for i in range(500)], "meta": [{"pile_set_name": "ArXiv"}] * 500})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=90)
    if url.startswith("memory"):
        place = f"{url}/a.parquet"
        fsspec.filesystem("memory").pipe("/urls/a.parquet", path.read_bytes())
    else:
        shutil.copy(path, folder / "a.parquet")
        place = f"{url}/a.parquet"
    assert run("show", place, 450).stdout == "row 450"
    assert run_json("index", place)["shards"][0]["documents"] == 500
    assert run("show", place, 450).stdout == "row 450"
    assert run_json("stats", place) == run_json("stats", path)
    assert run_json("verify", place)["ok"]
    told = [
        run_json("select", where, "--min-bytes", 7, "--out", tmp_path / str(i)) for i, where in enumerate((path, place))
    ]
    assert told[0] == told[1]
    assert files(tmp_path / "0") == files(tmp_path / "1")
    with pytest.raises(PilekitError, match="Parquet cannot be reframed"):
        run("reframe", place, "--out", tmp_path / "x")


def test_damage_is_found_through_a_url_as_in_a_folder(folder: Path, tmp_path: Path) -> None:
    stored = bytearray((folder / "train/00.jsonl.zst").read_bytes())
    stored[len(stored) // 2] ^= 1
    (folder / "train/00.jsonl.zst").write_bytes(stored)
    with web(folder) as server:
        found = run_json("verify", server.url, exit_code=1)
        assert found == run_json("verify", folder, exit_code=1)
        assert found["findings"][0]["shard"] == "train/00.jsonl"
        assert found["findings"][0]["frame"] is not None
        for name, options in (("index", []), ("stats", []), ("reframe", ["--out", tmp_path / "r", "--jobs", 1])):
            with pytest.raises(PilekitError, match=r"train/00\.jsonl\.zst: frame \d+ is damaged"):
                run(name, server.url, *options)


def test_an_index_published_beside_its_shard_is_used(folder: Path, cache: Path) -> None:
    run("index", folder)
    with web(folder) as server:
        stored = sum(path.stat().st_size for path in folder.rglob("*.jsonl.*") if ".index." not in path.name)
        assert run_json("stats", server.url)["documents"] == 900
        documents = PileDocuments(server.url)
        fetched = [path for path, _ in server.requests]
        assert {path for path in fetched if path.endswith(".index.parquet")} == {
            "train/00.jsonl.zst.index.parquet",
            "train/01.jsonl.gz.index.parquet",
            "val.jsonl.zst.index.parquet",
        }
        assert not cache.exists()
        assert max(size for path, size in server.requests if ".index." not in path) <= 16 << 10, "fingerprints"
        assert documents[599].number == 599
        assert stored > 100_000


def large_shard(path: Path) -> Path:
    """A shard of several MiB, stored."""
    with ShardWriter(path) as writer:
        writer.write_lines(some_lines(50_000))
    assert path.stat().st_size > 5 << 20
    return path


def test_only_what_is_needed_is_fetched(folder: Path) -> None:
    path = large_shard(folder / "large.jsonl.zst")
    with web(folder) as server:
        url = f"{server.url}{path.name}"
        run("index", url)
        for name, arguments in (("show", [49_000]), ("show", [3]), ("stats", [])):
            server.requests.clear()
            run(name, url, *arguments)
            assert server.sent < 3 << 20, name
        server.requests.clear()
        run("index", url)
        assert server.sent <= 16 * (16 << 10), "the fingerprint"


def identities(documents: list[StoredDocument]) -> list[tuple[str, int]]:
    return [(document.shard, document.number) for document in documents]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_a_data_loader_read_from_a_web_server(folder: Path, start: str) -> None:
    with web(folder) as server:
        documents = PileDocuments(server.url)
        documents[0]  # A connection is open when the workers start.
        loader = DataLoader(
            documents, batch_size=50, num_workers=2, multiprocessing_context=start, collate_fn=identities
        )
        found = [identity for batch in loader for identity in batch]
    assert found == identities(PileDocuments(folder)[:])


def test_several_processes_read_from_a_web_server(folder: Path) -> None:
    with web(folder) as server:
        assert len(run_json("index", server.url, "--jobs", 2)["shards"]) == 3


def test_a_query_goes_with_the_url_and_the_index_into_the_cache(folder: Path, cache: Path) -> None:
    run("index", folder)
    with web(folder) as server:
        url = f"{server.url}val.jsonl.zst?signature=a/b"
        assert find_index(shard_of(url)) is None
        (made,) = run_json("index", url)["shards"]
        assert (made["documents"], Path(made["index"]).is_relative_to(cache)) == (100, True)
        assert run("show", url, 7).stdout == run("show", folder / "val.jsonl.zst", 7).stdout
        assert [document.number for document in read_documents(url, [99, 0])] == [99, 0]


def refused(name: str, *arguments: object) -> str:
    with pytest.raises(PilekitError) as raised:
        run(name, *arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_server_without_ranges(folder: Path, tmp_path: Path) -> None:
    """What reads from beginning to end works; what must seek says that it cannot, in a line."""
    with web(folder, ranges=False) as server:
        url = f"{server.url}train/00.jsonl.zst"
        assert run_json("stats", url) == run_json("stats", folder / "train/00.jsonl.zst")
        assert run("show", url, 599).stdout == run("show", folder / "train/00.jsonl.zst", 599).stdout
        for name, options in (("index", []), ("reframe", ["--out", tmp_path / "r"])):
            message = refused(name, url, *options)
            assert url in message
            assert "range" in message
            assert "copy the file first" in message
        assert not (tmp_path / "r" / "00.jsonl.zst").exists()


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "RETRY_AFTER", (0.0,))
    (tmp_path / "empty").mkdir()
    with web(tmp_path / "empty") as server:
        for place in (f"{server.url}00.jsonl.zst", "memory://nowhere/00.jsonl.zst", "http://127.0.0.1:9/00.jsonl.zst"):
            for name, options in (
                ("index", []),
                ("stats", []),
                ("verify", []),
                ("show", [0]),
                ("reframe", ["--out", tmp_path / "r"]),
                ("select", ["--min-bytes", 1, "--out", tmp_path / "s"]),
            ):
                assert place in refused(name, place, *options)
    assert not (tmp_path / "r").exists()
    assert not (tmp_path / "s").exists()


def test_nothing_is_written_to_a_url(folder: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/kept", recursive=True)
    before = store.find("/kept")
    assert len(before) == 3
    for name in ("index", "stats", "verify"):
        run(name, "memory://kept")
    PileDocuments("memory://kept")[5]
    assert store.find("/kept") == before
    store.rm("/kept", recursive=True)
