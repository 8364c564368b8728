"""Branches with other settings, other data, and a trunk that trains on, loses its checkpoints, or is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pilekit import seen
from pilekit.train.branches import Branch, began, branches_of
from pilekit.train.config.file import load_config
from pilekit.train.run_folder import RunFolder
from pilekit.train.step.schedule import learning_rate
from pilekit.train.trainer import Trainer
from tests.refusing import refused
from tests.stopping import tree
from tests.tiny.models import tiny_corpus
from tests.train.runs import interrupt_at, lines, tiny_run, trainer

STEPS = 6
MIXTURE = "data.schedule=[{step = 0, weights = {ArXiv = 1, Github = 3}}%s]"
BEFORE, AFTER = MIXTURE % "", MIXTURE % ", {step = 3, weights = {ArXiv = 1}}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config, and its finished run `trunk`, which has every checkpoint."""
    folder = tiny_run(
        tmp_path_factory.mktemp("made"),
        f"train.steps={STEPS}",
        f"checkpoint.keep_last={STEPS}",
        "checkpoint.every=1",
        "optimizer.lr=0.01",
        "data.window=2",
        'schedule.kind="constant"',
        BEFORE,
        documents=200,
    )
    trainer(folder, folder / "trunk").fit()
    return folder


def step_of(made: Path, step: int) -> str:
    return f"checkpoint.resume={made}/trunk/checkpoints/step-{step}"


def contents(made: Path) -> dict[str, bytes]:
    """Of the trunk, but for the notes of its branches."""
    return {name: content for name, content in tree(made / "trunk").items() if "/branches/" not in name}


def test_an_anneal(made: Path, tmp_path: Path) -> None:
    """Other weights and a falling rate after step 3, and more steps; what was before is as it was."""
    before, out = contents(made), tmp_path / "anneal"
    decay = ("schedule.kind=wsd", "schedule.decay_share=0.8125", "train.steps=16")
    finished = trainer(made, out, AFTER, *decay, step_of(made, 3)).fit()
    without = trainer(made, tmp_path / "without", *decay, step_of(made, 3)).fit()
    assert finished.step == without.step == 16
    assert contents(made) == before
    trunk, branch = lines(made / "trunk"), lines(out)
    assert [line["step"] for line in branch] == [*range(4, 17)]
    schedule = load_config(made / "tiny.toml", decay).schedule
    rates = [learning_rate(step, steps=16, lr=0.01, schedule=schedule) for step in range(3, 16)]
    assert [line["lr"] for line in branch] == rates
    assert branch[0]["lr"] == 0.01 > branch[-1]["lr"] > 0
    assert branch[0]["tokens"] > trunk[2]["tokens"]
    for subset, sign in (("ArXiv", 1), ("Github", -1)):
        epochs = [records[-1]["epochs_by_subset"][subset] for records in (branch, lines(tmp_path / "without"))]
        assert sign * (epochs[0] - epochs[1]) > 0, subset
    # The same as the trunk itself resumed with that config.
    left_out = shutil.ignore_patterns("step-[456]", "model", "branches")
    shutil.copytree(made / "trunk", tmp_path / "copy", ignore=left_out)
    trainer(made, tmp_path / "copy", AFTER, *decay).fit()
    assert lines(tmp_path / "copy")[3:] == branch
    assert (tmp_path / "copy/model/model.safetensors").read_bytes() == (out / "model/model.safetensors").read_bytes()


def test_both_runs_name_each_other_and_a_branch_does_not_need_its_trunk(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "trunk", tmp_path / "trunk", ignore=shutil.ignore_patterns("branches"))
    origin = tmp_path / "trunk/checkpoints/step-2"
    changes = (AFTER, "checkpoint.every=100", f"checkpoint.resume={origin}")
    stopped = trainer(made, tmp_path / "branch", *changes).fit(interrupt_at(4))
    assert stopped.interrupted
    assert branches_of(RunFolder(tmp_path / "trunk")) == [Branch(2, str(tmp_path / "branch"))]
    assert began(RunFolder(tmp_path / "branch")) == str(origin)
    expected = trainer(made, tmp_path / "whole", *changes).fit()
    assert branches_of(RunFolder(tmp_path / "trunk")) == [
        Branch(2, f"{tmp_path}/{name}") for name in ("branch", "whole")
    ]
    shutil.rmtree(tmp_path / "trunk")
    # As if it had been killed before it saved step 4: it has saved the step with which it began.
    shutil.rmtree(tmp_path / "branch/checkpoints/step-4")
    assert trainer(made, tmp_path / "branch", *changes).fit().step == expected.step
    assert lines(tmp_path / "branch") == lines(tmp_path / "whole")
    weights = "model/model.safetensors"
    assert (tmp_path / "branch" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
    assert began(RunFolder(tmp_path / "branch")) == str(origin)
    summary = seen(tmp_path / "branch", subset="ArXiv").summary
    assert (summary["steps"], summary["began_from"]) == ([3, STEPS], str(origin))


def test_a_branch_that_has_saved_nothing_begins_from_its_trunk_again(made: Path, tmp_path: Path) -> None:
    branch = trainer(made, tmp_path / "branch", step_of(made, 2))
    branch.fit(interrupt_at(3))
    whole = lines(tmp_path / "branch")
    for changes in ((step_of(made, 2),), ()):  # without its name, too
        shutil.rmtree(tmp_path / "branch/checkpoints")
        again = trainer(made, tmp_path / "branch", *changes)
        again.fit(interrupt_at(3))
        assert lines(tmp_path / "branch") == whole
        assert again.state.progress.step == 3
    shutil.rmtree(tmp_path / "branch/checkpoints")
    other = load_config(made / "tiny.toml", [step_of(made, 1)])
    refused("did not begin from that checkpoint", Trainer(other, tmp_path / "branch").fit)


def test_a_trunk_that_is_training(made: Path, tmp_path: Path) -> None:
    """A branch leaves while the trunk holds its lock, and the trunk removes that checkpoint soon after."""
    out, left = tmp_path / "trunk", []

    def branch(step: int) -> None:
        if step == 3:
            origin = f"checkpoint.resume={out}/checkpoints/step-2"
            trainer(made, tmp_path / "branch", "checkpoint.every=100", origin).fit(interrupt_at(3))
            left.append(step)

    running = trainer(made, out, "checkpoint.keep_last=1", "checkpoint.asynchronous=false")
    running.fit(lambda metrics: branch(metrics.step))
    assert left == [3]
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["branches", f"step-{STEPS}"]
    assert branches_of(RunFolder(out)) == [Branch(2, str(tmp_path / "branch"))]
    assert lines(out) == lines(made / "trunk")
    trainer(made, tmp_path / "branch", f"checkpoint.resume={out}/checkpoints/step-2").fit()
    assert lines(tmp_path / "branch") == lines(made / "trunk")[2:]


def test_a_branch_of_the_last_step_exports_it(made: Path, tmp_path: Path) -> None:
    finished = trainer(made, tmp_path / "branch", "train.steps=4", step_of(made, 4)).fit()
    assert (finished.step, finished.last, finished.model) == (4, None, tmp_path / "branch/model")
    ours = trainer(made, tmp_path / "whole", "train.steps=4").fit().model
    assert (tmp_path / "branch/model/model.safetensors").read_bytes() == (ours / "model.safetensors").read_bytes()


def test_another_seed_draws_other_dropout_of_the_same_rows(made: Path, tmp_path: Path) -> None:
    finished = trainer(made, tmp_path / "branch", "train.seed=9", step_of(made, 2)).fit()
    assert finished.step == STEPS  # the shape has no dropout, so nothing else differs
    assert lines(tmp_path / "branch") == lines(made / "trunk")[2:]


def test_data_that_a_branch_cannot_have(made: Path, tmp_path: Path) -> None:
    tiny_corpus(tmp_path / "data", documents=200, seed=1)
    remedy = (
        r"entries of \[\[data.schedule\]\] for later steps may differ; a new run can take its weights alone: .*model"
    )
    for change, why in (
        (f"data.path={tmp_path}/data", "its shards"),
        (MIXTURE.replace("Github = 3", "Github = 4") % "", "2 steps of the run are done, and step 0 had"),
        ("data.window=32", "its window is 2, here it is 32"),
        ("data.schedule=[{step = 0, weights = {ArXiv = 1}}]", "step 0 had"),
    ):
        out = tmp_path / "out"
        fit = trainer(made, out, change, step_of(made, 2)).fit
        message = refused(f"cannot branch from .*step-2 with other data .*{why}.*{remedy}", fit)
        assert message.startswith(str(out))
        assert "config.toml" not in tree(out)
        assert str(out) not in [branch.run for branch in branches_of(RunFolder(made / "trunk"))]
    plain = load_config(
        made / "tiny.toml", {"data.schedule": None, "checkpoint.resume": f"{made}/trunk/checkpoints/step-2"}
    )
    refused("step 0 had ArXiv 0.25, Github 0.75, not one order of all documents.*" + remedy, Trainer(plain, out).fit)


@pytest.mark.parametrize("constant", [{}, {"data.weights": {"ArXiv": 1, "Github": 3}}])
def test_a_trunk_without_tables_has_branches_with_them(made: Path, tmp_path: Path, constant: dict[str, Any]) -> None:
    """A branch equals a run with its tables from the beginning; both say what was seen, in the log and in a replay."""

    def fit(out: Path, changes: dict[str, Any]) -> None:
        config = load_config(made / "tiny.toml", {"data.schedule": None, "data.window": 4, **constant, **changes})
        Trainer(config, out).fit()

    tables = {"data.schedule": [{"step": 4, "weights": {"ArXiv": 1}}], "train.steps": 16}
    fit(tmp_path / "trunk", {"train.steps": 3})
    fit(tmp_path / "whole", tables)
    origin = {**tables, "checkpoint.resume": f"{tmp_path}/trunk/checkpoints/step-3"}
    fit(tmp_path / "branch", origin)
    fit(tmp_path / "replayed", {**origin, "log.documents": False})
    assert lines(tmp_path / "branch") == lines(tmp_path / "whole")[3:]
    assert "ArXiv" in lines(tmp_path / "branch")[-1]["epochs_by_subset"]
    answers = [seen(tmp_path / name, subset="Github") for name in ("branch", "replayed")]
    assert answers[0].rows == answers[1].rows
    late = tmp_path / "late"
    message = "3 steps of the run are done, and step 2 had one order of all documents, not ArXiv 1; begin the"
    past = {**origin, "data.schedule": [{"step": 2, "weights": {"ArXiv": 1}}]}
    refused(message, fit, late, past)


def test_the_documents_of_a_branch_are_replayed_as_they_were_logged(made: Path, tmp_path: Path) -> None:
    """Windows that were open when the branch left follow the trunk's mixture to their end, in the replay too."""
    changes = (AFTER, "data.window=64", "train.steps=20")
    trainer(made, tmp_path / "trunk", BEFORE, "data.window=64", "train.steps=3").fit()
    origin = f"checkpoint.resume={tmp_path}/trunk/checkpoints/step-3"
    answers = []
    for name, logs in (("logged", "true"), ("replayed", "false")):
        trainer(made, tmp_path / name, *changes, origin, f"log.documents={logs}").fit()
        answers.append(seen(tmp_path / name, subset="ArXiv"))
    assert answers[0].rows == answers[1].rows
    assert answers[0].summary["replayed"] == []
    assert answers[1].summary["replayed"] == [[4, 20]]
