"""A step is recorded while the gradient of the next is computed, and nobody can tell from the results."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from pilekit.errors import PilekitError
from pilekit.train.log.metrics import StepMetrics
from pilekit.train.step.sharding import own_part
from pilekit.workers.ranks import join
from tests.stopping import tree
from tests.train.ranks.fitting import STEPS, Job, Seen, case, fit
from tests.train.runs import lines, trainer


def fit_and_note_order(made: Path, out: Path, changes: Sequence[str]) -> list[str]:
    """The gradients, updates and records of the steps, in their order."""
    ours, found = trainer(made, out, *changes), []
    forward_backward, update = ours.engine.forward_backward, ours.engine.update

    def gradient(rows: Any, *, scale: float, last: bool) -> Any:
        found.append("gradient")
        return forward_backward(rows, scale=scale, last=last)

    def move(*given: Any, **more: Any) -> Any:
        found.append("update")
        return update(*given, **more)

    cast("Any", ours.engine).forward_backward, cast("Any", ours.engine).update = gradient, move
    ours.fit(lambda metrics: found.append(f"record {metrics.step}"))
    return found


def test_a_step_is_recorded_while_the_next_is_computed_unless_its_state_is_needed(made: Path, tmp_path: Path) -> None:
    whole = ("train.micro_batch_size=8", "checkpoint.every=4")
    expected = ["gradient", "update"]
    for step in range(1, STEPS):  # step 4 is saved
        later = [f"record {step}", "gradient"] if step == 4 else ["gradient", f"record {step}"]
        expected += [*later, "update"]
    assert fit_and_note_order(made, tmp_path / "run", whole) == [*expected, f"record {STEPS}"]


@pytest.mark.parametrize("each", ["checkpoint.every=1", "train.eval_every=1", "log.samples_every=1"])
def test_a_state_that_is_needed_after_every_step_changes_nothing(made: Path, tmp_path: Path, each: str) -> None:
    held_out = () if "eval" not in each else (f"train.eval_path={made}/data",)
    trainer(made, tmp_path / "late", "checkpoint.every=100").fit()
    trainer(made, tmp_path / "each", "checkpoint.every=100", each, *held_out).fit()
    found = lines(tmp_path / "each")
    assert [line.pop("bpb", None) is not None for line in found] == [bool(held_out)] * STEPS
    assert found == lines(tmp_path / "late")
    weights = [tree(tmp_path / run / "model")["model.safetensors"] for run in ("each", "late")]
    assert weights[0] == weights[1]


def fit_and_interrupt(
    made: Path, out: Path, changes: Sequence[str], launched: Sequence[int], recorded: Sequence[int]
) -> Seen:
    """Each rank gets a Ctrl-C during the gradient of its step of `launched`, or after that of `recorded`; 0 is none."""
    rank, seen, begun = join().rank, Seen(), [0]
    ours = trainer(made, out, *changes)
    forward_backward = ours.engine.forward_backward

    def gradient(rows: Any, *, scale: float, last: bool) -> Any:
        begun[0] += last
        if last and begun[0] == launched[rank]:
            os.kill(os.getpid(), signal.SIGINT)
        return forward_backward(rows, scale=scale, last=last)

    def on_step(metrics: StepMetrics) -> None:
        seen.steps.append(metrics.step)
        if metrics.step == recorded[rank]:
            os.kill(os.getpid(), signal.SIGINT)

    cast("Any", ours.engine).forward_backward = gradient
    finished = ours.fit(on_step)
    seen.finished = finished.step, finished.interrupted
    return seen


@pytest.mark.parametrize(
    ("launched", "recorded", "last"),
    [((0, 3), (0, 0), 3), ((4, 0), (0, 3), 3), ((0, 0), (5, 0), 5), ((1, 0), (0, 0), 1)],
)
def test_a_stop_is_heard_by_all_ranks_in_one_step(
    job: Job, launched: tuple[int, int], recorded: tuple[int, int], last: int
) -> None:
    """A request during the gradient of a step lets it finish, unless another rank was asked before."""
    changes = (f"model.config={job.made}/dropout", *case("fp32", 3, 2), "checkpoint.every=100")
    for seen in job.run(fit_and_interrupt, 2, "parts", changes, launched, recorded):
        assert (seen.finished, seen.steps) == ((last, True), [*range(1, last + 1)])
    job.run(fit, 2, "parts", changes)
    job.run(fit, 2, "whole", changes)
    assert job.lines("parts") == job.lines("whole")
    for written in (f"checkpoints/step-{STEPS}", "model"):
        assert tree(job.folder / "parts" / written) == tree(job.folder / "whole" / written)


def fit_with_a_bad_gradient(made: Path, out: Path, changes: Sequence[str], at: int, number: float) -> Seen:
    """In one step the last rank's part of the gradient gets one number that is not finite; its losses are."""
    ranks, done, seen = join(), [0], Seen()
    ours = trainer(made, out, *changes)
    update = ours.engine.update

    def poisoned(*given: Any, **more: Any) -> Any:
        done[0] += 1
        if done[0] == at and ranks.rank == ranks.world_size - 1:
            gradients = [own_part(p.grad) for p in ours.engine.lm.model.parameters() if p.grad is not None]
            next(gradient for gradient in gradients if gradient.numel()).view(-1)[0] = number
        return update(*given, **more)

    cast("Any", ours.engine).update = poisoned
    try:
        ours.fit(lambda metrics: seen.steps.append(metrics.step))
    except PilekitError as error:
        seen.error = str(error)
    return seen


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_on_one_rank_moves_nothing_on_any(job: Job, number: float) -> None:
    changes = (*case("fp32", 3, 2), "checkpoint.every=100")
    for seen in job.run(fit_with_a_bad_gradient, 2, "failed", changes, 4, number):
        assert seen.steps == [1, 2, 3]
        assert seen.error is not None
        assert seen.error.startswith(f"step 4: the gradient's norm is {number}, in rows with ")
        assert "continues after step 3" in seen.error
    job.run(fit, 2, "stopped", changes, 3)
    for run in ("failed", "stopped"):
        assert [path.name for path in (job.folder / run / "checkpoints").iterdir()] == ["step-3"]
    assert job.lines("failed") == job.lines("stopped")
    assert tree(job.folder / "failed/checkpoints/step-3") == tree(job.folder / "stopped/checkpoints/step-3")
    job.run(fit, 2, "failed", changes)
    job.run(fit, 2, "whole", changes)
    assert job.lines("failed") == job.lines("whole")
    assert tree(job.folder / "failed/model") == tree(job.folder / "whole/model")
