"""`pilekit dedup`: its table, its JSON, its warnings, and wrong usage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from pilekit import PilekitError
from tests.cli import running
from tests.cli.running import cells
from tests.dedup.checking import write_corpus
from tests.shards import making

TEXT = " ".join(f"word{i}" for i in range(60))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    wikipedia = making.record(TEXT, "Wikipedia (en)")
    hostile = making.record("another", "[bold]evil[/bold]\x1b[31m")
    shards = {
        "train/00": [wikipedia, wikipedia, making.record("x" * 90, "ArXiv")],
        "train/01": [making.record(TEXT + " more", "ArXiv"), hostile],
    }
    return write_corpus(tmp_path / "data", shards)


def run(*arguments: object, **environment: Any) -> Result:
    return running.run("dedup", *arguments, "--jobs", "1", **environment)


def test_the_table_and_json(data: Path, tmp_path: Path) -> None:
    result = run(data, "--out", tmp_path / "out", exit_code=0)
    rows = cells(result.stdout)
    assert rows[0] == ["Subset", "Read", "Exact", "Near", "Kept", "Saved"]
    assert rows[2] == ["Wikipedia", "(en)", "2", "0", "2", "0", "818", "B"]
    assert rows[4] == ["[bold]evil[/bold]\\x1b[31m", "1", "0", "0", "1", "0", "B"]
    assert result.stdout.splitlines()[-2:] == [
        "5 read = 3 kept + 2 removed + 0 skipped",
        f"clean shards, masks and removed.parquet in {tmp_path / 'out'}",
    ]
    (line,) = result.stderr.splitlines()
    assert line.startswith("21 bands × 6 rows: compares 28.2 % at 0.5,")
    options = [data, "--out", tmp_path / "masks", "--no-write", "--keep", "first"]
    assert "warning: 1 exact copy is in subsets that the corpus repeats on purpose" in run(*options).stderr
    summary = json.loads((tmp_path / "masks" / "summary.json").read_bytes())
    assert json.loads(run(*options, "--json").stdout) == summary
    assert list(summary)[:6] == ["read", "kept", "removed", "exact", "near", "skipped"]
    assert not (tmp_path / "masks" / "clean").exists()


def test_subsets_and_an_earlier_run(data: Path, tmp_path: Path) -> None:
    rows = cells(run(data, "--subsets", "wikipedia", "--out", tmp_path / "all").stdout)
    assert rows[2] == ["Wikipedia", "(en)", "2", "1", "0", "1", "409", "B"]
    assert rows[3] == ["(other", "subsets)", "3", "0", "0", "3", "0", "B"]
    assert rows[5] == ["Total", "5", "1", "0", "4", "409", "B"]
    result = run(data, "--subsets", "wikipedia", "--only", "--out", tmp_path / "only")
    assert result.stdout.splitlines()[0].split() == ["Subset", "Read", "Exact", "Near", "Kept", "Left", "out", "Saved"]
    assert "5 read = 1 kept + 1 removed + 0 skipped + 3 left out" in result.stdout
    shard = data / "train" / "00.jsonl.zst"
    run(shard, "--out", tmp_path / "first")
    printed = run(shard, "--against", tmp_path / "first", "--memory", "64MB", "--out", tmp_path / "second").stdout
    assert printed.splitlines()[-2:] == [
        "3 read = 0 kept + 3 removed + 0 skipped",
        f"masks and removed.parquet in {tmp_path / 'second'}",
    ]


def test_wrong_usage(data: Path, tmp_path: Path) -> None:
    for options in (["--memory", "63MB"], ["--threshold", "nan"], ["--only"], ["--against", ""], ["--part", "1/3"]):
        result = run(data, "--out", tmp_path / "out", *options, exit_code=2)
        assert options[0] in result.stderr
        assert "bands" not in result.stderr
    with pytest.raises(PilekitError):
        run(data, "--out", tmp_path / "out", "--subsets", "ArXivv")
    assert not (tmp_path / "out").exists()
