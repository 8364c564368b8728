"""`pilekit stream`: the samples, the rate, and nothing of a text's that reaches the terminal as a command."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilekit.cli.main import pilekit
from pilekit.errors import PilekitError
from pilekit.stream import PileStream
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


def test_what_is_longer_than_a_row_is_told(tmp_path: Path, tokenizer_file: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "läuten " * 50, "meta": {}}) + "\n")
    result = stream(tmp_path, "--tokenizer", tokenizer_file, "--seq-len", 4, "--batch-size", 16, "--steps", 1)
    assert "continued from another row" in result.stdout
    assert "[cut at the row's edge]" in result.stdout


def test_a_rest_behind_another_document_is_told_too(tmp_path: Path, tokenizer_file: Path) -> None:
    """Row by row, by the text alone: what does not begin as its document does began in another row."""
    texts = [f"{number} {'abcdefgh ' * (number % 7)}" for number in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text, "meta": {}}) + "\n" for text in texts))
    arguments = ("--tokenizer", tokenizer_file, "--seq-len", 16, "--batch-size", 64, "--json", "--peek", 0)
    documents = json.loads(stream(tmp_path, *arguments).stdout)
    places = [(document["row"], index) for index, document in enumerate(documents)]
    first = {row: min(index for other, index in places if other == row) for row, _ in places}
    continued = [document["continued"] for document in documents]
    assert continued == [not document["text"].startswith(f"{document['number']} ") for document in documents]
    assert any(told and index != first[row] for (row, index), told in zip(places, continued, strict=True))
    assert any(told and index == first[row] for (row, index), told in zip(places, continued, strict=True))


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
    assert 8 < told["tokens"] <= 16
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


def test_explain(shard: Path, tokenizer_file: Path) -> None:
    arguments = (shard, "--tokenizer", tokenizer_file, "--seq-len", 32, "--world-size", 2, "--explain")
    explained = json.loads(stream(*arguments, "--json").stdout)
    assert explained["plan"] == "random"
    assert explained["world_size"] == 2
    assert explained["global_batch_size"] == 16
    assert 2 in explained["world_sizes"]
    result = stream(*arguments, "--global-batch-size", 64)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    lines = dict(line.strip().split(maxsplit=1) for line in result.stdout.splitlines() if not line.startswith(" "))
    assert lines["plan"].startswith("random: the corpus's text")
    assert lines["step"] == "64 samples: batch_size 32 x grad_accum 1 x world_size 2"
    assert result.stderr == ""


def test_peek_shows_what_training_is_given(shard: Path, tokenizer_file: Path) -> None:
    arguments = ("--tokenizer", tokenizer_file, "--seq-len", 32, "--batch-size", 4, "--seed", 3, "--repeats", "ArXiv=2")
    documents = json.loads(stream(shard, *arguments, "--peek", 2, "--json").stdout)
    made = PileStream(
        shard, tokenizer=tokenizer_file, seq_len=32, batch_size=4, seed=3, repeats={"ArXiv": 2}, outputs=("input_ids",)
    )
    *_, third = itertools.islice(made, 3)
    rows = itertools.groupby(documents, lambda document: document["row"])
    found = [[(document["shard"], document["number"]) for document in row] for _, row in rows]
    assert sorted(found) == sorted(third.documents())
    for document in documents:
        assert document["subset"] == TEXTS[document["number"] % 3][0]
        assert document["text"] in TEXTS[document["number"] % 3][1] or document["continued"] or not document["ends"]
    result = stream(shard, *arguments, "--peek", 2)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stdout.splitlines()[0].split() == ["Row", "Shard", "Number", "Subset", "Tokens", "First", "words"]
    assert len(result.stdout.splitlines()) == 1 + len(documents)


def test_peek_fits_a_terminal(tmp_path: Path, tokenizer_file: Path) -> None:
    """Numbers are whole, whatever else is cut."""
    lines = [json.dumps({"text": "word " * 50, "meta": {"pile_set_name": "OpenWebText2"}})] * 3
    (tmp_path / "a-long-name-of-a-shard-train-00001-of-00009.jsonl").write_text("\n" * 123_456 + "\n".join(lines))
    result = stream(tmp_path, "--tokenizer", tokenizer_file, "--seq-len", 512, "--batch-size", 1, "--peek", 0)
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["Row", "Shard", "Number", "Subset", "Tokens", "First", "words"]
    assert rows
    for row in rows:
        assert len(row) <= 80
        assert row.split()[0] == "0"
        assert row.split()[2] in ("123,456", "123,457", "123,458")
        assert "word word" in row


def test_peek_shows_no_control_characters(tmp_path: Path, tokenizer_file: Path) -> None:
    record = {"text": "\x1b[31mred\x07 [bold]x[/bold]\r", "meta": {"pile_set_name": "\x1b]0;title\x07[red]label"}}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    result = stream(tmp_path, "--tokenizer", tokenizer_file, "--seq-len", 64, "--batch-size", 1, "--peek", 0)
    assert result.exit_code == 0, result.output
    assert not set("\x1b\x07\r") & set(result.stdout)
    assert "\\x1b[31m" in result.stdout


def test_state_from_a_file(shard: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    made = PileStream(shard, tokenizer=tokenizer_file, seq_len=32, batch_size=2)
    list(itertools.islice(made, 3))
    file = tmp_path / "state.json"
    file.write_text(json.dumps(made.state_dict()))
    arguments = ("--tokenizer", tokenizer_file, "--seq-len", 32, "--batch-size", 2, "--json", "--steps", 1)
    told = json.loads(stream(shard, *arguments, "--state", file).stdout)
    fourth = next(iter(made))
    for sample in told["samples"]:
        assert [(document["shard"], document["number"]) for document in sample] in fourth.documents()
    wrong = stream(shard, *arguments, "--state", file, "--seed", 1)
    assert "its seed is 0, here it is 1" in str(wrong.exception)
    file.write_text("{")
    assert "state.json: is not JSON" in str(stream(shard, *arguments, "--state", file).exception)
    assert "cannot be read" in str(stream(shard, *arguments, "--state", tmp_path / "none.json").exception)


def test_a_state_with_another_window(shard: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    made = PileStream(shard, tokenizer=tokenizer_file, seq_len=32, batch_size=2, window=8)
    list(itertools.islice(made, 3))
    file = tmp_path / "state.json"
    file.write_text(json.dumps(made.state_dict()))
    arguments = ("--tokenizer", tokenizer_file, "--seq-len", 32, "--batch-size", 2, "--json", "--state", file)
    told = json.loads(stream(shard, *arguments, "--window", 8, "--peek", 3).stdout)
    peeked = [[(d["shard"], d["number"]) for d in told if d["row"] == row] for row in (0, 1)]
    assert peeked == next(iter(made)).documents()
    assert "its window is 8, here it is 256" in str(stream(shard, *arguments).exception)


def test_bad_lines_are_left_out_if_asked(shard: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    lines = shard.read_bytes().splitlines(keepends=True)
    lines.insert(2, b"{oops\n")
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b"".join(lines))
    arguments = ("--tokenizer", tokenizer_file, "--seq-len", 32, "--batch-size", 2, "--steps", 3, "--json")
    refused = stream(broken, *arguments)
    assert "broken.jsonl, line 3" in str(refused.exception)
    assert "--on-error skip" in str(refused.exception)
    told = stream(broken, *arguments, "--on-error", "skip")
    assert json.loads(told.stdout)["batches"] == 3


def test_packing_and_repeats(shard: Path, tokenizer_file: Path) -> None:
    arguments = ("--tokenizer", tokenizer_file, "--seq-len", 64, "--batch-size", 4, "--steps", 5, "--json")
    told = json.loads(stream(shard, *arguments, "--packing", "none", "--repeats", "Github=0, pile_cc=0").stdout)
    assert [len(sample) for sample in told["samples"]] == [1, 1, 1]
    assert {sample[0]["subset"] for sample in told["samples"]} == {"ArXiv"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--repeats", "ArXiv"],
        ["--repeats", "=2"],
        ["--repeats", ""],
        ["--packing", "loose"],
        ["--explain", "--peek", "3"],
        ["--peek", "-1"],
    ],
)
def test_wrong_usage_of_the_plan(shard: Path, tokenizer_file: Path, arguments: list[str]) -> None:
    assert stream(shard, "--tokenizer", tokenizer_file, *arguments).exit_code == 2
