"""`pilekit train`: what it says, what it leaves, how it stops and goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from rich.filesize import decimal

from pilekit.cli.train import command
from pilekit.errors import PilekitError
from pilekit.train.config import load_config
from pilekit.train.estimate import estimate, table
from pilekit.train.run_folder import open_run
from tests.tiny import tiny_model
from tests.train.runs import tiny_run

MAIN = [sys.executable, "-c", "from pilekit.cli.main import main; main()"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a tokenizer, the shape of a model, and a config that names them."""
    return tiny_run(tmp_path_factory.mktemp("made"), steps=4, micro_batch_size=2)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(made: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, [str(made / "tiny.toml"), *arguments])


def steps_of(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_and_what_it_leaves(made: Path, here: Path) -> None:
    result = train(made)
    assert result.exit_code == 0, result.output
    said = result.stdout.splitlines()
    assert re.fullmatch(r"4 steps done, 512 tokens: loss \d\.\d{4}", said[0])
    assert said[1] == "the model is in runs/tiny/model; score it with: pilekit bpb runs/tiny/model"
    assert len(said) == 2
    assert result.stderr == ""
    run = here / "runs" / "tiny"
    assert steps_of(run) == [1, 2, 3, 4]
    assert {path.name for path in run.iterdir()} == {
        *(".lock", "pilekit.json", "config.toml", "metrics.jsonl", "checkpoints", "latest", "model")
    }
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-4"]
    assert (run / "model" / "config.json").exists()


def test_the_same_command_has_nothing_left_and_a_longer_one_goes_on(made: Path, here: Path) -> None:
    assert train(made, "--out", "a", "--set", "train.steps=2").exit_code == 0
    again = train(made, "--out", "a", "--set", "train.steps=2")
    assert again.stdout.splitlines()[0] == "2 steps done, 256 tokens: nothing was left to train"
    longer = train(made, "--out", "a", "--set", "train.steps=3")
    assert longer.stdout.startswith("3 steps done, 384 tokens: loss ")
    assert steps_of(here / "a") == [1, 2, 3]


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(made: Path, here: Path) -> None:
    result = train(made, "--dry-run", "--set", 'data.subsets=["arxiv", "GitHub"]')
    assert result.exit_code == 0, result.output
    said = {line[:11].strip(): line[11:] for line in result.stdout.splitlines()}
    assert list(said) == ["run", "data", "tokenizer", "model", "ranks", "memory", "step", "in all", "dry run"]
    parameters = sum(parameter.numel() for parameter in tiny_model().parameters())
    assert said["run"] == "runs/tiny (new)"
    assert re.fullmatch(rf"2 shards, [\d.]+ kB stored, in {made}/data: ArXiv, Github", said["data"])
    assert said["tokenizer"].startswith(f"{made}/tokenizer/tokenizer.json, 300 ids (")
    assert said["model"] == f"config {made}/shape: {parameters:,} parameters"
    assert said["ranks"] == "1; a restart may use 2"
    peak = estimate(load_config(made / "tiny.toml"), 1).stages[0].device
    assert said["memory"] == f"{decimal(peak)} of each rank at the most (--estimate says for what)"
    assert said["step"] == "4 rows x 32 = 128 tokens, 2 x 2 rows at a time"
    assert said["in all"] == "4 steps, 512 tokens"
    assert list(here.iterdir()) == []


def test_a_dry_run_of_many_ranks(made: Path, here: Path) -> None:
    result = train(made, "--dry-run", "--nproc-per-node", "2", "--set", "train.global_batch_size=24")
    assert result.exit_code == 0, result.output
    said = {line[:11].strip(): line[11:] for line in result.stdout.splitlines()}
    assert said["ranks"] == "2; a restart may use 1, 3, 4, 6, 12"
    assert said["step"] == "24 rows x 32 = 768 tokens, 6 x 2 rows at a time in each rank"
    assert list(here.iterdir()) == []


def test_an_estimate_for_people_and_for_programs(made: Path, here: Path) -> None:
    options = ["--estimate", "--nproc-per-node", "2", "--set", "parallel.zero=2"]
    config = load_config(made / "tiny.toml", ["parallel.zero=2"])
    result = train(made, *options)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == table(estimate(config, 2))
    assert json.loads(train(made, *options, "--json").stdout) == msgspec.to_builtins(estimate(config, 2))
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nproc-per-node", "3"], "train.global_batch_size = 4: 3 ranks cannot share it"),
        (["--nproc-per-node", "4"], "train.global_batch_size = 4: 4 ranks cannot share it in micro-batches of 2"),
        (["--nproc-per-node", "2", "--set", "optimizer.lr=nan"], "optimizer.lr = NaN: Expected `float` > 0"),
        (["--nproc-per-node", "2", "--resume", "nowhere"], 'checkpoint.resume = "nowhere": is no checkpoint'),
    ],
)
def test_what_is_wrong_is_told_before_a_rank_is_started(
    made: Path, here: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.setattr("pilekit.train.launch.launch.launch", lambda *arguments: pytest.fail("it was launched"))
    for mode in ([], ["--dry-run"], ["--estimate"]):
        result = train(made, *options, *mode)
        assert isinstance(result.exception, PilekitError)
        assert message in str(result.exception)
        assert "\n" not in str(result.exception)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "nproc", "restarts"),
    [(["--nproc-per-node", "2"], 2, 0), (["--max-restarts", "3"], 1, 3), (["--nproc-per-node=1"], None, None)],
)
@pytest.mark.parametrize(("code", "ends_with"), [(0, 0), (130, 1), (1, 1)])
def test_ranks_are_launched_with_the_options_of_the_command(
    made: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    nproc: int | None,
    restarts: int | None,
    code: int,
    ends_with: int,
) -> None:
    calls: list[tuple[int, list[str], int]] = []
    trained: list[object] = []

    def launch(*call: Any) -> int:
        calls.append(call)
        return code

    monkeypatch.setattr("pilekit.train.launch.launch.launch", launch)
    monkeypatch.setattr("pilekit.cli.train._train", lambda *call: trained.append(call))
    result = train(made, "--set", "train.steps=9", "--resume", "never", *options)
    if nproc is None:
        assert (len(trained), calls, result.exit_code) == (1, [], 0)
        return
    changes = ["--set", "train.steps=9", "--set", "checkpoint.resume=never"]
    assert calls == [(nproc, [str(made / "tiny.toml"), *changes, "--out", "runs/tiny"], restarts)]
    assert result.exit_code == ends_with  # the command group makes 130 of an interrupt
    assert (trained, result.stdout) == ([], "")


def test_a_rank_is_not_a_launcher(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for options in (["--nproc-per-node", "2"], ["--max-restarts", "1"]):
        result = train(made, *options)
        assert result.exit_code == 2
        assert "this process is a rank already, as $RANK and $WORLD_SIZE say" in result.stderr
    for mode in ("--dry-run", "--estimate"):
        assert train(made, mode).output == ""  # rank 0 says it
    monkeypatch.setenv("RANK", "0")
    assert "\nranks      2; a restart may use 1\n" in train(made, "--dry-run").output


def test_a_dry_run_says_whether_it_would_go_on(made: Path, here: Path) -> None:
    assert train(made, "--set", "checkpoint.every=2").exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    for changes, start in (
        ([], "has done its 4 steps"),
        (["--set", "train.steps=9"], "goes on after step 4"),
        (["--out", "b"], "new"),
    ):
        assert f"({start})" in train(made, "--dry-run", *changes).stdout.splitlines()[0]
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before


@pytest.mark.parametrize("arguments", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.path=nowhere"], "nowhere: no such file or folder"),
        (["data.tokenizer=nowhere"], "no tokenizer 'nowhere'"),
        (["data.manifest=nowhere"], "no manifest is called nowhere"),
        (['data.subsets=["ArXif"]'], 'unknown subset "ArXif" .* "ArXiv"|ArXiv'),
        (["data.seq_len=33"], "33"),
        (["train.steps=0"], r"--set: train.steps = 0: Expected `int` >= 1"),
        (["train.stesp=1"], r'--set: unknown key train.stesp: did you mean "steps"\?'),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    made: Path, here: Path, arguments: list[str], changes: list[str], message: str
) -> None:
    result = train(made, *arguments, *(word for change in changes for word in ("--set", change)))
    assert isinstance(result.exception, PilekitError)
    assert re.search(message, str(result.exception))
    assert "\n" not in str(result.exception)
    assert result.stdout == ""
    assert list(here.iterdir()) == []


def test_a_folder_that_is_something_else_is_refused(made: Path, here: Path) -> None:
    (here / "thesis").mkdir()
    (here / "thesis" / "chapter-1.txt").write_text("It was a dark and stormy night.")
    for arguments in (["--dry-run"], []):
        result = train(made, "--out", "thesis", *arguments)
        assert "thesis: holds something that is not a run (chapter-1.txt)" in str(result.exception)
    assert [path.name for path in (here / "thesis").iterdir()] == ["chapter-1.txt"]


def test_a_run_that_another_holds_is_refused(made: Path, here: Path) -> None:
    with open_run(here / "runs" / "tiny", load_config(made / "tiny.toml")):
        result = train(made)
    assert isinstance(result.exception, PilekitError)
    assert f"another process (process {os.getpid()}) trains in this folder" in str(result.exception)


@pytest.mark.parametrize(
    "arguments", [[], ["--set"], ["run.toml", "more"], ["run.toml", "--steps", "5"], ["a", "--json"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(command, arguments).exit_code == 2


def test_a_wrong_config_is_told_before_torch_is_imported(made: Path, here: Path) -> None:
    program = (
        "import sys\nfrom pilekit.cli.main import main\n"
        "try:\n    main()\nfinally:\n    assert not {'torch', 'transformers'} & sys.modules.keys()\n"
    )
    arguments = ["train", str(made / "tiny.toml"), "--set", "optimizer.lr=nan"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.stderr == "error: --set: optimizer.lr = NaN: Expected `float` > 0.0\n"
    assert (done.returncode, done.stdout) == (1, "")
    assert list(here.iterdir()) == []


def test_an_interrupted_run_exits_with_130_and_the_same_command_goes_on(made: Path, here: Path) -> None:
    arguments = ["train", str(made / "tiny.toml"), "--set", "train.steps=100000"]
    metrics = here / "runs" / "tiny" / "metrics.jsonl"
    with subprocess.Popen([*MAIN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert process.returncode == 130, stderr
    said = re.search(r"^stopped after step ([\d,]+) of 100,000, which is saved; the same command goes on", stderr, re.M)
    assert said is not None, stderr
    assert "Traceback" not in stderr
    assert stdout == ""
    done = int(said[1].replace(",", ""))
    assert steps_of(metrics.parent) == list(range(1, done + 1))
    result = train(made, "--set", f"train.steps={done + 2}")
    assert result.exit_code == 0, result.output
    assert steps_of(metrics.parent) == list(range(1, done + 3))
