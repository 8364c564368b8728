"""A verification that was stopped goes on; one that ended leaves nothing, so the next reads everything again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.shards.verify.verify import verify_corpus
from pilekit.shards.write.shard_writer import ShardWriter
from tests.shards.making import record, some_lines

SCRIPT = """
import sys
from pilekit.shards.verify.verify import verify_corpus
if __name__ == "__main__":
    print(verify_corpus(sys.argv[2:], jobs=int(sys.argv[1])).ok)
"""


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which results are kept."""
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "verify"


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Two shards, each long enough that most of it is in no fingerprint."""
    (tmp_path / "corpus").mkdir()
    made = [tmp_path / "corpus" / name for name in ("0.jsonl.zst", "1.jsonl.zst")]
    for path in made:
        with ShardWriter(path) as writer:
            writer.write_lines(some_lines(8000))
        assert path.stat().st_size > 3 * 256 << 10
    return [str(path) for path in made]


def spoil(path: str) -> None:
    """Flip a bit between two of the fingerprint's pieces, and hide when that was."""
    before = Path(path).stat()
    position = before.st_size // 30
    with Path(path).open("rb+") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def stopped(paths: list[str], **options: object) -> None:
    """Verify, and be interrupted at the second shard."""
    done = 0

    def advance(amount: int) -> None:
        nonlocal done
        done += amount
        if done > Path(paths[0]).stat().st_size:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_corpus(paths, jobs=1, advance=advance, **options)  # type: ignore[arg-type]


def going_on(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [message for message in caplog.messages if message.startswith("going on")]
    caplog.clear()
    return told


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_goes_on(
    paths: list[str], results: Path, jobs: int, how: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    # The second shard is a pipe at first, which never says anything.
    good = Path(paths[1]).read_bytes()
    Path(paths[1]).unlink()
    os.mkfifo(paths[1])
    command = [sys.executable, "-c", SCRIPT, str(jobs), *paths]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        give_up = time.monotonic() + 240
        while not list(results.glob("*/*.json")) and time.monotonic() < give_up:
            time.sleep(0.01)
        with pytest.raises(PilekitError, match=r"^/.*: is being verified by another process; wait for it, or stop it$"):
            verify_corpus(paths, jobs=1)
        process.send_signal(how)
        process.wait(240)
    Path(paths[1]).unlink()
    Path(paths[1]).write_bytes(good)
    spoil(paths[0])
    assert verify_corpus(paths, jobs=1).ok  # the first is not read again
    [told] = going_on(caplog)
    assert "1 of 2 shards were found right then" in told
    assert str(results) in told
    assert list(results.iterdir()) == []
    [finding] = verify_corpus(paths, jobs=1).findings  # now it is
    assert finding.shard == "0.jsonl"
    assert going_on(caplog) == []


def test_the_folder_that_is_named_may_be_removed(paths: list[str], caplog: pytest.LogCaptureFixture) -> None:
    stopped(paths)
    spoil(paths[0])
    stopped(paths)
    [told] = going_on(caplog)
    folder = Path(told.rpartition("remove ")[2])
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert len(verify_corpus(paths, jobs=1).findings) == 1


def test_a_shard_that_changed_meanwhile_is_read_again(paths: list[str], caplog: pytest.LogCaptureFixture) -> None:
    stopped(paths)
    spoil(paths[0])
    os.utime(paths[0])
    [finding] = verify_corpus(paths, jobs=1).findings
    assert finding.shard == "0.jsonl"
    assert going_on(caplog) == []


@pytest.mark.parametrize("age", [24 * 60 * 60 + 1, -60])
def test_a_result_counts_for_a_day(paths: list[str], results: Path, age: int, caplog: pytest.LogCaptureFixture) -> None:
    stopped(paths)
    [kept] = results.glob("*/*.json")
    content = json.loads(kept.read_text())
    content["at"] -= age
    kept.write_text(json.dumps(content))
    spoil(paths[0])
    assert len(verify_corpus(paths, jobs=1).findings) == 1
    assert going_on(caplog) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"at": 1e999, "state": [1, "", 0], "result": {}}'])
def test_a_damaged_result_is_passed_over(
    paths: list[str], results: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stopped(paths)
    [kept] = results.glob("*/*.json")
    kept.write_bytes(content)
    assert verify_corpus(paths, jobs=1).ok
    assert going_on(caplog) == []


def test_shards_with_findings_are_read_again(tmp_path: Path, results: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "corpus" / "0.jsonl"
    path.parent.mkdir()
    path.write_bytes(record("text") + b"\nbad\n")
    (path.parent / "1.jsonl").write_bytes(record("text"))
    paths = [str(path), str(path.parent / "1.jsonl")]
    stopped(paths)
    assert list(results.glob("*/*.json")) == []
    path.write_bytes(record("text") + b"\n")
    assert verify_corpus(paths, jobs=1).ok
    assert going_on(caplog) == []


def test_another_question_has_results_of_its_own(
    paths: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped(paths)
    spoil(paths[0])
    sums = tmp_path / "sums"
    sums.write_text(f"{'0' * 64}  0.jsonl.zst\n")
    found = verify_corpus(paths, jobs=1, sums=sums).findings
    assert len(found) == 2
    assert len(verify_corpus(paths[:1], jobs=1).findings) == 1
    (tmp_path / "own.toml").write_text('name = "own"\n')
    assert len(verify_corpus(Corpus(paths, tmp_path / "own.toml"), jobs=1).findings) == 1
    assert going_on(caplog) == []
    assert verify_corpus(paths, jobs=1).ok


def test_what_was_told_of_a_shard_is_told_again(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("0.jsonl", "1.jsonl"):
        (folder / name).write_bytes(record(name))
    whole = verify_corpus(folder, jobs=1, write_sums=True)
    written = (folder / "SHA256SUMS").read_bytes()
    (folder / "SHA256SUMS").unlink()
    stopped([str(folder / "0.jsonl"), str(folder / "1.jsonl")], write_sums=True)
    assert verify_corpus([str(folder / "0.jsonl"), str(folder / "1.jsonl")], jobs=1, write_sums=True) == whole
    assert (folder / "SHA256SUMS").read_bytes() == written


def test_what_nobody_went_on_with_is_removed_after_a_day(paths: list[str], results: Path) -> None:
    old, new = results / "old", results / "new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "result.json").write_text("{}")
    os.utime(old, (time.time() - 25 * 60 * 60,) * 2)
    assert verify_corpus(paths, jobs=1).ok
    assert list(results.iterdir()) == [new]


def test_without_a_cache_nothing_is_kept(
    paths: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PILEKIT_CACHE", "/dev/null/none")
    stopped(paths)
    assert verify_corpus(paths, jobs=1).ok
    assert going_on(caplog) == []
