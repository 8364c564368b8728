"""`pilekit stream`: the samples, the rate, and nothing of a text's that reaches the terminal as a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilekit.cli.main import pilekit
from pilekit.errors import PilekitError
from pilekit.tokenize import load_tokenizer
from tests.tokenize.making import byte_level_bpe


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_level_bpe(600).save(str(file))
    return file


TEXTS = [("Github", "def f(x):\n\treturn x\n"), ("Pile-CC", "The quick brown fox"), ("ArXiv", "Wir läuten")]


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    lines = [json.dumps({"text": text, "meta": {"pile_set_name": subset}}) for subset, text in TEXTS * 20]
    path.write_text("\n".join(lines) + "\n")
    return path


def stream(*arguments: str | int | Path) -> Result:
    return CliRunner().invoke(pilekit, ["stream", *map(str, arguments)])


def test_samples_and_rate(shard: Path, tokenizer_file: Path) -> None:
    result = stream(shard, "--tokenizer", tokenizer_file, "--seq-len", 32, "--batch-size", 2, "--steps", 20)
    assert result.exit_code == 0, result.output
    assert "── Github  a.jsonl document " in result.stdout
    assert "def f(x):↵\\x09return x↵ [EOD]" in result.stdout
    assert "20 batches of 2 x 32" in result.stdout
    assert "M tokens/s" in result.stdout
    assert result.stderr == ""


def test_json_tells_every_token(shard: Path, tokenizer_file: Path) -> None:
    result = stream(shard, "--tokenizer", tokenizer_file, "--seq-len", 32, "--batch-size", 2, "--steps", 9, "--json")
    told = json.loads(result.stdout)
    tokenizer = load_tokenizer(tokenizer_file)
    assert told["batches"] == 9
    assert 0.8 * 9 * 64 < told["tokens"] <= 9 * 64
    assert told["tokens_per_second"] == told["tokens"] / told["seconds"]
    assert len(told["samples"]) == 3
    for sample in told["samples"]:
        assert sum(document["tokens"] for document in sample) <= 32
        for document in sample:
            subset, text = TEXTS[document["number"] % 3]
            assert document == {
                "shard": "a.jsonl",
                "number": document["number"],
                "subset": subset,
                "tokens": len(tokenizer.encode_batch([text])[0]) + 1,
                "continued": False,
                "ends": True,
                "text": text,
            }


def test_what_is_longer_than_a_row_is_told(shard: Path, tokenizer_file: Path) -> None:
    result = stream(shard, "--tokenizer", tokenizer_file, "--seq-len", 4, "--batch-size", 16, "--steps", 1)
    assert "continued from another row" in result.stdout
    assert "[cut at the row's edge]" in result.stdout


def test_steps_and_subsets(shard: Path, tokenizer_file: Path) -> None:
    arguments: list[str | int | Path] = [
        "--tokenizer",
        tokenizer_file,
        "--seq-len",
        8,
        "--batch-size",
        1,
        "--steps",
        2,
        "--json",
    ]
    told = json.loads(stream(shard, *arguments, "--subsets", "pile_arxiv,GitHub").stdout)
    assert told["batches"] == 2
    assert told["tokens"] == 16
    assert {document["subset"] for sample in told["samples"] for document in sample} <= {"ArXiv", "Github"}


def test_hostile_text_and_labels_stay_text(tmp_path: Path, tokenizer_file: Path) -> None:
    record = {"text": "\x1b[31mred\x07 [bold]x[/bold] [/]", "meta": {"pile_set_name": "\x1b]0;title\x07[red]label"}}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "\u202eright to left\r", "meta": {}}) + "\n")
    arguments = ("--tokenizer", tokenizer_file, "--seq-len", 64, "--batch-size", 1, "--steps", 2)
    told = ""
    for name in ("a.jsonl", "b.jsonl"):
        result = stream(tmp_path / name, *arguments)
        assert result.exit_code == 0, result.output
        told += result.stdout
    assert not set("\x1b\x07\r\u202e") & set(told)
    assert "\\x1b[31mred\\x07 [bold]x[/bold] [/]" in told
    assert "\\x1b]0;title\\x07[red]label" in told
    assert "(none)" in told


@pytest.mark.parametrize(
    "arguments", [[], ["--tokenizer", "t.json", "--steps", "0"], ["--tokenizer", "t", "--seq-len", "x"]]
)
def test_wrong_usage(shard: Path, arguments: list[str]) -> None:
    assert stream(shard, *arguments).exit_code == 2


def test_what_is_not_there(shard: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    for result, words in (
        (stream(tmp_path / "missing.jsonl", "--tokenizer", tokenizer_file), "missing.jsonl"),
        (stream(shard, "--tokenizer", tmp_path / "missing.json"), "missing.json"),
        (
            stream(shard, "--tokenizer", tokenizer_file, "--subsets", "Books3"),
            "no document is selected by subsets=['Books3']",
        ),
    ):
        assert isinstance(result.exception, PilekitError)
        assert words in str(result.exception)


def test_standard_input(shard: Path, tokenizer_file: Path) -> None:
    command = [sys.executable, "-m", "pilekit.cli.main", "stream", "-", "--tokenizer", str(tokenizer_file), "--json"]
    done = subprocess.run(command, input=shard.read_bytes(), capture_output=True, check=True)
    told = json.loads(done.stdout)
    assert told["batches"] == 1
    assert told["samples"][0][0]["shard"] == "(stdin)"
