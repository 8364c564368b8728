"""`pilekit train-tokenizer` as people call it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pilekit.cli.main import pilekit
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.shards.write.shard_writer import ShardWriter
from pilekit.tokenize import load_tokenizer

HOSTILE = "\x1b[31m[red]label[/red]"


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "00.jsonl.zst"
    rng = np.random.default_rng(0)
    words = ["one", "two", "three", "fourteen", "fifteen", "hundred"]
    texts = [" ".join(rng.choice(words, 200)) + f" {i}" for i in range(300)]
    with ShardWriter(path) as writer:
        writer.write(DocumentBatch(texts, ["ArXiv", "Github", HOSTILE] * 100, "00.jsonl", np.arange(300)))
    return path


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(pilekit, ["train-tokenizer", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_it_says_what_it_did(shard: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "tokenizer.json"
    result = run(shard, "--vocab-size", 300, "--out", out)
    assert result.exit_code == 0
    assert load_tokenizer(out).vocab_size == 300
    assert f"wrote {out}: 300 ids" in result.stdout
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
    assert rows["ArXiv"][1] == rows["Github"][1] == "100"
    total = rows["Total"]
    assert total[1] == "300"
    tokens_per_byte = float(total[3])
    assert 0 < tokens_per_byte < 0.6
    # A label from outside is shown, never obeyed.
    assert "\x1b" not in result.stdout
    assert "[red]label[/red]" in result.stdout


def test_subsets_bytes_and_seed(shard: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.json" for n in range(3)]
    for file, seed in zip(files, (0, 0, 1), strict=True):
        result = run(shard, "--vocab-size", 300, "--out", file, "--subsets", "arxiv", "--bytes", "5kB", "--seed", seed)
        rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
        assert {"ArXiv", "Total"} <= set(rows)
        assert "Github" not in rows
        assert 5_000 <= int(rows["Total"][2].replace(",", "")) < 7_000
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()


def test_a_sample_too_small_for_the_vocabulary_is_told(shard: Path, tmp_path: Path) -> None:
    result = run(shard, "--vocab-size", 50_000, "--out", tmp_path / "t.json")
    assert "instead of 50,000" in result.stderr


def test_wrong_usage(shard: Path, tmp_path: Path) -> None:
    assert run(shard, "--out", tmp_path / "t.json").exit_code == 2
    assert run(shard, "--vocab-size", 300).exit_code == 2
    with pytest.raises(PilekitError, match="at least 258"):
        run(shard, "--vocab-size", 10, "--out", tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []


def test_help_has_an_example() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "Example:" in result.stdout
    assert "pilekit train-tokenizer pile/train --vocab-size 50257 --out tokenizer.json" in result.stdout
