"""The run folder: one process writes it, foreign files stay, and a checkpoint meets only a config that fits."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilekit.artifacts.header import read_header, write_header
from pilekit.errors import PilekitError
from pilekit.train.branches import Branch, began, branches_of, origin_of
from pilekit.train.checkpoint.state_file import Progress, own_sums, write_state
from pilekit.train.config import sections
from pilekit.train.config.file import load_config, to_toml
from pilekit.train.config.sections import TrainConfig
from pilekit.train.run_folder import RunFolder, open_run, run_of
from pilekit.train.start import BRANCH_MAY, FIXED, check_resumable, check_start, take_config
from tests.train.runs import small_config, warnings_of

CONFIG = small_config({"data.path": "x.jsonl", "data.subsets": ["ArXiv", "Github"], "train.steps": 50})


def replaced(field: str, value: Any, config: TrainConfig = CONFIG) -> TrainConfig:
    section, _, key = field.partition(".")
    part = msgspec.structs.replace(getattr(config, section), **{key: value})
    return msgspec.structs.replace(config, **{section: part})


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, with the bytes of files."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def begun(path: Path, config: TrainConfig = CONFIG, *, step: int | None = 10, origin: Path | None = None) -> RunFolder:
    """A run as an earlier process left it; a branch from step 10 of another with the checkpoint `origin`."""
    with open_run(path, config) as run:
        take_config(run, config, None if origin is None else 10, origin)
        run.metrics_file.write_text("{}\n")
        if step is not None:
            checkpoint(run.checkpoints / f"step-{step}", config)
    return run


def checkpoint(folder: Path, config: TrainConfig) -> Path:
    """A checkpoint as a run with this config writes it, without tensors."""
    folder.mkdir(parents=True)
    for name in ("__0_0.distcp", ".metadata"):
        (folder / name).write_bytes(b"x")
    progress = Progress(int(folder.name.removeprefix("step-")), 100, {}, 1)
    write_state(folder, progress, msgspec.to_builtins(config), own_sums(folder, 0))
    return folder


def refused(run: RunFolder, config: TrainConfig, message: str) -> str:
    """`check_start` fails with one line that matches, and writes nothing."""
    before = contents(run.path)
    with pytest.raises(PilekitError, match=message) as raised:
        check_start(run, config)
    assert contents(run.path) == before
    assert str(raised.value).isprintable()
    return str(raised.value)


# The folder and its lock


def test_a_new_folder_is_marked_and_a_killed_start_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "run").symlink_to("there")
    for _ in range(2):
        with open_run(str(tmp_path / "run"), CONFIG) as run:
            assert run == RunFolder(tmp_path / "run")
            assert read_header(run.path).kind == "run"
            assert sorted(path.name for path in run.path.iterdir()) == [".lock", "pilekit.json"]
    (run.path / ".lock").touch()
    (run.path / "pilekit.json").rename(run.path / "pilekit.json.4711.partial")
    with open_run(run.path, CONFIG):
        assert read_header(tmp_path / "there").kind == "run"


def test_another_kind_of_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    kinds: list[tuple[Any, str]] = [
        (lambda path: path.write_text("x"), "cannot be the folder of a run: Not a directory"),
        (lambda path: path.symlink_to("nowhere"), "holds something that is not a run"),
        (lambda path: (path / "\x1b[31m").mkdir(parents=True), r"holds something that is not a run \(\\x1b\[31m\)"),
        (lambda path: write_header(path, kind="index", parameters={}, inputs={}), 'of kind "index", not "run"'),
        (lambda path: (path.mkdir(), (path / "pilekit.json").write_text("{")), "is not a header of pilekit"),
    ]
    for number, (make, message) in enumerate(kinds):
        path = tmp_path / str(number)
        make(path)
        before = sorted(tmp_path.rglob("*"))
        for attempt in (open_run(path, CONFIG).__enter__, lambda: check_start(RunFolder(path), CONFIG)):  # noqa: B023
            with pytest.raises(PilekitError, match=message):
                attempt()
        assert sorted(tmp_path.rglob("*")) == before
    begun(tmp_path / "linked")
    shutil.rmtree(tmp_path / "linked/checkpoints")
    (tmp_path / "elsewhere/step-1").mkdir(parents=True)
    (tmp_path / "linked/checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PilekitError, match="linked/checkpoints: is a link"), open_run(tmp_path / "linked", CONFIG):
        pass
    for name in ("wandb", "model.partial", "model-ema"):
        begun(tmp_path / f"to {name}")
        (tmp_path / f"to {name}" / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(PilekitError, match=f"{name}: is a link"), open_run(tmp_path / f"to {name}", CONFIG):
            pass
    begun(tmp_path / "own")
    for name in ("models", "profiles.txt"):  # names of the user's own
        (tmp_path / "own" / name).symlink_to(tmp_path / "elsewhere")
    with open_run(tmp_path / "own", CONFIG):
        pass
    for name in ("0/run", "a\0b"):
        with pytest.raises(PilekitError, match="name another with --out"), open_run(tmp_path / name, CONFIG):
            pass


def test_a_second_start_is_refused_while_the_first_holds_the_folder(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", CONFIG):
        before = contents(tmp_path)
        message = r"run: another process trains in this folder; wait for it, or name .*--out"
        with pytest.raises(PilekitError, match=message), open_run(tmp_path / "run", CONFIG):
            pass
        assert contents(tmp_path) == before
    with open_run(tmp_path / "run", CONFIG):
        pass


# The config of a start


def test_never_resume_takes_only_a_run_without_results(tmp_path: Path) -> None:
    never = replaced("checkpoint.resume", "never")
    with open_run(tmp_path / "new", CONFIG) as run:
        run.metrics_file.touch()  # a start that failed before its first step
        check_start(run, never)
        take_config(run, never, None)
    assert load_config(run.config_file) == never  # with all defaults
    for step in (None, 10):
        message = r'holds a run already, and checkpoint.resume is "never"; name another'
        refused(begun(tmp_path / str(step), step=step), never, message)


OTHER: dict[str, Any] = {
    **{"data.path": "y.jsonl", "data.subsets": ["ArXiv"], "data.window": 16, "data.lanes": (8, 4), "data.workers": 2},
    **{"data.seq_len": 16, "data.packing": "concat", "data.seed": 1, "data.attention": "causal"},
    **{"model.preset": "pythia-70m", "model.config": "config.json", "model.path": "model", "model.adapter": "adapter"},
    **{"model.from_teacher": 2, "teacher.path": "other", "train.ema": 0.9},
    **{"lora.rank": 4, "lora.alpha": 8.0, "lora.targets": ["dense"]},
    **{"model.freeze": ["*.embed_in.*"], "optimizer.name": "muon", "optimizer.momentum": 0.9},
    **{"train.global_batch_size": 64, "train.objective": "mlm", "train.seed": 1, "train.steps": 7},
    **{"optimizer.betas": (0.9, 0.99), "optimizer.lr": 1e-3, "parallel.zero": 3, "precision.dtype": "bf16"},
}
"""Another value for every field that must not change, and for some others."""


def test_a_checkpoint_meets_only_a_config_that_fits() -> None:
    names = [name for name, _ in sections.values(CONFIG)]
    assert set(FIXED) <= OTHER.keys() <= set(names)
    for field, value in OTHER.items():
        new = replaced(field, value)
        assert new != CONFIG
        if field not in FIXED:
            check_resumable(CONFIG, new)
            continue
        with pytest.raises(PilekitError, match=f"^{field} = .*: the run's checkpoint was made with ") as raised:
            check_resumable(CONFIG, new)
        assert "\n" not in str(raised.value)


def test_another_spelling_is_not_another_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_resumable(CONFIG, replaced("data.subsets", ["git_hub", "arxiv"]))
    monkeypatch.chdir(tmp_path)
    here = small_config({"model.path": "x/model"})
    for same in (str(tmp_path / "x" / "model"), "./x//model/"):
        check_resumable(here, small_config({"model.path": same}))
    with pytest.raises(PilekitError, match=r"^model.path = "):
        check_resumable(here, small_config({"model.path": "y/model"}))


def test_a_config_that_does_not_fit_writes_nothing(tmp_path: Path) -> None:
    run = begun(tmp_path)
    refused(
        run, replaced("model.preset", "pythia-70m"), r'^model.preset = "pythia-70m": .* made with "pythia-14m", and '
    )
    run.config_file.write_text("[train]\nsteps = ")
    refused(run, CONFIG, r"config.toml: is not TOML")


def test_a_change_that_is_allowed_is_logged_and_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = begun(tmp_path / "run")
    new = load_config(CONFIG, {"train.steps": 60, "optimizer.lr": 1e-3})
    for _ in range(2):  # the second time, nothing differs
        take_config(run, new, 10)
        assert load_config(run.config_file) == new
    empty = begun(tmp_path / "empty", step=None)
    take_config(empty, replaced("model.preset", "pythia-70m"), None)
    assert load_config(empty.config_file).model.preset == "pythia-70m"
    assert caplog.messages == [
        f"{run.path}: resumes with train.steps = 60, which was 50",
        f"{run.path}: resumes with optimizer.lr = 0.001, which was 0.0003",
        f"{empty.path}: has no checkpoint to resume from, so it starts over",
    ]


# Checkpoints in another folder


def test_checkpoints_may_be_in_another_folder_of_one_run_at_a_time(tmp_path: Path) -> None:
    config = replaced("checkpoint.dir", str(tmp_path / "shared" / "a"))
    run = begun(tmp_path / "run", config)
    assert run == run_of(tmp_path / "run", config)
    assert run.checkpoints == tmp_path / "shared" / "a"
    assert run.newest_step() == 10
    assert not (run.path / "checkpoints").exists()
    check_start(run, config)
    with (
        open_run(tmp_path / "run", config),
        pytest.raises(PilekitError, match=r'^checkpoint.dir = ".*": another process trains .* with checkpoint.dir$'),
    ):
        open_run(tmp_path / "b", config).__enter__()
    with open_run(tmp_path / "b", replaced("checkpoint.dir", str(tmp_path / "b"))):  # the run's own folder
        pass
    (tmp_path / "file").write_text("x")
    with pytest.raises(PilekitError, match=r'^checkpoint.dir = ".*": cannot be made'):
        open_run(tmp_path / "b", replaced("checkpoint.dir", str(tmp_path / "file" / "x"))).__enter__()


def test_a_run_does_not_lose_its_checkpoints_to_another_folder(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    moved = replaced("checkpoint.dir", str(tmp_path / "new"))
    message = r'^checkpoint.dir = ".*": the run\'s checkpoints are in .*run/checkpoints; move'
    refused(run_of(run.path, moved), moved, message)
    same = replaced("checkpoint.dir", str(run.checkpoints / ".." / "checkpoints"))
    check_start(run_of(run.path, same), same)
    run.checkpoints.rename(tmp_path / "new")
    check_start(run_of(run.path, moved), moved)
    run.config_file.write_text(to_toml(moved))
    refused(run, CONFIG, r"^checkpoint.dir = \(not given\): the run's checkpoints are in .*new; move")


# A branch, which begins from another run's checkpoint


def test_a_branch_begins_from_the_checkpoint_of_another_run_and_resumes_from_its_own(tmp_path: Path) -> None:
    first = begun(tmp_path / "first", replaced("train.clip_norm", math.inf)).checkpoints / "step-10"
    config = replaced("checkpoint.resume", str(first))
    run = run_of(tmp_path / "second", config)
    for _ in range(2):  # the second time after it was killed before it saved
        check_start(run, config)
        begun(run.path, config, step=None, origin=first)
    assert origin_of(run, CONFIG) == origin_of(run, config) == first
    refused(run, replaced("checkpoint.resume", "never"), "holds a run already")
    checkpoint(run.checkpoints / "step-12", config)
    shutil.rmtree(tmp_path / "first")
    for same in (config, CONFIG, config):  # CONFIG has "auto"
        check_start(run, same)
        assert origin_of(run, same) is None
    checkpoint(first, CONFIG)
    message = r'^checkpoint.resume = ".*step-10["…]: .*third holds a run already, which did not begin from that checkp'
    for step in (10, None):
        refused(begun(tmp_path / "third", step=step), config, message)
        shutil.rmtree(tmp_path / "third")
    shutil.rmtree(tmp_path / "first")
    begun(tmp_path / "first")
    refused(RunFolder(tmp_path / "first"), config, "the folder of that checkpoint's own run; name another with --out")
    same_folder = load_config(config, {"checkpoint.dir": str(first.parent)})
    refused(run_of(tmp_path / "new", same_folder), same_folder, "name another with checkpoint.dir, or set it to")
    other = load_config(config, {"model.preset": "pythia-70m"})
    message = r'^model.preset = "pythia-70m": ".*step-10["…] was made with "pythia-14m", and no branch .* model.path'
    refused(run_of(tmp_path / "new", other), other, message)


def test_what_a_branch_may_change(tmp_path: Path) -> None:
    """All that a resumed run may change, and the seed of the steps; and steps count from the trunk's beginning."""
    first = begun(tmp_path / "first").checkpoints / "step-10"
    assert sorted(BRANCH_MAY) == ["train.seed"]
    branch = replaced("checkpoint.resume", str(first))
    for field, value in OTHER.items():
        if field == "train.steps":
            continue
        config = replaced(field, value, branch if field != "checkpoint.resume" else CONFIG)
        run = run_of(tmp_path / "new", config)
        if field in FIXED and field not in BRANCH_MAY:
            refused(run, config, rf"^{field} = .* was made with .*, and no branch of it can have another value")
        else:
            check_start(run, config)
    few = load_config(replaced("checkpoint.resume", str(first)), {"train.steps": 9})
    refused(run_of(tmp_path / "new", few), few, "^train.steps: 9 steps in all, and .*step-10. has done 10; steps")
    tokens = load_config(few, {"train.tokens": 2048 * 32 * 9})
    refused(run_of(tmp_path / "new", tokens), tokens, "^train.tokens: 9 steps in all, and .* has done 10")
    check_start(run_of(tmp_path / "new", few), load_config(few, {"train.steps": 10}))


def test_both_runs_name_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = replaced("checkpoint.dir", str(tmp_path / "elsewhere"))
    trunks = [begun(tmp_path / "first"), begun(tmp_path / "moved", elsewhere)]
    (tmp_path / "first/checkpoints/latest").symlink_to("step-10")
    for trunk, given in zip(trunks, ("first/checkpoints/latest", "elsewhere/step-10"), strict=True):
        assert branches_of(trunk) == []
        names = ["b", "a\nb", "\x1b[31m"]
        for name in [*names, "b"]:
            begun(Path("branches", trunk.path.name, name), step=None, origin=Path(given))
        found = branches_of(trunk)
        assert found == [Branch(10, f"{tmp_path}/branches/{trunk.path.name}/{name}") for name in sorted(names)]
        for branch in found:
            assert began(RunFolder(Path(branch.run))) == str(trunk.checkpoints / "step-10")
        assert began(trunk) is None
        (note, *_) = (trunk.checkpoints / "branches").iterdir()
        whole = note.read_text()
        for damage in (whole[:-20], whole.replace('"step": 10', '"step": "x"')):
            assert damage != whole
            note.write_text(damage)
            with pytest.raises(PilekitError, match=re.escape(str(note))):
                branches_of(trunk)
    # A trunk that cannot be written is no reason not to branch.
    shutil.rmtree(tmp_path / "first/checkpoints/branches")
    (tmp_path / "first/checkpoints/branches").write_text("")
    with warnings_of() as warned:
        begun(tmp_path / "c", step=None, origin=tmp_path / "first/checkpoints/step-10")
    assert any("does not name this branch" in record.getMessage() for record in warned)
    assert began(RunFolder(tmp_path / "c")) == f"{tmp_path}/first/checkpoints/step-10"


def test_a_branch_says_what_its_config_changes(tmp_path: Path) -> None:
    first = begun(tmp_path / "first").checkpoints / "step-10"
    config = load_config(replaced("checkpoint.resume", str(first)), {"optimizer.lr": 1e-5})
    with warnings_of() as warned:
        begun(tmp_path / "b", config, step=None, origin=first)
    (line,) = (record.getMessage() for record in warned)
    assert line == f"{tmp_path}/b: branches from {first} with optimizer.lr = 1e-05, which was 0.0003"


def test_a_path_that_is_not_a_good_checkpoint_is_named(tmp_path: Path) -> None:
    first = begun(tmp_path / "first")
    exported = tmp_path / "step-3"
    exported.mkdir()
    (exported / "config.json").write_text("{}")
    other_format = checkpoint(tmp_path / "old/step-4", CONFIG) / "state.json"
    other_format.write_text(json.dumps({"xxh3": "", "state": {"pilekit": "0.1"}}))
    for given, message in (
        (exported, "is an exported model, without optimizer and place in the data; give the path of a step-N folder,"),
        (first.checkpoints / "step-11", 'step-10", "auto" or'),
        (first.path, "give the path of a step-N folder there, such as step-10,"),
        (first.checkpoints, "give the path of a step-N folder there, such as step-10,"),
        (tmp_path / "b/a\x1bb", 'give the path of a step-N folder, "auto" or "never"'),
    ):
        config = replaced("checkpoint.resume", str(given))
        assert refused(run_of(tmp_path / "b", config), config, re.escape(message)).startswith('checkpoint.resume = "')
    other = replaced("checkpoint.resume", str(other_format.parent))
    refused(
        run_of(tmp_path / "b", other), other, r"step-4/state.json: .*format 2.*; resume with the pilekit that wrote"
    )
    state = first.checkpoints / "step-10" / "state.json"
    state.write_bytes(state.read_bytes().replace(b"pythia-14m", b"pythia-31m"))
    config = replaced("checkpoint.resume", str(state.parent))
    refused(
        run_of(tmp_path / "b", config), config, r'^checkpoint.resume = ".*step-10["…]: is not a good .*; give another'
    )
    assert not (tmp_path / "b").exists()
    assert [path.name for path in first.checkpoints.iterdir()] == ["step-10"]
