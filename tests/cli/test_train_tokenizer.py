from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.shards.write.shard_writer import ShardWriter
from pilekit.tokenize import load_tokenizer
from tests.cli.running import run


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "00.jsonl.zst"
    rng = np.random.default_rng(0)
    words = ["one", "two", "three", "fourteen", "fifteen", "hundred"]
    texts = [" ".join(rng.choice(words, 200)) + f" {i}" for i in range(300)]
    subsets = ["ArXiv", "Github", "\x1b[31m[red]label[/red]"] * 100
    with ShardWriter(path) as writer:
        writer.write(DocumentBatch(texts, subsets, "00.jsonl", np.arange(300)))
    return path


def rows_of(output: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in output.splitlines() if line.strip()}


def test_the_table_and_the_file(shard: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "tokenizer.json"
    result = run("train-tokenizer", shard, "--vocab-size", 300, "--out", out, exit_code=0)
    assert load_tokenizer(out).vocab_size == 300
    assert f"wrote {out}: 300 ids" in result.stdout
    rows = rows_of(result.stdout)
    assert rows["ArXiv"][1] == rows["Github"][1] == "100"
    assert rows["Total"][1] == "300"
    assert 0 < float(rows["Total"][4]) < 0.6
    assert "\x1b" not in result.stdout
    assert "[red]label[/red]" in result.stdout

    options = ("--subsets", "arxiv", "--bytes", "5kB", "--seed", 1)
    rows = rows_of(run("train-tokenizer", shard, "--vocab-size", 300, "--out", tmp_path / "1.json", *options).stdout)
    assert "ArXiv" in rows
    assert "Github" not in rows
    assert 5 <= float(rows["Total"][2]) < 7  # kB

    result = run("train-tokenizer", shard, "--vocab-size", 50_000, "--out", tmp_path / "2.json")
    assert "instead of 50,000" in result.stderr
    with pytest.raises(PilekitError, match="at least 258"):
        run("train-tokenizer", shard, "--vocab-size", 10, "--out", tmp_path / "3.json")
    run("train-tokenizer", shard, "--vocab-size", 300, exit_code=2)
    assert not (tmp_path / "3.json").exists()
