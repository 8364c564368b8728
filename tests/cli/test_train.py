"""`pilekit train`: its output, its files, how it stops and resumes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result
from rich.filesize import decimal

from pilekit.cli.main import main
from pilekit.tokenize.files.tokenize_corpus import tokenize_corpus
from pilekit.train.config.file import load_config
from pilekit.train.estimate import estimate, table
from tests.cli.running import assert_told_before_torch, ended, refused, run
from tests.tiny.models import tiny_corpus, tiny_model
from tests.train.runs import tiny_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("made"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(made: Path, *arguments: str, exit_code: int = 0) -> Result:
    return run("train", made / "tiny.toml", *arguments, exit_code=exit_code)


def steps_of(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def start_of(dry_run: Result) -> str:
    return dry_run.stdout.splitlines()[0].partition("(")[2]


def test_a_run_its_files_and_how_it_resumes(made: Path, here: Path) -> None:
    result = train(made)
    lines = result.stdout.splitlines()
    assert re.fullmatch(r"4 steps done, 512 tokens: loss \d\.\d{4}", lines[0])
    assert lines[1:] == ["the model is in runs/tiny/model; score it with: pilekit bpb runs/tiny/model"]
    started = "1 rank, on cpu\norder: random over the whole corpus, document by document\nattention: sdpa\n"
    assert result.stderr == started
    run = here / "runs" / "tiny"
    assert steps_of(run) == [1, 2, 3, 4]
    assert (run / "model").is_dir()
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-4"]
    assert start_of(train(made, "--dry-run")) == "has done its 4 steps)"
    assert start_of(train(made, "--dry-run", "--set", "train.steps=9")) == "resumes after step 4)"
    trained = (run / "config.toml").read_bytes(), (run / "pilekit.json").read_bytes()
    for changes in ((), ("--set", "optimizer.lr=1")):
        again = train(made, *changes)
        assert again.stderr.startswith(f"{started}already done: an earlier run trained all steps")
        assert again.stdout.startswith("4 steps done, 512 tokens\n")
    assert ((run / "config.toml").read_bytes(), (run / "pilekit.json").read_bytes()) == trained
    assert train(made, "--set", "train.steps=5").stdout.startswith("5 steps done, 640 tokens: loss ")
    assert steps_of(run) == [1, 2, 3, 4, 5]


def test_a_branch_is_planned_trained_and_resumed(made: Path, here: Path) -> None:
    train(made, "--set", "checkpoint.every=2")
    Path("auto").symlink_to("runs/tiny/checkpoints/step-2")  # a path that is also a word of checkpoint.resume
    more = ("--set", "train.steps=6", "--out", "runs/branch")
    for origin, step in (("runs/tiny/checkpoints/step-4", 4), ("auto", 2)):
        planned = train(made, "--from", origin, *more, "--dry-run")
        assert start_of(planned) == f"branches from {origin} after step {step})"
    assert not Path("runs/branch").exists()
    origin = "runs/tiny/checkpoints/step-4"
    first = train(made, "--from", origin, *more)
    assert f"\nbranches from {origin}\n" in first.stderr
    assert first.stdout.startswith("6 steps done, ")
    assert steps_of(here / "runs/branch") == [5, 6]
    for again in (("--from", origin), ()):
        assert "branches" not in train(made, *again, *more).stderr
    assert "give one of them" in train(made, "--from", origin, "--resume", "auto", *more, exit_code=2).stderr
    tiny_corpus(here / "other", seed=9)
    elsewhere = ("train", made / "tiny.toml", "--from", origin, "--out", "runs/new")
    for mode in ((), ("--dry-run",)):
        refused("runs/new: cannot branch from .*step-4 with other data", *elsewhere, "--set", "data.path=other", *mode)
    weights = Path(origin, "__0_0.distcp")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    for mode in ((), ("--dry-run",)):
        refused("step-4: is not a good checkpoint: __0_0.distcp is not as it was written", *elsewhere, *mode)


def test_a_dry_run_shows_the_plan_and_writes_nothing(made: Path, here: Path) -> None:
    result = train(made, "--dry-run", "--set", 'data.subsets=["arxiv", "GitHub"]')
    plan = {line[:11].strip(): line[11:] for line in result.stdout.splitlines()}
    assert list(plan) == ["run", "data", "order", "tokenizer", "model", "ranks", "memory", "step", "in all", "dry run"]
    parameters = sum(parameter.numel() for parameter in tiny_model().parameters())
    assert plan["run"] == "runs/tiny (new)"
    assert re.fullmatch(rf"2 shards, [\d.]+ kB stored, in {made}/data: ArXiv, Github", plan["data"])
    assert plan["tokenizer"].startswith(f"{made}/tokenizer/tokenizer.json, 300 ids (")
    assert plan["model"] == f"{made}/shape: {parameters:,} parameters, attention by sdpa"
    assert plan["ranks"] == "1; a restart may use 2"
    assert plan["memory"].startswith(
        f"{decimal(estimate(load_config(made / 'tiny.toml'), 1).stages[0].device)} of each"
    )
    assert plan["step"] == "4 rows x 32 = 128 tokens, 2 x 2 rows at a time in each rank"
    assert plan["in all"] == "4 steps, 512 tokens"
    many = train(made, "--dry-run", "--nproc-per-node", "2", "--set", "train.global_batch_size=24").stdout
    assert "\nranks      2; a restart may use 1, 3, 4, 6, 12\n" in many
    assert "24 rows x 32 = 768 tokens, 6 x 2 rows at a time in each rank" in many
    tokenize_corpus(made / "data", made / "tokens" / "pile", made / "tokenizer")
    of_tokens = train(made, "--dry-run", "--set", f"data.path={made}/tokens/pile").stdout
    assert f"\ndata       2 shards in {made}/tokens: all subsets\n" in of_tokens
    assert list(here.iterdir()) == []


def test_a_dry_run_says_what_does_not_fit(made: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*changes: str, ranks: int = 1) -> dict[str, str]:
        settings = [word for change in changes for word in ("--set", change)]
        said = train(made, "--dry-run", "--nproc-per-node", str(ranks), *settings).stdout
        return {line[:11].strip(): line[11:] for line in said.splitlines()}

    fits = "config, shards, tokenizer, shape of the model and run folder fit"
    each = estimate(load_config(made / "tiny.toml"), 2).stages[0].device
    for limit, ranks, lacks in ((2 * each, 2, False), (2 * each - 1, 2, True), (each, 1, False)):
        monkeypatch.setattr("pilekit.train.estimate.memory_limit", lambda: limit)  # noqa: B023
        found = plan(ranks=ranks)
        assert found["dry run"] == f"{fits}{', but memory does not' if lacks else ''}; nothing was written"
        more = f"; too much here: {ranks} ranks of this machine would take {decimal(each * 2)}; it has "
        assert (more in found["memory"]) is lacks
    assert "none of them" not in plan()["tokenizer"]
    shape = json.loads((made / "shape" / "config.json").read_text()) | {"vocab_size": 3600}
    (here / "config.json").write_text(json.dumps(shape))
    wide = plan(f"model.config={here}/config.json")
    assert wide["tokenizer"].endswith(
        "; 3,300 of the model's 3,600 rows are none of them: is it the model's tokenizer?"
    )


def test_an_estimate_as_text_and_as_json(made: Path, here: Path) -> None:
    options = ["--estimate", "--nproc-per-node", "2", "--set", "parallel.zero=2"]
    expected = estimate(load_config(made / "tiny.toml", ["parallel.zero=2"]), 2)
    assert train(made, *options).stdout.splitlines()[1:] == str(table(expected)).splitlines()
    assert json.loads(train(made, *options, "--json").stdout) == msgspec.to_builtins(expected)
    assert list(here.iterdir()) == []


def test_a_wrong_config_is_one_line_before_any_rank_starts(
    made: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilekit.train.launch.launch.launch", lambda *arguments: pytest.fail("it was launched"))
    for options, message in (
        (["--nproc-per-node", "3"], "train.global_batch_size = 4: 3 ranks cannot share it"),
        (["--nproc-per-node", "2", "--from", "nowhere"], 'checkpoint.resume = "nowhere": is not a checkpoint'),
        (["--set", "data.path=nowhere"], "data.path: nowhere: no such file or folder"),
        (["--set", "data.tokenizer=nowhere"], "data.tokenizer: no tokenizer 'nowhere'"),
        (["--set", 'data.subsets=["ArXif"]'], "data.subsets: unknown subset .*ArXiv"),
        (["--set", "train.stesp=1"], r'--set: unknown key of train, "stesp"; did you mean steps\?'),
    ):
        for mode in ([], ["--dry-run"]):
            refused(message, "train", made / "tiny.toml", *options, *mode)
    assert list(here.iterdir()) == []
    for arguments in ([], ["run.toml", "more"], ["a", "--json"]):
        run("train", *arguments, exit_code=2)


def test_a_wrong_model_or_viewer_is_told_before_torch_is_imported(made: Path, here: Path) -> None:
    small = tiny_model().config
    (here / "few").mkdir()
    (here / "small.json").write_text(json.dumps({**small.to_dict(), "vocab_size": 20}))
    (here / "short.json").write_text(json.dumps({**small.to_dict(), "max_position_embeddings": 16}))
    (here / "broken.json").write_text("{")
    errors = {
        "model.config=no.json": "error: model.config: no.json: cannot be read: No such file or directory",
        "model.config=few": "error: model.config: few/config.json: cannot be read: No such file or directory",
        "model.config=broken.json": "error: model.config: broken.json: is not JSON",
        "model.config=short.json": "error: model.config short.json: has 16 positions and data.seq_len is ",
        "model.config=small.json": "error: model.config small.json: vocabulary larger than the embeddings: the ",
        "model.path=nowhere": "error: model.path: nowhere: there is no such model",
        "model.path=few": "error: model.path: few: has no config.json",
        "data.tokenizer=few": "error: data.tokenizer: no tokenizer.json in the folder few",
        "log.wandb=true": "error: log.wandb = true: there is no API key; run `wandb login`",
    }
    environment = {name: value for name, value in os.environ.items() if not re.match("WANDB|NETRC", name)}
    commands = {f"train {made}/tiny.toml --set {change}": error for change, error in errors.items()}
    assert_told_before_torch(commands, environment | {"HOME": str(here)})
    assert not (here / "runs").exists()


def test_ranks_are_launched_with_the_options_of_the_command(
    made: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, list[str], int]] = []
    codes = iter([0, 130, 1])

    def launch(*call: Any) -> int:
        calls.append(call)
        return next(codes)

    monkeypatch.setattr("pilekit.train.launch.launch.launch", launch)
    for options, nproc, restarts, ends_with in (
        (["--nproc-per-node", "2"], 2, 0, 0),
        (["--nproc-per-node", "2"], 2, 0, 1),  # The command group turns an interrupt into 130.
        (["--max-restarts", "3"], 1, 3, 1),
    ):
        result = train(made, "--set", "train.steps=9", "--resume", "never", *options, exit_code=ends_with)
        changes = ["--set", "train.steps=9", "--set", "checkpoint.resume=never", "--set", "schedule.warmup=0"]
        assert calls.pop() == (nproc, [str(made / "tiny.toml"), *changes, "--out", "runs/tiny"], restarts)
        assert result.stdout == ""


def test_a_rank_does_not_launch_and_only_rank_0_prints(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for options in (["--nproc-per-node", "2"], ["--max-restarts", "1"]):
        told = train(made, *options, exit_code=2).stderr
        assert "this process is a rank already, as $RANK and $WORLD_SIZE say" in told
    assert train(made, "--dry-run").output == train(made, "--estimate").output == ""
    monkeypatch.setenv("RANK", "0")
    assert "\nranks      2; a restart may use 1\n" in train(made, "--dry-run").output


def test_an_interrupted_run_exits_with_130_and_the_same_command_resumes(
    made: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pilekit", "train", str(made / "tiny.toml"), "--set", "train.steps=100000"])
    metrics = here / "runs" / "tiny" / "metrics.jsonl"

    def interrupt() -> None:
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with ended() as end:
        main()
    thread.join()
    stdout, stderr = capsys.readouterr()
    assert (end.value.code, stdout) == (130, ""), stderr
    saved = re.search(r"^stopped after step ([\d,]+) of 100,000, which is saved; the same command", stderr, re.M)
    assert saved is not None, stderr
    done = int(saved[1].replace(",", ""))
    assert steps_of(metrics.parent) == list(range(1, done + 1))
    train(made, "--set", f"train.steps={done + 2}")
    assert steps_of(metrics.parent) == list(range(1, done + 3))
