from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pilekit.cli.verify import command
from pilekit.errors import PilekitError
from pilekit.shards.write.shard_writer import ShardWriter
from tests.shards.making import record, some_lines

PILEKIT = [sys.executable, "-m", "pilekit.cli.main", "verify"]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PILEKIT_CACHE", str(folder))
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    for name in ("train/00", "train/01", "val"):
        with ShardWriter(folder / f"{name}.jsonl.zst", frame_bytes=4096) as writer:
            writer.write_lines(some_lines(100))
    return folder


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def verify_json(*arguments: str | Path) -> Any:
    result = run(*arguments, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == (0 if found["ok"] else 1)
    return found


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_all_right_is_one_line(corpus: Path) -> None:
    result = run(corpus)
    assert (result.exit_code, result.stderr) == (0, "")
    size = sum(path.stat().st_size for path in corpus.rglob("*.zst"))
    assert result.stdout == f"3 shards, {size / 1024:.1f} KiB: all right\n"


def test_json_is_exactly_what_is_promised(corpus: Path) -> None:
    assert verify_json(corpus) == {"ok": True, "findings": []}
    (corpus / "a.jsonl").write_bytes(record("text") + b"\nbad")
    with ShardWriter(corpus / "b.jsonl.zst") as writer:
        writer.write_lines(some_lines(5))
    damage(corpus / "b.jsonl.zst")
    found = verify_json(corpus)
    assert list(found) == ["ok", "findings"]
    assert found["ok"] is False
    bad, damaged = found["findings"]
    assert list(bad) == list(damaged) == ["shard", "problem", "frame", "line", "byte"]
    assert {**bad, "problem": ""} == {"shard": "a.jsonl", "problem": "", "frame": None, "line": 2, "byte": 54}
    assert {**damaged, "problem": ""} == {"shard": "b.jsonl", "problem": "", "frame": 0, "line": 1, "byte": 0}
    # What could not be judged goes to people only.
    assert "note: a.jsonl: no seek table" in run(corpus, "--json").stderr


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_table_fits_a_terminal(corpus: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    (corpus / "\x1b[31m evil [bold] name that is rather long.jsonl").write_bytes(
        record("text", "\x1b[31m[red]") + b"\nbad"
    )
    damage(corpus / "train" / "01.jsonl.zst")
    result = run(corpus)
    assert result.exit_code == 1
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert all(len(line) <= width for line in lines[:-1])
    assert lines[0].split() == ["Shard", "Frame", "Line", "Byte", "Problem"]
    assert lines[-1].startswith("4 shards, ")
    assert lines[-1].endswith(": 3 findings in 2 of them")
    words = "".join("".join(line.split()) for line in lines)
    assert "bold" in words
    if width > 40:
        assert '"\\x1b[31m[red]"' in words
        found = verify_json(corpus)["findings"][-1]
        row = next(line for line in lines if line.startswith("train/"))
        assert row.split()[:4] == ["train/01.jsonl", *(f"{found[place]:,}" for place in ("frame", "line", "byte"))]


def test_columns_without_any_place_are_left_out(corpus: Path) -> None:
    (corpus / "SHA256SUMS").write_text(f"{'0' * 64}  val.jsonl.zst\n")
    assert run(corpus).stdout.splitlines()[0].split() == ["Shard", "Problem"]


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_written_sums_are_accepted_by_sha256sum(corpus: Path) -> None:
    result = run(corpus, "--write-sums")
    assert result.exit_code == 0
    assert f"note: written: {corpus}/SHA256SUMS" in result.stderr
    written = (corpus / "SHA256SUMS").read_text()
    names = ["train/00.jsonl.zst", "train/01.jsonl.zst", "val.jsonl.zst"]
    assert written == "".join(f"{sha256(corpus / name)}  {name}\n" for name in names)
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=corpus, check=True)
    assert run(corpus).stderr == f"note: sums are taken from {corpus}/SHA256SUMS\n"
    damage(corpus / "val.jsonl.zst")
    found = verify_json(corpus)["findings"]
    assert [finding["shard"] for finding in found] == ["val.jsonl", "val.jsonl"]
    assert "SHA-256" in found[1]["problem"]


def test_sums_of_other_files_are_kept(corpus: Path) -> None:
    (corpus / "README").write_text("text")
    other = f"{sha256(corpus / 'README')}  README\n"
    (corpus / "SHA256SUMS.txt").write_text(other + f"{sha256(corpus / 'val.jsonl.zst')} *val.jsonl.zst\r\n")
    assert run(corpus / "val.jsonl.zst", "--write-sums").exit_code == 0
    val = f"{sha256(corpus / 'val.jsonl.zst')}  val.jsonl.zst\n"
    assert (corpus / "SHA256SUMS").read_text() == other + val
    assert run(corpus, "--write-sums").exit_code == 0
    train = "".join(f"{sha256(corpus / name)}  {name}\n" for name in ("train/00.jsonl.zst", "train/01.jsonl.zst"))
    assert (corpus / "SHA256SUMS").read_text() == other + train + val


def test_sums_are_not_written_while_something_is_wrong(corpus: Path) -> None:
    damage(corpus / "val.jsonl.zst")
    result = run(corpus, "--write-sums")
    assert result.exit_code == 1
    assert "SHA256SUMS: not written, as something is wrong" in result.stderr
    assert not (corpus / "SHA256SUMS").exists()


def test_where_sums_cannot_be_written_is_told_before_the_work(corpus: Path) -> None:
    damage(corpus / "val.jsonl.zst")
    (corpus / "SHA256SUMS").mkdir()
    with pytest.raises(PilekitError, match="is a folder"):
        run(corpus, "--write-sums")
    (corpus / "SHA256SUMS").rmdir()
    (corpus / "SHA256SUMS").write_text("what is this")
    (corpus / "other").write_text(f"{sha256(corpus / 'val.jsonl.zst')}  val.jsonl.zst\n")
    with pytest.raises(PilekitError, match="SHA256SUMS, line 1"):
        run(corpus, "--sums", corpus / "other", "--write-sums")


def test_sums_from_elsewhere(corpus: Path, tmp_path: Path) -> None:
    sums = tmp_path / "sums"
    sums.write_text(f"{'0' * 64}  val.jsonl.zst\n{'1' * 64}  gone.jsonl.zst\n")
    found = verify_json(corpus, "--sums", sums)["findings"]
    assert [finding["shard"] for finding in found] == ["val.jsonl", "gone.jsonl.zst"]
    assert [finding["shard"] for finding in verify_json(corpus / "val.jsonl.zst", "--sums", sums)["findings"]] == [
        "val.jsonl"
    ]


def test_the_default_places(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (corpus / "SHA256SUMS").write_text(f"{'1' * 64}  gone.jsonl.zst\n")
    monkeypatch.chdir(corpus)
    assert [finding["shard"] for finding in verify_json()["findings"]] == ["gone.jsonl.zst"]
    monkeypatch.setenv("PILEKIT_DATA", str(corpus / "val.jsonl.zst"))
    assert verify_json()["ok"]
    monkeypatch.setenv("PILEKIT_DATA", f"{corpus}/")
    assert [finding["shard"] for finding in verify_json()["findings"]] == ["gone.jsonl.zst"]


def test_a_manifest_says_what_labels_there_are(tmp_path: Path) -> None:
    path = tmp_path / "00.jsonl"
    path.write_bytes(record("text", "Python Reference"))
    [finding] = verify_json(path)["findings"]
    assert "the manifest pile does not list" in finding["problem"]
    assert verify_json(path, "--manifest", "demo")["ok"]


def test_a_real_process_ends_with_1(corpus: Path) -> None:
    assert subprocess.run([*PILEKIT, str(corpus)], capture_output=True).returncode == 0
    damage(corpus / "val.jsonl.zst")
    found = subprocess.run([*PILEKIT, str(corpus), "--json", "--jobs", "2"], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr == "note: val.jsonl: lines behind the damage were not checked\n"
    assert json.loads(found.stdout)["findings"][0]["frame"] is not None
    wrong = subprocess.run([*PILEKIT, str(corpus / "none")], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: ")
    assert len(wrong.stderr.splitlines()) == 1


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_is_clean(corpus: Path, tmp_path: Path, cache: Path, jobs: str) -> None:
    os.mkfifo(tmp_path / "z.jsonl")
    paths = [str(corpus / "val.jsonl.zst"), str(tmp_path / "z.jsonl")]
    with (
        subprocess.Popen(
            [*PILEKIT, *paths, "--jobs", jobs], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
        (tmp_path / "z.jsonl").open("wb"),
    ):  # It opens when the process reads.
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=240)
    assert (process.returncode, stdout, stderr.strip()) == (130, "", "interrupted")
    assert not list(cache.rglob("*.lock"))
