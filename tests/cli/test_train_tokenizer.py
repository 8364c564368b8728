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


def test_the_table_and_the_file(shard: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "tokenizer.json"
    result = run("train-tokenizer", shard, "--vocab-size", 300, "--out", out, exit_code=0)
    assert load_tokenizer(out).vocab_size == 300
    assert f"wrote {out}: 300 ids" in result.stdout
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
    assert rows["ArXiv"][1] == rows["Github"][1] == "100"
    assert rows["Total"][1] == "300"
    assert 0 < float(rows["Total"][3]) < 0.6
    assert "\x1b" not in result.stdout
    assert "[red]label[/red]" in result.stdout


def test_subsets_bytes_and_seed(shard: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.json" for n in range(3)]
    for file, seed in zip(files, (0, 0, 1), strict=True):
        options = ("--subsets", "arxiv", "--bytes", "5kB", "--seed", seed)
        result = run("train-tokenizer", shard, "--vocab-size", 300, "--out", file, *options)
        rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
        assert {"ArXiv", "Total"} <= set(rows)
        assert "Github" not in rows
        assert 5_000 <= int(rows["Total"][2].replace(",", "")) < 7_000
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()


def test_vocabularies_that_do_not_fit(shard: Path, tmp_path: Path) -> None:
    result = run("train-tokenizer", shard, "--vocab-size", 50_000, "--out", tmp_path / "t.json")
    assert "instead of 50,000" in result.stderr
    with pytest.raises(PilekitError, match="at least 258"):
        run("train-tokenizer", shard, "--vocab-size", 10, "--out", tmp_path / "u.json")
    run("train-tokenizer", shard, "--vocab-size", 300, exit_code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
