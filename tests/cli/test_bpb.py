"""`pilekit bpb`: the table, result.json, comparisons, figures, and every error as one line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pilekit.cli.main import pilekit
from pilekit.errors import PilekitError
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.compare import compare
from tests.tiny import LABELS, tiny_corpus, tiny_model_dir


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"), documents=12)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, model_dir: Path, other_model: Path, corpus: Path) -> list[Path]:
    """The results of both models."""
    folders = [tmp_path_factory.mktemp("result") for _ in range(2)]
    for model, folder in zip((model_dir, other_model), folders, strict=True):
        assert bpb(model, corpus, "--out", folder).exit_code == 0
    return folders


def bpb(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(pilekit, ["bpb", *map(str, arguments)])


def error_of(result: Result) -> str:
    assert isinstance(result.exception, PilekitError), (result.output, result.exception)
    assert result.stdout == ""
    assert "\n" not in str(result.exception)
    return str(result.exception)


def usage_error_of(result: Result) -> str:
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    return " ".join(result.stderr.split("Error: ")[1].split())


def no_terminal(_: int) -> os.terminal_size:
    raise OSError


def test_in_a_pipe_no_column_is_lost(model_dir: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", no_terminal)
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = bpb(model_dir, corpus, "--limit", 1).stdout.splitlines()
    titles = "Documents Bytes Tokens Tok/B BPB 95 % interval perplexity token"
    assert lines[1].split() == ["Subset", *titles.split()]
    assert [line for line in lines if line != line.rstrip()] == []
    assert max(map(len, lines)) <= 120


def test_the_table_and_its_protocol(model_dir: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = bpb(model_dir, corpus)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    expected = bits_per_byte(model_dir, corpus)
    for name in (*LABELS, "(none)", "Overall (pooled)"):
        [row] = [line for line in lines if line.startswith(f"{name} ")]
        score = expected.overall if name == "Overall (pooled)" else expected.subsets[name]
        assert score.interval is not None
        low, high = score.interval
        assert f" {score.bpb:.4f}  ~{low:.3f}–{high:.3f} " in row
    assert any(line.startswith("windows ") for line in lines)
    assert result.stderr == ""


def test_json_is_the_result_file(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    arguments: list[str | int] = ["--subsets", "pile_arxiv,GitHub", "--limit", 2, "--max-length", 16, "--prefix", "3"]
    result = bpb(model_dir, corpus, *arguments, "--json", "--out", tmp_path / "new" / "out")
    assert result.exit_code == 0, result.output
    file = tmp_path / "new" / "out" / "result.json"
    assert result.stdout == file.read_text()
    assert result.stderr == f"written: {file}\n"
    expected = bits_per_byte(model_dir, corpus, subsets=["ArXiv", "Github"], limit=2, max_length=16, prefix=3)
    found = json.loads(result.stdout)
    assert found["protocol"].pop("records").isalnum()
    assert expected.protocol.pop("records") is None
    assert found == expected.to_dict()
    # An older result is replaced.
    assert bpb(model_dir, corpus, "--out", file.parent).exit_code == 0
    assert json.loads(file.read_text())["protocol"]["limit"] is None


def test_every_option_reaches_the_figures(model_dir: Path, corpus: Path) -> None:
    """Each option changes the protocol or the figures just as the argument of the function does."""
    options: dict[str, tuple[list[str | Path | int], dict[str, Any]]] = {
        "context": (["--context-len", 4], {"context_len": 4}),
        "prefix": (["--prefix", "none"], {"prefix": "none"}),
        "paper": (["--paper"], {"paper": True}),
        "dtype": (["--dtype", "bf16", "--device", "cpu"], {"dtype": "bf16", "device": "cpu"}),
        "batch": (["--batch-tokens", 40], {"batch_tokens": 40}),
    }
    for name, (given, arguments) in options.items():
        result = bpb(model_dir, corpus, *given, "--limit", 3, "--json")
        assert result.exit_code == 0, (name, result.output)
        assert json.loads(result.stdout) == bits_per_byte(model_dir, corpus, limit=3, **arguments).to_dict(), name


def test_documents_that_were_trained_on_are_counted(
    model_dir: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = tmp_path / "train"
    train.mkdir()
    shutil.copy(corpus / "00.jsonl.zst", train)
    done = bpb(model_dir, corpus, "--train", train, "--json")
    copies = json.loads(done.stdout)["training_copies"]
    assert copies["overall"] >= 12
    assert copies["overall"] == sum(copies["subsets"].values())
    assert f"{copies['overall']} of 24 evaluation documents occur word for word in the training shards" in caplog.text
    assert list(train.glob("*.index.parquet"))


def test_a_run_that_was_recorded_goes_on(
    model_dir: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = bpb(model_dir, corpus, "--out", tmp_path, "--json")
    assert caplog.messages == []
    again = bpb(model_dir, corpus, "--out", tmp_path, "--json")
    assert caplog.messages == [f"resuming: 24 documents are scored already, recorded in {tmp_path}"]
    assert first.stdout == again.stdout


def test_a_figure(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    result = bpb(model_dir, corpus, "--limit", 2, "--plot", tmp_path / "new" / "bpb.svg")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "new" / "bpb.svg").read_bytes().startswith(b"<?xml")
    assert result.stderr == f"drawn: {tmp_path / 'new' / 'bpb.svg'}\n"


def test_results_are_compared(scored: list[Path], model_dir: Path, other_model: Path, corpus: Path) -> None:
    result = bpb("--compare", *scored, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found = json.loads(result.stdout)
    expected = compare([bits_per_byte(model, corpus) for model in (model_dir, other_model)], scored)
    assert found["overall"]["models"] == [f"{model_dir} ({scored[0]})", f"{other_model} ({scored[1]})"]
    assert found == expected.to_dict()
    assert set(found) == {"subsets", "overall"}
    assert set(found["subsets"]) == {*LABELS, "(none)"}
    low, high = found["overall"]["interval"]
    assert low <= found["overall"]["difference"] <= high


def test_a_comparison_is_a_table_and_a_figure(scored: list[Path], model_dir: Path, tmp_path: Path) -> None:
    result = bpb(*scored, "--compare", "--plot", tmp_path / "gain.png")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("BPB on the same documents: B against A")
    assert any(line.startswith("Overall ") for line in lines)
    assert "B is " in result.stdout or "B and A are not told apart" in result.stdout
    assert str(model_dir)[:40] in result.stdout
    assert (tmp_path / "gain.png").read_bytes().startswith(b"\x89PNG")


def test_models_are_scored_and_compared(
    scored: list[Path], model_dir: Path, other_model: Path, corpus: Path, tmp_path: Path
) -> None:
    """A result and models: the models are scored with the given options, each recorded in its own folder."""
    found = bpb("--compare", scored[0], other_model, model_dir, corpus, "--out", tmp_path, "--json")
    assert found.exit_code == 0, found.output
    folders = [scored[0], tmp_path / "B", tmp_path / "C"]
    expected = compare([bits_per_byte(model, corpus) for model in (model_dir, other_model, model_dir)], folders)
    assert json.loads(found.stdout) == expected.to_dict()
    assert found.stderr == "".join(f"written: {folder / 'result.json'}\n" for folder in folders[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["B", "C"]
    again = bpb("--compare", scored[0], tmp_path / "B", tmp_path / "C", "--json")
    assert again.stdout == found.stdout
    fewer = bpb("--compare", model_dir, other_model, corpus, "--limit", 2, "--json")
    assert json.loads(fewer.stdout)["overall"]["documents"] == 8
    assert json.loads(fewer.stdout)["overall"]["models"] == [str(model_dir), str(other_model)]


def test_folders_that_cannot_be_compared(scored: list[Path], model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    neither = "neither a result nor a model; --compare takes two or more folders"
    assert f"{corpus}: is {neither}" in error_of(bpb("--compare", scored[0], corpus, scored[1]))
    assert f"{tmp_path / 'none'}: is {neither}" in error_of(bpb("--compare", scored[0], tmp_path / "none"))
    assert "there is only one" in usage_error_of(bpb("--compare", scored[0]))
    assert "--limit, --out; leave it out" in usage_error_of(
        bpb("--compare", *scored, "--limit", 3, "--out", tmp_path / "out")
    )
    assert f"{corpus}; leave it out" in usage_error_of(bpb("--compare", *scored, corpus))
    assert "--train is about" in usage_error_of(bpb("--compare", *scored, "--train", corpus))
    interrupted = tmp_path / "interrupted"
    shutil.copytree(scored[0], interrupted)
    (interrupted / "result.json").unlink()
    assert "has no result.json" in error_of(bpb("--compare", interrupted, scored[1]))
    elsewhere = tmp_path / "50.jsonl.zst"
    shutil.copy(corpus / "00.jsonl.zst", elsewhere)
    error = error_of(bpb("--compare", scored[0], model_dir, elsewhere))
    assert "no document that all results scored" in error


def test_a_masked_model_is_not_compared_with_a_causal_one(
    scored: list[Path], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is scored."""
    (tmp_path / "config.json").write_text('{"model_type": "roberta", "architectures": ["RobertaForMaskedLM"]}')
    error = error_of(bpb("--compare", scored[0], tmp_path, corpus))
    assert "A is a causal model and B a masked one" in error


def test_missing_inputs(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    assert "missing" in error_of(bpb(tmp_path / "missing", corpus))
    assert "missing.jsonl" in error_of(bpb(model_dir, tmp_path / "missing.jsonl"))
    assert "missing.jsonl" in error_of(bpb(model_dir, corpus, "--train", tmp_path / "missing.jsonl"))
    assert "no shards" in error_of(bpb(model_dir, model_dir))
    assert "no documents of Books3" in error_of(bpb(model_dir, corpus, "--subsets", "Books3"))
    assert "unknown subset" in error_of(bpb(model_dir, corpus, "--subsets", "Buks3"))
    assert "no manifest" in error_of(bpb(model_dir, corpus, "--manifest", "heap"))


def test_a_target_that_cannot_be_written_is_refused_before_the_work(corpus: Path, tmp_path: Path) -> None:
    """The model does not exist either: if the work had begun, that would be the error."""
    (tmp_path / "out" / "result.json").mkdir(parents=True)
    (tmp_path / "file").touch()
    missing = tmp_path / "missing"
    assert "is a folder" in error_of(bpb(missing, corpus, "--out", tmp_path / "out"))
    assert "file: is a file, where a folder" in error_of(bpb(missing, corpus, "--out", tmp_path / "file" / "out"))
    assert "file: is a file, where a folder" in error_of(bpb(missing, corpus, "--out", tmp_path / "file"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    own = "model: holds a model (config.json)"
    assert own in error_of(bpb(missing, corpus, "--out", tmp_path / "model"))
    assert "give --out a folder of its own" in error_of(bpb(missing, corpus, "--out", tmp_path / "model"))
    assert ".png, .svg or .pdf" in error_of(bpb(missing, corpus, "--plot", tmp_path / "a.jpg"))
    assert "file: is a file, where a folder" in error_of(bpb(missing, corpus, "--plot", tmp_path / "file" / "a.png"))
    (tmp_path / "a.png").mkdir()
    assert "is a folder" in error_of(bpb(missing, corpus, "--plot", tmp_path / "a.png"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(corpus: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "nothing can be written there" in error_of(bpb(tmp_path / "missing", corpus, "--out", tmp_path / "out"))


def test_wrong_usage(model_dir: Path, corpus: Path) -> None:
    for arguments in (["--limit", "0"], ["--limit", "x"], ["--depth", "3"], ["--dtype", "int8"], ["--out", ""]):
        assert bpb(model_dir, corpus, *arguments).exit_code == 2
    assert bpb().exit_code == 2


@pytest.mark.slow
def test_of_two_ranks_the_first_prints(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def job(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [*ranks, "-m", "pilekit", "bpb", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    done = job(model_dir, corpus, "--json", "--plot", tmp_path / "a.png", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found, alone = json.loads(done.stdout), bits_per_byte(model_dir, corpus).to_dict()
    assert found["overall"]["documents"] == 24
    assert found["overall"]["bpb"] == pytest.approx(alone["overall"]["bpb"], rel=1e-7)
    assert [done.stderr.count(word) for word in ("written: ", "drawn: ")] == [1, 1]
    failed = job(model_dir, tmp_path / "missing.jsonl")
    assert failed.returncode == 1
    assert failed.stderr.count("error: ") == 1, failed.stderr


def run(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "pilekit.cli.main", "bpb", *map(str, arguments)]


@pytest.mark.slow
def test_an_error_is_one_line_on_stderr(corpus: Path, tmp_path: Path) -> None:
    done = subprocess.run(run(tmp_path / "missing", corpus), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_interrupted_it_leaves_its_records_and_no_result(model_dir: Path, tmp_path: Path) -> None:
    """It reads an endless pipe: once it has taken more than a pipe holds, it is at work."""
    command = run(model_dir, "-", "--out", tmp_path / "out")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"text": "one", "meta": {"pile_set_name": "ArXiv"}}\n' * 10_000)
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert (out, errors.strip()) == (b"", b"interrupted")
    assert not (tmp_path / "out" / "result.json").exists()
