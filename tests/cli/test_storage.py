"""`pilekit index`, `reframe` and `verify`: tables, JSON, notes and wrong usage."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import fsspec
import pytest
import xxhash

from pilekit.shards.index.format import load_index
from pilekit.shards.write.shard_writer import ShardWriter
from tests.cli.running import PILEKIT, cells, refused, run, run_json
from tests.shards.making import record, some_lines, unzstd, zstd_frame

NAMES = ["train/00.jsonl.zst", "train/01.jsonl.zst", "val.jsonl.zst"]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three shards in small frames, and an empty cache folder beside them."""
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path / "cache"))
    for name in NAMES:
        with ShardWriter(tmp_path / "corpus" / name, frame_bytes=4096) as writer:
            writer.write_lines(some_lines(100))
    return tmp_path / "corpus"


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_index_as_a_table_and_as_json_and_which_indexes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "\x1b[31m[bold].jsonl").write_bytes(record("a"))
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(some_lines(300)))
    (tmp_path / "b.jsonl.zst").write_bytes(zstd_frame(record("b") + b"\n") * 12)
    rows = cells(run("index", tmp_path, exit_code=0).stdout)
    assert rows[0] == ["Shard", "Documents", "Text", "Frames", "Bad", "lines", "Index"]
    shown = f"{tmp_path}/\\x1b[31m[bold].jsonl.index.parquet and 2 others"
    assert rows[-1] == f"Beside the shard: {shown}".split()
    assert rows[2:-1] == [
        ["\\x1b[31m[bold].jsonl", "1", "1", "B", "1", "0", "built"],
        ["a.jsonl", "300", "84.5", "kB", "1", "0", "built"],
        ["b.jsonl", "12", "12", "B", "12", "0", "built"],
    ]
    (tmp_path / "b.jsonl.zst").write_bytes(zstd_frame(record("b") + b"\n") * 13)
    shards = run_json("index", tmp_path, "--jobs", 2)["shards"]
    assert [shard["built"] for shard in shards] == [False, False, True]
    for shard in shards:
        header = load_index(shard["index"]).header
        for name in ("documents", "text_bytes", "lines", "skipped", "content_bytes", "content_hash"):
            assert shard[name] == getattr(header, name)
    assert (shards[2]["shard"], shards[2]["frames"]) == ("b.jsonl", 13)


def test_bad_lines_stop_an_index_or_are_listed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(record("a"))
    (tmp_path / "b.jsonl.zst").write_bytes(zstd_frame(record("b") + b"\nbad\x1b\n" * 15))
    for place, problem in ((tmp_path, r"b\.jsonl\.zst, line 2: is not JSON"), ("-", "standard input")):
        refused(problem, "index", place)
    assert "skipped: 5 lines more" in run("index", tmp_path, "--on-error", "skip", exit_code=0).stderr
    assert run("index", tmp_path, exit_code=0).stderr == "", "an index that is there needs no decision"


def test_an_index_in_the_cache_is_named(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe("/cached/a.jsonl", record("a"))
    result = run("index", "memory://cached/a.jsonl", "--jobs", 2, PILEKIT_CACHE=str(tmp_path / "cache"))
    (made,) = (tmp_path / "cache").rglob("*.index.parquet")
    assert str(made) in result.stdout.replace("\n", "")


def test_reframe_as_json_and_as_a_table(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "00.jsonl.zst").write_bytes(zstd_frame(b"\n".join([b"bad", *some_lines(3000)])))
    (folder / "[b]01.jsonl").write_bytes(record("é€") + b"\n\n")
    found = run_json("reframe", folder, "--out", out, "--frame", "100KiB")["shards"]
    assert [shard["shard"] for shard in found] == ["00.jsonl", "[b]01.jsonl"]
    text = unzstd(folder / "00.jsonl.zst")
    assert found[0] == {
        "shard": "00.jsonl",
        "documents": 3000,
        "bad_lines": 1,
        "text_bytes": sum(len(json.loads(line)["text"]) for line in text.split(b"\n")[1:]),
        "content_bytes": len(text),
        "content_hash": xxhash.xxh3_128_hexdigest(text),
        "stored_before": (folder / "00.jsonl.zst").stat().st_size,
        "stored_bytes": (out / "00.jsonl.zst").stat().st_size,
        "frames": len(text) // (100 << 10) + 1,
    }
    result = run("reframe", folder, "--out", out, "--frame", "102400")
    rows = cells(result.stdout)
    assert rows[0] == ["Shard", "Documents", "Text", "Before", "After", "%", "Frames", "Bad", "lines"]
    assert [*rows[2][:2], rows[2][-1]] == ["00.jsonl", "3,000", "1"]
    assert [*rows[3][:4], rows[3][-1]] == ["[b]01.jsonl", "1", "5", "B", "0"]
    assert [*rows[5][:2], rows[5][-1]] == ["Total", "3,001", "1"]
    assert result.stdout.splitlines()[-1] == f"2 shards in {out}"
    refused("frame_bytes is 102400 there, 4096 here", "reframe", folder, "--out", out, "--frame", "4KiB")
    for wrong in (["--frame", "2KiB"], ["--frame", "much"], ["--level", "23"]):
        assert wrong[0] in run("reframe", folder, "--out", tmp_path / "none", *wrong, exit_code=2).stderr
    assert not (tmp_path / "none").exists()


def test_verify_names_every_place_and_its_table_fits_a_terminal(corpus: Path) -> None:
    result = run("verify", corpus, exit_code=0)
    size = sum(path.stat().st_size for path in corpus.rglob("*.zst"))
    assert (result.stdout, result.stderr) == (f"3 shards, {size / 1000:.1f} kB: all right\n", "")
    assert run_json("verify", corpus) == {"ok": True, "findings": []}
    hostile = corpus / "\x1b[31m evil [bold] name that is rather long.jsonl"
    hostile.write_bytes(record("text", "\x1b[31m[red]") + b"\nbad")
    damage(corpus / "train" / "01.jsonl.zst")
    for width in (40, 80):
        result = run("verify", corpus, exit_code=1, COLUMNS=str(width))
        lines = result.stdout.splitlines()
        assert all(len(line) <= width for line in lines[:-1])
        assert lines[0].split() == ["Shard", "Frame", "Line", "Byte", "Problem"]
        assert lines[-1].startswith("4 shards, ")
        assert lines[-1].endswith(": 3 findings in 2 of them")
    assert "no seek table" in result.stderr
    findings = run_json("verify", corpus, exit_code=1)["findings"]
    assert any("the manifest pile does not list" in finding["problem"] for finding in findings)
    (bad,) = (finding for finding in findings if "is not JSON" in finding["problem"])
    (damaged,) = (finding for finding in findings if finding["shard"] == "train/01.jsonl")
    assert list(bad) == ["shard", "problem", "frame", "line", "byte"]
    assert (bad["frame"], bad["line"], bad["byte"]) == (None, 2, hostile.read_bytes().index(b"bad"))
    row = next(line for line in lines if line.startswith("train/"))
    assert row.split()[:4] == ["train/01.jsonl", *(f"{damaged[place]:,}" for place in ("frame", "line", "byte"))]
    hostile.write_bytes(record("text", "Python Reference"))
    assert run_json("verify", hostile, "--manifest", "demo")["ok"]


def test_sums_are_written_for_sha256sum_and_found_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sha256(name: str) -> str:
        return hashlib.sha256((corpus / name).read_bytes()).hexdigest()

    (corpus / "README").write_text("text")
    other = f"{sha256('README')}  README\n"
    (corpus / "SHA256SUMS.txt").write_text(other + f"{sha256('val.jsonl.zst')} *val.jsonl.zst\r\n")
    result = run("verify", corpus, "--write-sums", exit_code=0)
    assert f"note: written: {corpus}/SHA256SUMS" in result.stderr
    sums = (corpus / "SHA256SUMS").read_text()
    assert sums == other + "".join(f"{sha256(name)}  {name}\n" for name in NAMES)
    damage(corpus / "val.jsonl.zst")
    monkeypatch.setenv("PILEKIT_DATA", str(corpus))
    _, finding = run_json("verify", exit_code=1)["findings"]
    assert (finding["shard"], "SHA-256" in finding["problem"]) == ("val.jsonl", True)
    (tmp_path / "sums").write_text(f"{'0' * 64}  00.jsonl.zst\n{'1' * 64}  gone.jsonl.zst\n")
    findings = run_json("verify", corpus / "train", "--sums", tmp_path / "sums", exit_code=1)["findings"]
    assert "gone.jsonl.zst" in {finding["shard"] for finding in findings}
    (corpus / "SHA256SUMS").unlink()
    assert "SHA256SUMS: not written, as something is wrong" in run("verify", corpus, "--write-sums", exit_code=1).stderr
    assert not (corpus / "SHA256SUMS").exists()
    (corpus / "SHA256SUMS").mkdir()
    refused("is a folder", "verify", corpus, "--write-sums")  # before the work


def test_processes_and_ctrl_c(corpus: Path, tmp_path: Path) -> None:
    damage(corpus / "val.jsonl.zst")
    found = run("verify", corpus, "--json", "--jobs", "2", exit_code=1)
    assert found.stderr == "note: val.jsonl: lines behind the damage were not checked\n"
    assert json.loads(found.stdout)["findings"][0]["frame"] is not None
    os.mkfifo(tmp_path / "z.jsonl")
    command = [*PILEKIT, "verify", str(corpus / "val.jsonl.zst"), str(tmp_path / "z.jsonl"), "--jobs", "2"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        (tmp_path / "z.jsonl").open("wb"),
    ):  # It opens when the process reads.
        for _ in range(40):  # All but the first are ignored.
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        stdout, stderr = process.communicate(timeout=240)
    assert (process.returncode, stdout, stderr.strip()) == (130, "", "interrupted; the same command begins again")
    assert not list((tmp_path / "cache").rglob("*.lock"))
