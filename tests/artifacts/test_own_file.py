"""A link, a pipe or a hard link at the path of a file that pilekit writes: no other file is changed, nothing waits."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pilekit import PilekitError
from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.job_folder import output_folder
from pilekit.evaluate.results.records import ScoredDocument
from pilekit.evaluate.results.result_folder import record_file
from pilekit.pipeline.selecting import select_corpus
from pilekit.shards.index.build import index_corpus
from pilekit.shards.random_access.frame_cache import FrameCache
from pilekit.train.log.metrics import MetricsLog

LINE = b'{"text":"some words","meta":{"pile_set_name":"ArXiv"}}\n'
VICTIM = b"export PATH=$PATH:~/bin\n" * 20

KINDS: list[Callable[[Path, Path], None]] = [
    lambda place, victim: place.symlink_to(victim),
    lambda place, victim: place.symlink_to(victim.with_name("missing")),
    lambda place, victim: place.hardlink_to(victim),
    lambda place, victim: os.mkfifo(place),
]


def select(data: Path) -> None:
    select_corpus(str(data), data / "out", jobs=1, min_bytes=0)


def index(data: Path) -> None:
    index_corpus(str(data), jobs=1)


def records(data: Path) -> None:
    with record_file(data / "records-0.jsonl") as append:
        append(ScoredDocument("00.jsonl", 0, 1, "ArXiv", 5, 2, 1.5))


def metrics(data: Path) -> None:
    MetricsLog(data / "metrics.jsonl", resume_step=0)._file.write(b"{}\n")


def cache(data: Path) -> None:
    frames = FrameCache.at(data / "frames", 1000)
    for key in ("key", os.urandom(8).hex()):
        frames.get(key, 4)
        frames.used(key, b"text")


def lock(data: Path) -> None:
    with locked(data / ".lock"):
        pass


TEMPORARY = {select: ["out/.lock"], index: ["00.jsonl.index.parquet.lock"], lock: [".lock"], cache: ["frames/partial"]}
REPLACED = {"00.jsonl.index.parquet", "out/00.jsonl.zst"}


@pytest.mark.parametrize("command", [select, index, records, metrics, cache, lock])
def test_no_other_file_is_written_and_nothing_waits(
    tmp_path: Path, command: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path / "cache"))
    home, clean, data = tmp_path / "home", tmp_path / "clean", tmp_path / "data"
    for folder in (home, clean, data):
        folder.mkdir()
    victim = home / ".profile"
    victim.write_bytes(VICTIM)
    (data / "00.jsonl").write_bytes(LINE * 30)
    command(data)
    data.rename(clean)
    made = {path.relative_to(clean).as_posix() for path in clean.rglob("*") if path.is_file()} - {"00.jsonl"}
    for name in sorted(made.union(TEMPORARY.get(command, []))):
        for kind in KINDS:
            shutil.rmtree(data, ignore_errors=True)
            shutil.copytree(clean, data)
            (data / name).unlink(missing_ok=True)
            kind(data / name, victim)
            signal.alarm(60)  # a process that waits for a pipe is stopped
            try:
                command(data)
            except PilekitError as error:
                assert Path(name).name in str(error) or "frames" in str(error), name
            else:
                assert not (data / name).is_symlink() or name not in REPLACED, name
            finally:
                signal.alarm(0)
            assert victim.read_bytes() == VICTIM, name
            assert [path.name for path in home.iterdir()] == [".profile"], name


def test_nothing_is_written_through_a_link_to_a_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "letter.partial").write_bytes(VICTIM)
    for name in (".unfinished", "train"):
        out = tmp_path / f"out{name}"
        with pytest.raises(ZeroDivisionError), output_folder(out, kind="copies", parameters={}, inputs={}) as output:
            output.note("val", {})
            raise ZeroDivisionError
        shutil.rmtree(out / name, ignore_errors=True)
        (out / name).symlink_to(elsewhere)
        with (
            pytest.raises(PilekitError, match=rf"{name}: is a link"),
            output_folder(out, kind="copies", parameters={}, inputs={}),
        ):
            pass
    assert [path.name for path in elsewhere.iterdir()] == ["letter.partial"]


def test_the_folder_that_the_user_named_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "out").symlink_to("there")
    (tmp_path / "00.jsonl").write_bytes(LINE * 30)
    select_corpus(str(tmp_path / "00.jsonl"), tmp_path / "out", jobs=1)
    assert (tmp_path / "there/00.jsonl.zst").exists()
