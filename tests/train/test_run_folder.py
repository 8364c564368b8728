"""The run folder: one process writes it, nothing foreign is touched, and a checkpoint only meets a config that fits."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilekit.artifacts.header import read_header, write_header
from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.train.checkpoint.folders import point_to
from pilekit.train.checkpoint.manifest import Progress, own_sums, write_state
from pilekit.train.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    TrainSection,
    load_config,
    sections,
    to_toml,
)
from pilekit.train.run_folder import (
    FIXED,
    RunFolder,
    check_resumable,
    check_start,
    open_run,
    run_of,
    take_config,
)

CONFIG = TrainConfig(
    data=DataConfig(path="x.jsonl", tokenizer="tokenizer.json", subsets=["ArXiv", "Github"]),
    model=ModelConfig(preset="pythia-14m"),
    train=TrainSection(steps=50),
)


def replaced(field: str, value: Any) -> TrainConfig:
    section, _, key = field.partition(".")
    part = msgspec.structs.replace(getattr(CONFIG, section), **{key: value})
    return msgspec.structs.replace(CONFIG, **{section: part})


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, with the bytes of files."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def begun(path: Path, config: TrainConfig = CONFIG, *, step: int | None = 10) -> RunFolder:
    """A run as an earlier process left it."""
    with open_run(path, config) as run:
        take_config(run, config, None)
        run.metrics_file.write_text("{}\n")
        if step is not None:
            checkpoint(run.checkpoints / f"step-{step}", config)
    return run


def checkpoint(folder: Path, config: TrainConfig) -> Path:
    """A checkpoint as a run with this config writes it, but for its tensors."""
    folder.mkdir(parents=True)
    for name in ("__0_0.distcp", ".metadata"):
        (folder / name).write_bytes(b"x")
    progress = Progress(int(folder.name.removeprefix("step-")), 100, {}, 1)
    write_state(folder, progress, msgspec.to_builtins(config), own_sums(folder, 0))
    return folder


# The folder


def test_a_new_folder_is_made_and_marked(tmp_path: Path) -> None:
    with open_run(tmp_path / "runs" / "a", CONFIG) as run:
        assert run == RunFolder(tmp_path / "runs" / "a")
        assert read_header(run.path).kind == "run"
        assert sorted(path.name for path in run.path.iterdir()) == [".lock", "pilekit.json"]
    with open_run(str(run.path), CONFIG) as again:
        assert again == run


def test_where_things_are(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    names = {run.config_file: "config.toml", run.metrics_file: "metrics.jsonl", run.latest_file: "latest"}
    names |= {run.checkpoints: "checkpoints", run.model: "model"}
    assert {path.relative_to(tmp_path): path.name for path in names} == {Path(name): name for name in names.values()}


def test_a_search_for_shards_does_not_take_metrics_for_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    begun(tmp_path / "runs" / "a")
    assert [shard.name for shard in Corpus(str(tmp_path)).shards] == ["a.jsonl"]


def test_an_empty_folder_and_what_a_killed_start_left_are_taken(tmp_path: Path) -> None:
    with open_run(tmp_path, CONFIG) as run:
        pass
    (tmp_path / "pilekit.json").rename(tmp_path / "pilekit.json.4711.partial")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "pilekit.json.4711.partial"]
    with open_run(tmp_path, CONFIG) as again:
        assert again == run
        assert read_header(tmp_path).kind == "run"


def test_a_link_to_a_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "run").symlink_to("there")
    with open_run(tmp_path / "run", CONFIG):
        assert (tmp_path / "there" / "pilekit.json").exists()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda path: path.write_text("x"), "is no folder"),
        (lambda path: path.symlink_to("nowhere"), "is no folder"),
        (lambda path: os.mkfifo(path), "is no folder"),
        (lambda path: (path / "text").mkdir(parents=True), r"holds something that is not a run \(text\)"),
        (lambda path: (path / "\x1b[31m").mkdir(parents=True), r"holds something that is not a run \(\\x1b\[31m\)"),
        (lambda path: write_header(path, kind="index", parameters={}, inputs={}), 'header of kind "index", not "run"'),
        (lambda path: (path.mkdir(), (path / "pilekit.json").write_text("{")), "is not a header of pilekit"),
    ],
)
def test_what_is_something_else_is_refused_and_left_alone(tmp_path: Path, made: Any, message: str) -> None:
    path = tmp_path / "run"
    made(path)
    before = sorted(tmp_path.rglob("*"))
    for attempt in (lambda: open_run(path, CONFIG).__enter__(), lambda: check_start(RunFolder(path), CONFIG)):
        with pytest.raises(PilekitError, match=message) as raised:
            attempt()
        assert "\n" not in str(raised.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("path", ["file/run", "a\0b", "file"])
def test_what_cannot_be_made_is_one_line(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(PilekitError, match="name another with --out") as raised, open_run(tmp_path / path, CONFIG):
        pass
    assert "\n" not in str(raised.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


# The lock


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the run."""
    program = (
        "import sys\nfrom pilekit.train.config import TrainConfig, TrainSection\n"
        "from pilekit.train.run_folder import open_run\n"
        "with open_run(sys.argv[1], TrainConfig(train=TrainSection(steps=1))):\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    with holder(tmp_path / "run") as process:
        before = contents(tmp_path)
        with (
            pytest.raises(PilekitError, match=rf"run: another process \(process {process.pid}\) trains in this folder"),
            open_run(tmp_path / "run", CONFIG),
        ):
            pass
        assert contents(tmp_path) == before
        process.send_signal(signal.SIGKILL)
        process.wait()
        with open_run(tmp_path / "run", CONFIG):
            assert (tmp_path / "run" / ".lock").read_text() == f"{os.getpid()}\n"


def test_the_lock_is_free_after_the_block_however_it_ends(tmp_path: Path) -> None:
    for end in (lambda: None, lambda: (_ for _ in ()).throw(KeyboardInterrupt)):
        try:
            with open_run(tmp_path, CONFIG):
                end()
        except KeyboardInterrupt:
            pass
    with open_run(tmp_path, CONFIG):
        pass


def test_of_many_at_once_one_gets_it(tmp_path: Path) -> None:
    ready, done = threading.Barrier(8), threading.Barrier(8)
    got: list[RunFolder] = []
    refused: list[str] = []

    def attempt() -> None:
        ready.wait()
        try:
            with open_run(tmp_path / "run", CONFIG) as run:
                got.append(run)
                done.wait()
        except PilekitError as error:
            refused.append(str(error))
            done.wait()

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 7)
    assert all("another process" in line for line in refused)


# The start


def test_a_new_run_gets_the_config_with_all_defaults(tmp_path: Path) -> None:
    with open_run(tmp_path, CONFIG) as run:
        take_config(run, CONFIG, None)
    assert load_config(run.config_file) == CONFIG


def test_newest_step_is_the_largest_number_of_a_whole_name(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.newest_step() is None
    assert not run.is_begun
    for name in ("step-9", "step-10", "step-11.partial", "step-", "step-x", "12", "step--13"):
        (run.checkpoints / name).mkdir(parents=True)
    assert run.newest_step() == 10
    assert run.is_begun


@pytest.mark.parametrize("step", [None, 10])
def test_never_resume_refuses_a_run_that_has_something(tmp_path: Path, step: int | None) -> None:
    run = begun(tmp_path, step=step)
    before = contents(tmp_path)
    never = replaced("checkpoint.resume", "never")
    for attempt in (partial(check_start, run, never), partial(take_config, run, never, None)):
        with pytest.raises(PilekitError, match=r'holds a run already, and checkpoint.resume is "never"; name another'):
            attempt()
    assert contents(tmp_path) == before


def test_never_resume_takes_a_run_that_has_nothing_yet(tmp_path: Path) -> None:
    with open_run(tmp_path, CONFIG) as run:
        run.metrics_file.touch()  # as a start leaves it that failed before its first step
        take_config(run, replaced("checkpoint.resume", "never"), None)
    assert load_config(run.config_file).checkpoint.resume == "never"


OTHER: dict[str, Any] = {
    "data.path": "y.jsonl",
    "data.manifest": "demo",
    "data.tokenizer": "other.json",
    "data.seq_len": 16,
    "data.subsets": ["ArXiv"],
    "data.repeats": {"ArXiv": 2.0},
    "data.dedup": "dedup",
    "data.on_error": "skip",
    "data.packing": "concat",
    "data.window": 16,
    "data.lanes": (8, 4),
    "data.seed": 1,
    "data.workers": 2,
    "data.attention": "causal",
    "model.preset": "pythia-70m",
    "model.config": "config.json",
    "model.path": "model",
    "train.steps": 60,
    "train.tokens": 10**6,
    "train.global_batch_size": 64,
    "train.micro_batch_size": 4,
    "train.objective": "mlm",
    "train.clip_norm": 2.0,
    "train.seed": 1,
    "train.eval_every": 10,
    "train.eval_path": "val.jsonl",
    "train.eval_limit": 10,
    "optimizer.lr": 1e-3,
    "optimizer.betas": (0.9, 0.99),
    "optimizer.eps": 1e-6,
    "optimizer.weight_decay": 0.0,
    "optimizer.layer_decay": 0.9,
    "optimizer.lr_by_pattern": {"*.bias": 1e-5},
    "schedule.kind": "constant",
    "schedule.warmup": 5,
    "schedule.min_lr": 1e-5,
    "schedule.power": 3.0,
    "schedule.decay_share": 0.5,
    "parallel.engine": "deepspeed",
    "parallel.zero": 3,
    "parallel.offload": True,
    "parallel.activation_checkpoint": "full",
    "parallel.compile": True,
    "precision.dtype": "bf16",
    "precision.loss_scale": 1024.0,
    "precision.loss_scale_window": 10,
    "precision.loss_scale_hysteresis": 1,
    "precision.loss_scale_floor": 2.0,
    "checkpoint.dir": "elsewhere",
    "checkpoint.every": 5,
    "checkpoint.keep_last": 5,
    "checkpoint.asynchronous": False,
    "checkpoint.resume": "never",
    "log.every": 5,
    "log.tensorboard": True,
    "log.profile": (3, 5),
}


def test_every_field_has_another_value_here() -> None:
    assert list(OTHER) == [name for name, _ in sections.values(CONFIG)]


@pytest.mark.parametrize("field", OTHER)
def test_a_checkpoint_meets_only_a_config_that_fits(field: str) -> None:
    new = replaced(field, OTHER[field])
    assert new != CONFIG
    if field in FIXED:
        with pytest.raises(PilekitError, match=f"^{field} = .*: the run's checkpoint was made with ") as raised:
            check_resumable(CONFIG, new)
        assert "\n" not in str(raised.value)
    else:
        check_resumable(CONFIG, new)


def test_the_error_names_both_values() -> None:
    with pytest.raises(PilekitError, match=r'^model.preset = "pythia-70m": .* made with "pythia-14m", and '):
        check_resumable(CONFIG, replaced("model.preset", "pythia-70m"))


def test_another_spelling_is_not_another_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_resumable(CONFIG, replaced("data.subsets", ["git_hub", "arxiv"]))
    monkeypatch.chdir(tmp_path)
    here = TrainConfig(model=ModelConfig(path="x/model"), train=TrainSection(steps=1))
    check_resumable(here, msgspec.structs.replace(here, model=ModelConfig(path=str(tmp_path / "x" / "model"))))
    check_resumable(here, msgspec.structs.replace(here, model=ModelConfig(path="./x//model/")))
    with pytest.raises(PilekitError, match=r"^model.path = "):
        check_resumable(here, msgspec.structs.replace(here, model=ModelConfig(path="y/model")))


def test_going_on_with_a_config_that_does_not_fit_writes_nothing(tmp_path: Path) -> None:
    run = begun(tmp_path)
    before = contents(tmp_path)
    other = replaced("train.seed", 1)
    for attempt in (partial(check_start, run, other), partial(take_config, run, other, run.checkpoints / "step-10")):
        with pytest.raises(PilekitError, match=r"^train.seed = 1: "):
            attempt()
    assert contents(tmp_path) == before


def test_what_may_change_is_told_and_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = begun(tmp_path)
    new = msgspec.structs.replace(replaced("train.steps", 60), optimizer=OptimizerConfig(lr=1e-3))
    take_config(run, new, run.checkpoints / "step-10")
    assert load_config(run.config_file) == new
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: goes on with train.steps = 60, which was 50",
        f"{tmp_path}: goes on with optimizer.lr = 0.001, which was 0.0003",
    ]
    caplog.clear()
    take_config(run, new, run.checkpoints / "step-10")
    assert caplog.records == []


def test_without_a_checkpoint_any_config_begins_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = begun(tmp_path, step=None)
    take_config(run, replaced("model.preset", "pythia-70m"), None)
    assert load_config(run.config_file).model.preset == "pythia-70m"
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: has no checkpoint to go on from, so it begins anew"
    ]


def test_checkpoints_that_are_all_damaged_are_not_trained_over(tmp_path: Path) -> None:
    run = begun(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(PilekitError, match="none of its checkpoints is whole; remove the folder checkpoints"):
        take_config(run, CONFIG, None)
    assert contents(tmp_path) == before


def test_a_stored_config_that_was_broken_is_named(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.config_file.write_text("[train]\nsteps = ")
    with pytest.raises(PilekitError, match=r"config.toml: is not TOML"):
        check_start(run, CONFIG)


def test_a_stored_config_that_is_gone_leaves_the_checkpoint_to_say_what_fits(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.config_file.unlink()
    take_config(run, CONFIG, run.checkpoints / "step-10")
    assert load_config(run.config_file) == CONFIG


# Checkpoints elsewhere


def test_checkpoints_may_lie_elsewhere(tmp_path: Path) -> None:
    config = replaced("checkpoint.dir", str(tmp_path / "shared" / "a"))
    run = begun(tmp_path / "run", config)
    assert run == run_of(tmp_path / "run", config)
    assert run.checkpoints == tmp_path / "shared" / "a"
    assert run.newest_step() == 10
    assert not (run.path / "checkpoints").exists()
    check_start(run, config)
    point_to(run.latest_file, run.checkpoints / "step-10")
    assert run.latest_file.read_text() == f"{tmp_path}/shared/a/step-10\n"


def test_a_folder_of_checkpoints_has_one_run_at_a_time(tmp_path: Path) -> None:
    config = replaced("checkpoint.dir", str(tmp_path / "shared"))
    with open_run(tmp_path / "a", config):
        with (
            pytest.raises(
                PilekitError, match=r'^checkpoint.dir = ".*": another process .* trains in this folder'
            ) as raised,
            open_run(tmp_path / "b", config),
        ):
            pass
        assert str(raised.value).endswith("or name another with checkpoint.dir")
    with open_run(tmp_path / "b", config):
        pass
    with open_run(tmp_path / "b", replaced("checkpoint.dir", str(tmp_path / "b"))):  # the run's own folder
        pass


def test_a_folder_of_checkpoints_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    config = replaced("checkpoint.dir", str(tmp_path / "file" / "x"))
    with (
        pytest.raises(
            PilekitError, match=r'^checkpoint.dir = ".*": cannot be made the folder of checkpoints: Not a dir'
        ),
        open_run(tmp_path / "run", config),
    ):
        pass


def test_a_run_does_not_lose_its_checkpoints_by_another_dir(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    moved = replaced("checkpoint.dir", str(tmp_path / "new"))
    with pytest.raises(
        PilekitError, match=r'^checkpoint.dir = ".*": the run\'s checkpoints are in .*run/checkpoints; move'
    ):
        check_start(run_of(run.path, moved), moved)
    same = replaced("checkpoint.dir", str(run.checkpoints / ".." / "checkpoints"))
    check_start(run_of(run.path, same), same)
    run.checkpoints.rename(tmp_path / "new")
    check_start(run_of(run.path, moved), moved)
    run.config_file.write_text(to_toml(moved))
    with pytest.raises(
        PilekitError, match=r"^checkpoint.dir = \(not given\): the run's checkpoints are in .*new; move"
    ):
        check_start(run, CONFIG)


# A run that begins from another's checkpoint


def test_a_new_run_begins_from_the_checkpoint_of_another_and_goes_on_from_its_own(tmp_path: Path) -> None:
    first = begun(tmp_path / "first").checkpoints / "step-10"
    config = replaced("checkpoint.resume", str(first))
    run = run_of(tmp_path / "second", config)
    for _ in range(2):  # the second time after it was killed before it saved
        check_start(run, config)
        begun(run.path, config, step=None)
    checkpoint(run.checkpoints / "step-12", config)
    check_start(run, config)
    check_start(run, CONFIG)  # "auto"


def test_only_a_run_that_began_from_it_goes_on_under_the_same_command(tmp_path: Path) -> None:
    first = begun(tmp_path / "first").checkpoints / "step-10"
    second = begun(tmp_path / "second")
    with pytest.raises(
        PilekitError, match=r'^checkpoint.resume = ".*step-10": .*second has checkpoints already, and did'
    ):
        check_start(second, replaced("checkpoint.resume", str(first)))


def test_the_checkpoint_of_another_run_meets_only_a_config_that_fits(tmp_path: Path) -> None:
    first = begun(tmp_path / "first", replaced("train.clip_norm", math.inf)).checkpoints / "step-10"
    config = replaced("checkpoint.resume", str(first))
    other = msgspec.structs.replace(config, model=ModelConfig(preset="pythia-70m"))
    with pytest.raises(PilekitError, match=r'^model.preset = "pythia-70m": .* made with "pythia-14m", and '):
        check_start(run_of(tmp_path / "second", other), other)


def test_what_is_no_checkpoint_is_told_with_one_that_is(tmp_path: Path) -> None:
    first = begun(tmp_path / "first")
    for given, told in (
        (first.path, "give the path of a step-N folder there, such as step-10,"),
        (first.checkpoints, "give the path of a step-N folder there, such as step-10,"),
        (tmp_path / "nothing", 'give the path of a step-N folder, "auto" or "never"'),
        (tmp_path / "a\x1bb", 'give the path of a step-N folder, "auto" or "never"'),
    ):
        config = replaced("checkpoint.resume", str(given))
        with pytest.raises(PilekitError, match=re.escape(told)) as raised:
            check_start(run_of(tmp_path / "second", config), config)
        assert str(raised.value).startswith('checkpoint.resume = "')
        assert str(raised.value).isprintable()
    assert not (tmp_path / "second").exists()


def test_a_damaged_checkpoint_is_not_begun_from(tmp_path: Path) -> None:
    first = begun(tmp_path / "first").checkpoints / "step-10"
    content = (first / "state.json").read_bytes()
    (first / "state.json").write_bytes(content.replace(b"pythia-14m", b"pythia-31m"))
    config = replaced("checkpoint.resume", str(first))
    with pytest.raises(
        PilekitError, match=r'^checkpoint.resume = ".*step-10": is not a good checkpoint: .*; give another'
    ):
        check_start(run_of(tmp_path / "second", config), config)
