"""A branch with the config of its trunk is the trunk, bit for bit, from the step on at which it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stopping import tree
from tests.train.ranks.fitting import STEPS, Job, assert_close, assert_same_state, case, fit, rows_of_steps

LEFT = 2
"""The step after which the branches leave."""
KEPT = f"checkpoint.keep_last={STEPS}"
OVERFLOWING = ("precision.loss_scale=16777216", "precision.loss_scale_window=2")


def begin(run: Path, step: int) -> str:
    """The change with which a run branches from that step of another."""
    return f"checkpoint.resume={run}/checkpoints/step-{step}"


def trained(run: Path) -> dict[str, bytes]:
    """The exported model, without the config, which names the checkpoint that the run began from."""
    return {name: content for name, content in tree(run / "model").items() if name != "config.toml"}


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (1, case("fp32", 0, 2)),
        (2, case("bf16", 3, 2)),
        pytest.param(2, (*case("fp32", 0, 1), "optimizer.name=muon", "train.ema=0.9"), marks=pytest.mark.slow),
        pytest.param(1, (*case("fp16", 0, 1), *OVERFLOWING), marks=pytest.mark.slow),
    ],
)
def test_a_branch_with_the_same_config_equals_its_trunk(job: Job, world_size: int, changes: tuple[str, ...]) -> None:
    """Rows, losses, weights and other state, with dropout; a branch that is stopped, and a branch of that branch."""
    changes = (f"model.config={job.made}/dropout", *changes, KEPT)
    trunk = job.run(fit, world_size, "trunk", changes)
    of_trunk = (*changes, begin(job.folder / "trunk", LEFT))
    parts = [job.run(fit, world_size, "branch", of_trunk, 4), job.run(fit, world_size, "branch", of_trunk)]
    twig = job.run(fit, world_size, "twig", (*changes, begin(job.folder / "branch", 4)))
    for rank, whole in enumerate(trunk):
        assert [part[rank].error for part in (*parts, twig)] == [None] * 3
        assert whole.rows[LEFT:] == [*parts[0][rank].rows, *parts[1][rank].rows]
        assert whole.rows[4:] == twig[rank].rows
    for name, step, ended in (("branch", LEFT, parts[-1]), ("twig", 4, twig)):
        assert_same_state(ended[0].state, trunk[0].state)
        assert job.lines(name) == job.lines("trunk")[step:]
        assert trained(job.folder / name) == trained(job.folder / "trunk")


def test_a_branch_on_other_ranks_has_the_rows_of_its_trunk(job: Job) -> None:
    (trunk,) = job.run(fit, 1, "trunk", (KEPT,))
    branch = job.run(fit, 2, "branch", (*case("fp32", 2, 1), begin(job.folder / "trunk", LEFT)))
    assert [part.error for part in branch] == [None] * 2
    assert rows_of_steps(branch) == rows_of_steps([trunk])[LEFT:]
    assert_close(job.lines("branch"), job.lines("trunk")[LEFT:], loss=1e-5, grad_norm=1e-5)


def test_an_anneal_of_a_trunk_in_one_order_has_the_rows_of_a_run_that_planned_it(job: Job) -> None:
    """On other ranks. The trunk's config names no weights, and the branch's names them from its step on."""
    rows = (KEPT, "data.packing=concat", "train.global_batch_size=4", "data.lanes=[2, 2]")
    anneal = f"data.schedule=[{{step = {LEFT}, weights = {{ArXiv = 1, Github = 3}}}}]"
    (trunk,) = job.run(fit, 1, "trunk", rows)
    (planned,) = job.run(fit, 1, "planned", (*rows, anneal))
    branch = job.run(fit, 2, "branch", (*rows, *case("fp32", 2, 1), anneal, begin(job.folder / "trunk", LEFT)))
    assert [part.error for part in (trunk, planned, *branch)] == [None] * 4
    assert planned.rows[:LEFT] == trunk.rows[:LEFT]
    assert planned.rows[LEFT:] != trunk.rows[LEFT:]
    assert rows_of_steps(branch) == rows_of_steps([planned])[LEFT:]
    assert_close(job.lines("branch"), job.lines("planned")[LEFT:], loss=1e-5, grad_norm=1e-5)
