"""`pilekit bpb`: the table, result.json, and every error as one line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilekit.cli.main import pilekit
from pilekit.errors import PilekitError
from pilekit.evaluate.bits_per_byte import bits_per_byte
from tests.tiny import LABELS, tiny_corpus, tiny_model_dir


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"), documents=12)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("model"))


def bpb(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(pilekit, ["bpb", *map(str, arguments)])


def error_of(result: Result) -> str:
    assert isinstance(result.exception, PilekitError), (result.output, result.exception)
    assert result.stdout == ""
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_the_table_and_its_protocol(model_dir: Path, corpus: Path) -> None:
    result = bpb(model_dir, corpus)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    expected = bits_per_byte(model_dir, corpus)
    for name in (*LABELS, "(none)", "Overall"):
        [row] = [line for line in lines if line.startswith(f"{name} ")]
        score = expected.overall if name == "Overall" else expected.subsets[name]
        assert row.endswith(f" {score.tokens:,} {score.tokens / score.bytes:.4f} {score.bpb:.4f}")
    assert any(line.startswith("windows ") for line in lines)
    assert result.stderr == ""


def test_json_is_the_result_file(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    arguments = ["--subsets", "pile_arxiv,GitHub", "--limit", 2, "--max-length", 16, "--prefix", "3"]
    result = bpb(model_dir, corpus, *arguments, "--json", "--out", tmp_path / "new" / "out")
    assert result.exit_code == 0, result.output
    file = tmp_path / "new" / "out" / "result.json"
    assert result.stdout == file.read_text()
    assert result.stderr == f"written: {file}\n"
    expected = bits_per_byte(model_dir, corpus, subsets=["ArXiv", "Github"], limit=2, max_length=16, prefix=3)
    assert json.loads(result.stdout) == expected.to_json()
    # An older result is replaced.
    assert bpb(model_dir, corpus, "--out", file.parent).exit_code == 0
    assert json.loads(file.read_text())["protocol"]["limit"] is None


def test_what_is_not_there(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    assert "missing" in error_of(bpb(tmp_path / "missing", corpus))
    assert "missing.jsonl" in error_of(bpb(model_dir, tmp_path / "missing.jsonl"))
    assert "no shards" in error_of(bpb(model_dir, model_dir))
    assert "no documents of Books3" in error_of(bpb(model_dir, corpus, "--subsets", "Books3"))
    assert "unknown subset" in error_of(bpb(model_dir, corpus, "--subsets", "Buks3"))
    assert "no manifest" in error_of(bpb(model_dir, corpus, "--manifest", "heap"))


def test_bad_lines(model_dir: Path, tmp_path: Path) -> None:
    shard = tmp_path / "a.jsonl"
    shard.write_text('{"text": "one"}\nthis is no document\n')
    assert "--on-error skip" in error_of(bpb(model_dir, shard))
    done = subprocess.run(run(model_dir, shard, "--on-error", "skip"), capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "skipped    1 bad line\n" in "\n".join(map(str.rstrip, done.stdout.splitlines())) + "\n"
    assert done.stderr.count("\n") == 1
    assert "skipped 1 bad line, the first: " in done.stderr


def test_what_does_not_fit(model_dir: Path, corpus: Path) -> None:
    assert "the model has 32 positions" in error_of(bpb(model_dir, corpus, "--max-length", 33))
    assert "prefix is auto, bos, eos, none or" in error_of(bpb(model_dir, corpus, "--prefix", "first"))
    assert "only the ids 0 to 319" in error_of(bpb(model_dir, corpus, "--prefix", "320"))
    assert "has no BOS token" in error_of(bpb(model_dir, corpus, "--prefix", "bos"))


def test_a_target_that_cannot_be_written_is_refused_before_the_work(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "result.json").mkdir(parents=True)
    # There is no such model either: had the work begun, that would be what is said.
    assert "is a folder" in error_of(bpb(tmp_path / "missing", corpus, "--out", tmp_path / "out"))


@pytest.mark.parametrize("arguments", [["--limit", "0"], ["--max-length", "0"], ["--limit", "x"], ["--depth", "3"]])
def test_wrong_usage(arguments: list[str], model_dir: Path, corpus: Path) -> None:
    assert bpb(model_dir, corpus, *arguments).exit_code == 2


def test_a_file_is_no_folder_for_the_result(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert bpb().exit_code == 2
    assert bpb(model_dir, corpus, "--out", tmp_path / "file").exit_code == 2


def test_held_out_shards_are_named(model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_corpus(tmp_path, documents=4)
    (tmp_path / "01.jsonl.zst").rename(tmp_path / "val.jsonl.zst")
    result = bpb(model_dir, tmp_path, "--json")
    assert [shard["name"] for shard in json.loads(result.stdout)["protocol"]["data"]] == ["val.jsonl"]
    assert caplog.text.count("only the held-out shards are taken: val.jsonl") == 1


def run(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "pilekit.cli.main", "bpb", *map(str, arguments)]


def test_an_error_is_one_line_on_stderr(corpus: Path, tmp_path: Path) -> None:
    done = subprocess.run(run(tmp_path / "missing", corpus), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_interrupted_it_leaves_nothing(model_dir: Path, tmp_path: Path) -> None:
    """It reads a pipe without end: once more was taken than a pipe can hold, it is at work."""
    command = run(model_dir, "-", "--out", tmp_path / "out")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"text": "one", "meta": {"pile_set_name": "ArXiv"}}\n' * 10_000)
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, errors.strip()) == (b"", b"interrupted")
    assert not (tmp_path / "out").exists()
