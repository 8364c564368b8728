from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from pilekit.errors import PilekitError
from pilekit.shards.write.shard_writer import ShardWriter
from tests.cli.running import PILEKIT, run, run_json
from tests.shards.making import record, some_lines

NAMES = ["train/00.jsonl.zst", "train/01.jsonl.zst", "val.jsonl.zst"]


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PILEKIT_CACHE", str(folder))
    return folder


@pytest.fixture
def corpus(tmp_path: Path, cache: Path) -> Path:
    for name in NAMES:
        with ShardWriter(tmp_path / "corpus" / name, frame_bytes=4096) as writer:
            writer.write_lines(some_lines(100))
    return tmp_path / "corpus"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_good_corpus_is_one_line(corpus: Path) -> None:
    result = run("verify", corpus, exit_code=0)
    size = sum(path.stat().st_size for path in corpus.rglob("*.zst"))
    assert (result.stdout, result.stderr) == (f"3 shards, {size / 1024:.1f} KiB: all right\n", "")


def test_json_names_every_place(corpus: Path) -> None:
    assert run_json("verify", corpus) == {"ok": True, "findings": []}
    (corpus / "a.jsonl").write_bytes(record("text") + b"\nbad")
    with ShardWriter(corpus / "b.jsonl.zst") as writer:
        writer.write_lines(some_lines(5))
    damage(corpus / "b.jsonl.zst")
    found = run_json("verify", corpus, exit_code=1)
    assert list(found) == ["ok", "findings"]
    assert found["ok"] is False
    bad, damaged = found["findings"]
    assert list(bad) == list(damaged) == ["shard", "problem", "frame", "line", "byte"]
    assert {**bad, "problem": ""} == {"shard": "a.jsonl", "problem": "", "frame": None, "line": 2, "byte": 54}
    assert {**damaged, "problem": ""} == {"shard": "b.jsonl", "problem": "", "frame": 0, "line": 1, "byte": 0}
    assert "note: a.jsonl: no seek table" in run("verify", corpus, "--json").stderr


def test_the_table_fits_a_terminal(corpus: Path) -> None:
    (corpus / "\x1b[31m evil [bold] name that is rather long.jsonl").write_bytes(
        record("text", "\x1b[31m[red]") + b"\nbad"
    )
    damage(corpus / "train" / "01.jsonl.zst")
    for width in (40, 80):
        result = run("verify", corpus, exit_code=1, COLUMNS=str(width))
        assert "\x1b" not in result.stdout
        lines = result.stdout.splitlines()
        assert all(len(line) <= width for line in lines[:-1])
        assert lines[0].split() == ["Shard", "Frame", "Line", "Byte", "Problem"]
        assert lines[-1].startswith("4 shards, ")
        assert lines[-1].endswith(": 3 findings in 2 of them")
    found = run_json("verify", corpus, exit_code=1)["findings"][-1]
    row = next(line for line in lines if line.startswith("train/"))
    assert row.split()[:4] == ["train/01.jsonl", *(f"{found[place]:,}" for place in ("frame", "line", "byte"))]
    (corpus / "SHA256SUMS").write_text(f"{'0' * 64}  val.jsonl.zst\n")
    assert run("verify", corpus / "val.jsonl.zst").stdout.splitlines()[0].split() == ["Shard", "Problem"]


def test_sums_are_written_for_sha256sum_and_found_again(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (corpus / "README").write_text("text")
    other = f"{sha256(corpus / 'README')}  README\n"
    (corpus / "SHA256SUMS.txt").write_text(other + f"{sha256(corpus / 'val.jsonl.zst')} *val.jsonl.zst\r\n")
    result = run("verify", corpus, "--write-sums", exit_code=0)
    assert f"note: written: {corpus}/SHA256SUMS" in result.stderr
    written = (corpus / "SHA256SUMS").read_text()
    assert written == other + "".join(f"{sha256(corpus / name)}  {name}\n" for name in NAMES)
    if shutil.which("sha256sum") is not None:
        check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
        subprocess.run(check, cwd=corpus, check=True)
    damage(corpus / "val.jsonl.zst")
    for place in ([corpus], []):
        monkeypatch.setenv("PILEKIT_DATA", str(corpus))
        found = run_json("verify", *place, exit_code=1)["findings"]
        assert [finding["shard"] for finding in found] == ["val.jsonl", "val.jsonl"]
        assert "SHA-256" in found[1]["problem"]


def test_sums_are_not_written_if_something_is_wrong(corpus: Path) -> None:
    damage(corpus / "val.jsonl.zst")
    result = run("verify", corpus, "--write-sums", exit_code=1)
    assert "SHA256SUMS: not written, as something is wrong" in result.stderr
    assert not (corpus / "SHA256SUMS").exists()
    (corpus / "SHA256SUMS").mkdir()
    with pytest.raises(PilekitError, match="is a folder"):  # before the work
        run("verify", corpus, "--write-sums")


def test_sums_from_another_file_and_labels_of_a_manifest(corpus: Path, tmp_path: Path) -> None:
    sums = tmp_path / "sums"
    sums.write_text(f"{'0' * 64}  val.jsonl.zst\n{'1' * 64}  gone.jsonl.zst\n")
    found = run_json("verify", corpus, "--sums", sums, exit_code=1)["findings"]
    assert [finding["shard"] for finding in found] == ["val.jsonl", "gone.jsonl.zst"]
    path = tmp_path / "00.jsonl"
    path.write_bytes(record("text", "Python Reference"))
    [finding] = run_json("verify", path, exit_code=1)["findings"]
    assert "the manifest pile does not list" in finding["problem"]
    assert run_json("verify", path, "--manifest", "demo")["ok"]


def test_processes_and_ctrl_c(corpus: Path, tmp_path: Path, cache: Path) -> None:
    damage(corpus / "val.jsonl.zst")
    command = [*PILEKIT, "verify", str(corpus), "--json", "--jobs", "2"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (1, "note: val.jsonl: lines behind the damage were not checked\n")
    assert json.loads(found.stdout)["findings"][0]["frame"] is not None
    os.mkfifo(tmp_path / "z.jsonl")
    command = [*PILEKIT, "verify", str(corpus / "val.jsonl.zst"), str(tmp_path / "z.jsonl"), "--jobs", "2"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        (tmp_path / "z.jsonl").open("wb"),
    ):  # It opens when the process reads.
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=240)
    assert (process.returncode, stdout, stderr.strip()) == (130, "", "interrupted")
    assert not list(cache.rglob("*.lock"))
