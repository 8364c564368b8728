"""Links, pipes and hard links in the place of a file that pilekit writes beside data."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilekit import PileDocuments, PilekitError, PileStream
from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.folders import make_folder
from pilekit.artifacts.job_folder import output_folder
from pilekit.evaluate.results.records import ScoredDocument
from pilekit.evaluate.results.result_folder import record_file
from pilekit.pipeline.selecting import select_corpus
from pilekit.shards.random_access.frame_cache import FrameCache
from pilekit.shards.verify.verify import verify_corpus
from pilekit.train.log.metrics import StepLog, StepMetrics
from tests.artifacts import test_changed_shards
from tests.artifacts.test_changed_shards import LINES

VICTIM = b"export PATH=$PATH:~/bin\n" * 20


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "link": lambda place, victim: place.symlink_to(victim),
    "dangling link": lambda place, victim: place.symlink_to(victim.with_name("made")),  # writing would make a file
    "hard link": lambda place, victim: place.hardlink_to(victim),
    "pipe": lambda place, victim: os.mkfifo(place),  # opening it would wait for the other end
}


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """Stop a test that waits for a pipe."""
    signal.alarm(120)
    yield
    signal.alarm(0)


def records(source: str, out: Path) -> None:
    with record_file(Path(source, "records-0.jsonl")) as append:
        append(ScoredDocument("00.jsonl", 0, 1, "ArXiv", 5, 2, 1.5), b"")


def cache(source: str, out: Path) -> None:
    frames = FrameCache.at(Path(source, "frames"), 1000)
    for key in ("key", os.urandom(8).hex()):
        frames.get(key, 4)
        frames.used(key, b"text")


def lock(source: str, out: Path) -> None:
    with locked(Path(source, ".lock")):
        pass


def metrics(source: str, out: Path) -> None:
    StepLog(Path(source, "metrics.jsonl"), StepMetrics, resume_step=0)._file.write(b"{}\n")


COMMANDS: dict[str, Callable[[str, Path], object]] = {
    **{name: test_changed_shards.COMMANDS[name] for name in ("select", "to_parquet", "reframe", "dedup", "index")},
    "sums": lambda source, out: verify_corpus(source, write_sums=True, jobs=1),
    "documents": lambda source, out: PileDocuments(source)[0],
    "stream": lambda source, out: next(iter(PileStream(source, tokenizer=None, batch_size=2))),
    "records": records,
    "metrics": lambda source, out: StepLog(Path(source, "metrics.jsonl"), StepMetrics, resume_step=0)._file.write(
        b"{}\n"
    ),
    "cache": cache,
    "lock": lock,
}
MORE = {
    "select": "out/.lock",
    "index": "00.jsonl.index.parquet.lock",
    "sums": "SHA256SUMS",
    "lock": ".lock",
    "cache": "frames/partial",
}
"""A file that the command does not leave behind."""

REPLACED = {"00.jsonl.index.parquet", "SHA256SUMS", "out/00.jsonl.zst", "out/00.parquet", "out/clean/00.jsonl.zst"}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_file_elsewhere_is_written_and_nothing_is_waited_for(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path / "cache"))
    home, clean, data = tmp_path / "home", tmp_path / "clean", tmp_path / "data"
    home.mkdir()
    victim = home / ".profile"
    victim.write_bytes(VICTIM)
    data.mkdir()
    (data / "00.jsonl").write_bytes(b"".join(LINES[:30]))
    COMMANDS[command](str(data), data / "out")
    data.rename(clean)
    made = {path.relative_to(clean).as_posix() for path in clean.rglob("*") if path.is_file()} - {"00.jsonl"}
    for name in sorted(made | {MORE[command]} if command in MORE else made):
        for kind, make in KINDS.items():
            shutil.rmtree(data, ignore_errors=True)
            shutil.copytree(clean, data)
            (data / name).unlink(missing_ok=True)
            make(data / name, victim)
            try:
                COMMANDS[command](str(data), data / "out")
            except PilekitError as error:
                assert Path(name).name in str(error) or "frames" in str(error), (name, kind)
            else:
                assert not (data / name).is_symlink() or name not in REPLACED, (name, kind)
            assert victim.read_bytes() == VICTIM, (name, kind)
            assert [path.name for path in home.iterdir()] == [".profile"], (name, kind)


@pytest.mark.parametrize("name", [".unfinished", "train"])
def test_nothing_is_written_through_a_link_to_a_folder_below_the_jobs(tmp_path: Path, name: str) -> None:
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir()
    (elsewhere / "letter.partial").write_bytes(VICTIM)
    with pytest.raises(ZeroDivisionError), output_folder(out, kind="copies", parameters={}, inputs={}) as output:
        output.note("val", {})
        raise ZeroDivisionError
    shutil.rmtree(out / name, ignore_errors=True)
    (out / name).symlink_to(elsewhere)
    with (
        pytest.raises(PilekitError, match=rf"{name}: is a link"),
        output_folder(out, kind="copies", parameters={}, inputs={}) as output,
    ):
        pass
    assert [path.name for path in elsewhere.iterdir()] == ["letter.partial"]


def test_the_folder_that_the_user_named_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "out").symlink_to("there")
    (tmp_path / "00.jsonl").write_bytes(b"".join(LINES[:30]))
    select_corpus(str(tmp_path / "00.jsonl"), tmp_path / "out", jobs=1)
    assert (tmp_path / "there/00.jsonl.zst").exists()


def test_an_object_store_is_refused_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a path, such a URL would be a folder named s3:."""
    monkeypatch.chdir(tmp_path)
    for folder in ("s3://bucket/out", "gs://bucket/out", "az+abfs://bucket/out"):
        with pytest.raises(PilekitError, match="is a URL; give a folder of a file system"):
            locked(Path(folder, ".lock")).__enter__()
        with pytest.raises(PilekitError, match="is a URL; give a folder of a file system"):
            write_atomically(Path(folder, "file")).__enter__()
    assert not list(tmp_path.iterdir())
    make_folder(Path("a:b/c"))  # a colon inside of a name
    assert Path("a:b/c").is_dir()
