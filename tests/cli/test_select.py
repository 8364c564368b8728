from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.running import PILEKIT, cells, refused, run, run_json
from tests.dedup.checking import write_corpus
from tests.shards import making


@pytest.fixture
def data(tmp_path: Path) -> Path:
    one = [making.record("abc"), making.record("é€", "ArXiv"), making.record("abc", "ArXiv"), making.record("abcdef")]
    two = [making.record("x" * 90, "Enron Emails")]
    return write_corpus(tmp_path / "data", {"train/00": one, "train/01": two})


def test_the_table_and_json(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ("--subsets", "github,arxiv", "--min-bytes", "4", "--out", tmp_path / "out")
    result = run("select", data, *options)
    assert (result.exit_code, result.stderr, caplog.messages) == (0, "", [])
    assert run("select", data, *options).stdout == result.stdout
    assert caplog.messages[0].startswith(f"already done: {tmp_path / 'out'} holds this result")
    rows = cells(result.stdout)
    assert rows[0] == ["Subset", "Read", "Documents", "Text"]
    assert rows[2:4] == [["Github", "2", "1", "6", "B"], ["ArXiv", "2", "1", "5", "B"]]
    assert rows[4] == ["(other", "subsets)", "1", "0", "0", "B"]
    assert rows[6] == ["Total", "5", "2", "11", "B"]
    assert result.stdout.splitlines()[-2:] == [f"1 shard in {tmp_path / 'out'}", "nothing in train/01.jsonl"]
    kept = making.unzstd(tmp_path / "out/train/00.jsonl.zst")
    assert kept == making.record("é€", "ArXiv") + b"\n" + making.record("abcdef") + b"\n"

    figures = run_json("select", data, "--match", "b", "--out", tmp_path / "b", "--jobs", "1")
    subsets = figures.pop("subsets")
    assert figures == {"read": 5, "documents": 3, "bytes": 12, "skipped": 0, "others": 0, "empty": ["train/01.jsonl"]}
    assert subsets["ArXiv"] == {"read": 2, "documents": 1, "bytes": 3}
    assert list(subsets) == ["Github", "ArXiv", "Enron Emails"]


def test_what_is_wrong_is_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for options, message in (
        (["--on-error", "skip", "--seed", "3"], "say what to select: --subsets, --sample, --match, --min-bytes"),
        (["--format", "csv"], "'csv' is not one of"),
        (["--sample", "1", "--out", ""], "'--out': it is empty; name a folder"),
    ):
        assert message in run("select", data, "--out", out, *options, exit_code=2).stderr
    refused(r"\(\\x1b", "select", data, "--out", out, "--match", "(\x1b")
    assert not out.exists()


def test_standard_input(data: Path, tmp_path: Path) -> None:
    command = [*PILEKIT, "select", "-", "--subsets", "arxiv", "--out", str(tmp_path / "out")]
    stored = (data / "train/00.jsonl.zst").read_bytes()
    subprocess.run(command, input=stored, check=True, capture_output=True)
    kept = making.unzstd(tmp_path / "out/stdin.jsonl.zst")
    assert kept == making.record("é€", "ArXiv") + b"\n" + making.record("abc", "ArXiv") + b"\n"
    again = subprocess.run(command, input=stored, check=False, capture_output=True)
    assert again.returncode == 1  # Nobody can know whether it is the same.
    assert b"is not the same any more" in again.stderr
