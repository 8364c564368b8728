"""`pilekit bpb`: the table, result.json, comparisons, figures, and every error as one line."""

from __future__ import annotations

import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from pilekit.display.progress import score_progress
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.compare import compare
from tests.cli.running import leave, refused, run
from tests.display.test_progress import Terminal
from tests.evaluate.folders import figures_in
from tests.tiny.models import tiny_corpus, tiny_model_dir


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"), documents=12)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models."""
    return [tiny_model_dir(tmp_path_factory.mktemp("model"), seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def model_dir(models: list[Path]) -> Path:
    return models[0]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, models: list[Path], corpus: Path) -> list[Path]:
    """The results of both models."""
    folders = [tmp_path_factory.mktemp("result") for _ in models]
    for model, folder in zip(models, folders, strict=True):
        bpb(model, corpus, "--out", folder)
    return folders


def without_speed(stderr: str) -> str:
    """What is told on stderr besides the speed of each model."""
    lines = stderr.splitlines(keepends=True)
    speed = r": [\d,]+ tokens/s, [\d.]+ kB of weights in memory, [\d.]+ kB on disk$"
    speeds = [line for line in lines if re.search(speed, line)]
    assert speeds
    return "".join(line for line in lines if line not in speeds)


def bpb(*arguments: str | Path | int) -> Result:
    return run("bpb", *arguments, exit_code=0)


def test_the_table_and_its_protocol(model_dir: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = bpb(model_dir, corpus)
    assert without_speed(result.stderr) == ""
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line != line.rstrip()] == []
    expected = bits_per_byte(model_dir, corpus)
    for name, score in (*expected.subsets.items(), ("Overall (pooled)", expected.overall)):
        [row] = [line for line in lines if line.startswith(f"{name} ")]
        assert f" {score.bpb:.4f} " in row
        if score.interval is not None:
            low, high = score.interval
            assert f" {score.bpb:.4f}  ~{low:.3f}–{high:.3f} " in row
    assert expected.overall.interval is not None
    assert any(line.startswith("windows ") for line in lines)
    monkeypatch.delenv("COLUMNS")
    titles = bpb(model_dir, corpus, "--limit", 1).stdout.splitlines()[1]  # in a pipe no column is lost
    assert titles.split()[:6] == ["Subset", "Documents", "Bytes", "Tokens", "Tok/B", "BPB"]
    assert titles.split()[-2:] == ["perplexity", "token"]


def test_json_is_the_result_file(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    arguments: list[str | int] = ["--subsets", "pile_arxiv,GitHub", "--limit", 2, "--max-length", 16, "--prefix", "3"]
    result = bpb(model_dir, corpus, *arguments, "--json", "--out", tmp_path / "new" / "out")
    file = tmp_path / "new" / "out" / "result.json"
    assert json.loads(result.stdout) == figures_in(file.parent)
    assert without_speed(result.stderr) == f"written: {file}\n"
    expected = bits_per_byte(model_dir, corpus, subsets=["ArXiv", "Github"], limit=2, max_length=16, prefix=3)
    found = json.loads(result.stdout)
    assert found["protocol"].pop("records").isalnum()
    assert expected.protocol.pop("records") is None
    assert found == expected.to_dict()
    every = ["--context-len", 4, "--prefix", "none", "--paper", "--dtype", "bf16", "--device", "cpu", "--limit", 3]
    other = bpb(model_dir, corpus, *every, "--batch-tokens", 40, "--json", "--plot", tmp_path / "a.svg")
    options: dict[str, Any] = {"context_len": 4, "prefix": "none", "paper": True, "dtype": "bf16", "device": "cpu"}
    assert json.loads(other.stdout) == bits_per_byte(model_dir, corpus, **options, limit=3, batch_tokens=40).to_dict()
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    assert other.stderr.endswith(f"drawn: {tmp_path / 'a.svg'}\n")


def test_documents_that_were_trained_on_are_counted(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    train = tmp_path / "train"
    train.mkdir()
    shutil.copy(corpus / "00.jsonl.zst", train)
    done = bpb(model_dir, corpus, "--train", train, "--json")
    copies = json.loads(done.stdout)["training_copies"]
    assert copies["overall"] >= 12
    assert copies["overall"] == sum(copies["subsets"].values())
    assert list(train.glob("*.index.parquet"))


def test_results_are_compared(scored: list[Path], models: list[Path], corpus: Path, tmp_path: Path) -> None:
    result = bpb("--compare", *scored, "--json")
    assert result.stderr == ""
    found = json.loads(result.stdout)
    expected = compare([bits_per_byte(model, corpus) for model in models], scored)
    assert found["overall"]["models"] == [f"{model} ({folder})" for model, folder in zip(models, scored, strict=True)]
    assert found == expected.to_dict()
    lines = bpb(*scored, "--compare", "--plot", tmp_path / "gain.png").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("BPB on the same documents: B against A")
    assert any(line.startswith("Overall ") for line in lines)
    assert (tmp_path / "gain.png").read_bytes().startswith(b"\x89PNG")


def test_models_are_scored_and_compared(scored: list[Path], models: list[Path], corpus: Path, tmp_path: Path) -> None:
    """A result and models: the models are scored with the given options, each recorded in its own folder."""
    model_dir, other_model = models
    found = bpb("--compare", scored[0], other_model, model_dir, corpus, "--out", tmp_path, "--json")
    folders = [scored[0], tmp_path / "B", tmp_path / "C"]
    expected = compare([bits_per_byte(model, corpus) for model in (model_dir, other_model, model_dir)], folders)
    assert json.loads(found.stdout) == expected.to_dict()
    assert without_speed(found.stderr) == "".join(f"written: {folder / 'result.json'}\n" for folder in folders[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["B", "C"]
    again = bpb("--compare", scored[0], tmp_path / "B", tmp_path / "C", "--json")
    assert again.stdout == found.stdout
    fewer = bpb("--compare", model_dir, other_model, corpus, "--limit", 2, "--json")
    assert json.loads(fewer.stdout)["overall"]["documents"] == 8
    assert json.loads(fewer.stdout)["overall"]["models"] == [str(model_dir), str(other_model)]


def test_wrong_arguments(scored: list[Path], model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    """Each is one line, and is found before the work."""
    masked, own, interrupted = (tmp_path / name for name in ("masked", "own", "interrupted"))
    for folder, content in ((masked, '{"model_type": "distilbert"}'), (own, "")):
        folder.mkdir()
        (folder / "config.json").write_text(content)
        for name in ("model.safetensors", "tokenizer.json"):
            (folder / name).touch()
    (tmp_path / "out" / "result.json").mkdir(parents=True)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "result.json").write_text('{"accuracy": 0.5}')
    shutil.copytree(scored[0], interrupted)
    (interrupted / "result.json").unlink()
    elsewhere = tmp_path / "50.jsonl.zst"
    shutil.copy(corpus / "00.jsonl.zst", elsewhere)
    cases: list[tuple[list[str | Path], str]] = [
        ([model_dir, corpus, "--train", tmp_path / "b.jsonl"], "b.jsonl: "),
        ([model_dir, corpus, "--subsets", "Books3"], "no documents of Books3"),
        ([model_dir, corpus, "--manifest", "heap"], "no manifest"),
        ([model_dir, corpus, "--out", tmp_path / "out"], "is a folder"),
        ([model_dir, corpus, "--out", own], "own: holds a model (config.json); give --out a folder of its own"),
        ([model_dir, corpus, "--out", foreign], "result.json: is not of `pilekit bpb`; give --out a folder of its own"),
        ([model_dir, corpus, "--plot", tmp_path / "a.jpg"], ".png, .svg or .pdf"),
        (["--compare", scored[0], corpus, scored[1]], f"{corpus}: --compare takes two or more folders"),
        (["--compare", scored[0]], "--compare takes two or more folders"),
        (["--compare", interrupted, scored[1]], "has no result.json"),
        (["--compare", scored[0], model_dir, elsewhere], "no document that all results scored"),
        (["--compare", scored[0], masked, corpus], "A is a causal model and B a masked one"),
    ]
    for arguments, words in cases:
        refused(re.escape(words), "bpb", *arguments)
    usage: list[tuple[list[str | Path], str]] = [
        (["--compare", *scored, "--train", corpus], "--train is about"),
        ([model_dir, corpus, "--limit", "0"], "--limit"),
        ([model_dir, corpus, "--dtype", "int3"], "--dtype"),
        ([model_dir, corpus, "--per-token"], "--per-token writes beside the result; give --out DIR too"),
        ([model_dir, corpus, "--by", "length", "--train", corpus], "go by subset; leave out --by"),
        ([], "MODEL_DIR"),
    ]
    for arguments, words in usage:
        result = run("bpb", *arguments, exit_code=2)
        assert result.stdout == ""
        assert words in " ".join(result.stderr.split()), (arguments, result.stderr)


def test_the_line_of_progress_on_a_terminal_has_an_end_and_the_figure_so_far(
    model_dir: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pilekit.cli.display.output.score_progress", partial(score_progress, quiet=0))
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert leave(capsys, "bpb", str(model_dir), str(corpus), "--limit", "2")[0] == 0
    printed = sys.stderr.getvalue()  # type: ignore[attr-defined]
    scored = bits_per_byte(model_dir, corpus, limit=2).overall
    assert scored.bpb is not None
    shown = r"scoring: ([\d.]+) bits per byte so far [^ ]+ ([\d.]+)/([\d.]+) (bytes|kB) [\d:]{7} left"
    *_, (figure, done, total, unit) = re.findall(shown, re.sub(r"\x1b\[[\d?;]*[A-Za-z]", "", printed))
    assert figure == f"{scored.bpb:.4f}"
    assert done == total == (str(scored.bytes) if unit == "bytes" else f"{scored.bytes / 1000:.1f}")
