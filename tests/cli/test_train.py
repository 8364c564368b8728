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

import pytest
from click.testing import CliRunner, Result

from pilekit.cli.train import command
from pilekit.errors import PilekitError
from pilekit.train.config import load_config
from pilekit.train.run_folder import open_run
from tests.tiny import tiny_corpus, tiny_model, tiny_tokenizer

MAIN = [sys.executable, "-c", "from pilekit.cli.main import main; main()"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a tokenizer, the shape of a model, and a config that names them."""
    folder = tmp_path_factory.mktemp("made")
    tiny_corpus(folder / "data")
    tiny_tokenizer(folder / "tokenizer")
    tiny_model().config.save_pretrained(folder / "shape")
    (folder / "tiny.toml").write_text(f"""\
[data]
path = "{folder}/data"
tokenizer = "{folder}/tokenizer"
seq_len = 32
[model]
config = "{folder}/shape"
[train]
steps = 4
global_batch_size = 4
micro_batch_size = 2
""")
    return folder


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
    assert list(said) == ["run", "data", "tokenizer", "model", "memory", "step", "in all", "dry run"]
    parameters = sum(parameter.numel() for parameter in tiny_model().parameters())
    assert said["run"] == "runs/tiny (new)"
    assert re.fullmatch(rf"2 shards, [\d.]+ kB stored, in {made}/data: ArXiv, Github", said["data"])
    assert said["tokenizer"].startswith(f"{made}/tokenizer/tokenizer.json, 300 ids (")
    assert said["model"] == f"config {made}/shape: {parameters:,} parameters"
    assert said["memory"].startswith(f"{16 * parameters / 1000:.1f} kB for weights, gradients and optimizer")
    assert said["step"] == "4 rows x 32 = 128 tokens, 2 x 2 rows at a time"
    assert said["in all"] == "4 steps, 512 tokens"
    assert list(here.iterdir()) == []


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
        (["train.steps=0"], r"tiny.toml with --set: train.steps = 0: it must be at least 1"),
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


@pytest.mark.parametrize("arguments", [[], ["--set"], ["run.toml", "more"], ["run.toml", "--steps", "5"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(command, arguments).exit_code == 2


def test_a_wrong_config_is_told_before_torch_is_imported(made: Path, here: Path) -> None:
    program = (
        "import sys\nfrom pilekit.cli.main import main\n"
        "try:\n    main()\nfinally:\n    assert not {'torch', 'transformers'} & sys.modules.keys()\n"
    )
    arguments = ["train", str(made / "tiny.toml"), "--set", "optimizer.lr=nan"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.stderr == f"error: {made}/tiny.toml with --set: optimizer.lr = nan: it must be finite\n"
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
