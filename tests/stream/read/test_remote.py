"""Streams over shards behind URLs: the same batches, read by ranges, also from failing servers and from a cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import fsspec
import numpy as np
import pytest

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.shards.index.build import index_corpus
from pilekit.shards.index.format import load_index
from pilekit.shards.write.shard_writer import ShardWriter
from pilekit.stream.pile_stream import PileStream
from tests.refusing import refused
from tests.stream.collecting import ALL, read_in_turn, rows_of, run
from tests.stream.conftest import Settings
from tests.stream.corpora import made
from tests.web_server import Failure, WebServer, serving

aiohttp = pytest.importorskip("aiohttp", reason="HTTP needs the extra `cloud`")

SHARDS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with frames and an index beside each."""
    folder = tmp_path_factory.mktemp("remote")
    made(folder, [300] * SHARDS)
    index_corpus(folder)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[WebServer]:
    with serving(folder) as server:
        yield server


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed request is repeated at once. By fsspec's settings, which have priority, two seconds of silence are a
    failure, and enough for a busy machine."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    silence = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_read=2)}}
    monkeypatch.setitem(fsspec.config.conf, "http", silence)


@pytest.fixture
def changes(settings: Settings) -> Settings:
    return {**settings, "batch_size": 16}


def shards_sent(server: WebServer) -> list[int]:
    return [sent for path, sent in server.requests if path.endswith(".zst")]


def test_the_same_batches_as_from_local_files(
    folder: Path, server: WebServer, changes: Settings, tmp_path: Path
) -> None:
    """Each also resumes from the other's state, with or without a cache."""
    whole, _ = run(folder, changes, batches=12)
    for workers, cache in ((0, None), (2, tmp_path)):
        given = {**changes, "cache": cache}
        first, state = run(server.url, given, "loader", workers, 5)
        assert first == whole[:5]
        assert run(server.url, given, "loader", workers, 7, state)[0] == whole[5:]
        assert run(folder, changes, batches=7, state=state)[0] == whole[5:]


def test_only_frames_that_hold_the_documents_are_fetched(tmp_path: Path, changes: Settings) -> None:
    """A few lanes of a larger corpus: only frames with documents of the batches, or of a window's rest, are sent."""
    made(tmp_path / "lines", [6000] * 2, form="plain")
    for path in (tmp_path / "lines").iterdir():
        with ShardWriter(tmp_path / f"{path.name}.zst", frame_bytes=2000) as writer:
            writer.write_lines(path.read_bytes().splitlines())
        path.unlink()
    index_corpus(tmp_path)
    frames = {f"{shard.name}": load_index(f"{shard.path}.index.parquet").frames for shard in Corpus(tmp_path)}
    stored = sum(path.stat().st_size for path in tmp_path.glob("*.zst"))
    with serving(tmp_path) as server:
        stream = PileStream(server.url, **{**changes, "lanes": (4, 1)})
        opening = len(shards_sent(server))
        assert opening == 16 * 2  # for the fingerprints
        batches = list(islice(stream, 4))
        needed = {
            (shard, int(np.searchsorted(frames[shard].line, number, "right")) - 1)
            for batch in batches
            for row in batch.documents()
            for shard, number in row
        }
        sent = shards_sent(server)[opening:]
    size = sum(
        int((np.diff(frames[shard].offset, append=(tmp_path / f"{shard}.zst").stat().st_size))[frame])
        for shard, frame in needed
    )
    assert size <= sum(sent) < 3 * size < stored / 2
    assert len(sent) < len(needed)  # neighbours come with one request


@pytest.mark.usefixtures("at_once")
def test_a_failed_request_is_repeated(
    folder: Path, server: WebServer, changes: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    whole, _ = run(folder, changes, batches=4)
    for some in (["500", "cut", "short", None, "500"], ["silent", "500"]):  # silence takes 2 s
        stream = PileStream(server.url, **changes, outputs=ALL)
        server.failures = list(some)
        assert [rows_of(batch, stream.subset_names) for batch in islice(stream, 4)] == whole
        assert not server.failures
    assert sum("trying again" in text and server.url in text for text in caplog.messages) == 6


@pytest.mark.parametrize(
    ("failure", "workers"), [("500", 0), ("cut", 2), pytest.param("silent", 0, marks=pytest.mark.slow), ("404", 2)]
)
@pytest.mark.usefixtures("at_once")
def test_a_request_that_fails_again_and_again_is_one_error(
    server: WebServer, changes: Settings, failure: Failure, workers: int
) -> None:
    stream = PileStream(server.url, **changes)
    server.always = failure
    server.asked = 0
    said = refused("check the connection", next, iter(stream.loader(num_workers=workers)))
    assert server.url in said
    assert workers or server.asked == 4


@pytest.mark.usefixtures("at_once")
def test_an_index_that_does_not_come_at_once_is_not_a_missing_one(
    folder: Path, server: WebServer, changes: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path))
    server.failures = ["500", "cut"] * 4
    PileStream(server.url, **changes)
    assert not server.failures
    assert not list(tmp_path.iterdir()), "an index was made"


# The cache


def test_a_second_pass_downloads_nothing(folder: Path, server: WebServer, changes: Settings, tmp_path: Path) -> None:
    per_epoch = 80
    whole, _ = run(folder, changes, batches=per_epoch)
    changes = {**changes, "cache": tmp_path / "cache"}
    assert run(server.url, changes, batches=per_epoch)[0] == whole
    fetched = sum(shards_sent(server))
    stored = sum(path.stat().st_size for path in folder.glob("*.zst"))
    assert fetched < stored * 1.5 + SHARDS * 2 * (256 << 10)
    for workers, count in ((0, per_epoch), (2, 12)):  # workers too, from the cache of another process
        stream = PileStream(server.url, **changes, outputs=ALL)
        server.requests.clear()
        batches = islice(stream.loader(num_workers=workers), count)
        assert [rows_of(batch, stream.subset_names) for batch in batches] == whole[:count]
        assert not server.requests


def test_shards_without_random_access_are_not_cached(tmp_path: Path, changes: Settings) -> None:
    changes = {**changes, "lanes": "auto"}
    made(tmp_path / "single", [50], form="single")
    (tmp_path / "file").write_bytes(b"")
    with read_in_turn():
        with serving(tmp_path / "single") as server, pytest.raises(PilekitError, match=r"(?s)cache=.*pilekit reframe"):
            PileStream(server.url, **changes, cache=tmp_path / "cache")
        # Local shards need no cache.
        assert PileStream(tmp_path / "single", **changes, cache=tmp_path / "cache").grid.plan == "sequential"
        refused("cannot be a cache", PileStream, tmp_path / "single", **changes, cache=tmp_path / "file")
        refused("bytes", PileStream, tmp_path / "single", **changes, cache=tmp_path / "cache", cache_bytes=0)
