"""Whole runs on real process groups: functions for each rank, and comparisons of their results."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pilekit.errors import PilekitError
from pilekit.tokenize import load_tokenizer
from pilekit.train.log.metrics import StepMetrics
from pilekit.train.trainer import Trainer
from pilekit.workers.ranks import join
from tests.process_groups import ProcessGroups
from tests.stopping import tree
from tests.tiny.models import Family, tiny_model
from tests.train.checkpoint.saving import state_of
from tests.train.runs import lines, trainer

Array = npt.NDArray[Any]
Record = dict[str, Any]
T = TypeVar("T")

TIMEOUT = 480.0
"""Seconds for each call of ranks: a hang is a failure."""
STEPS = 6

RARE = 60
"""The number of that document."""


@dataclass
class Seen:
    """What one rank saw of a run."""

    rows: list[list[list[int]]] = field(default_factory=list)
    """For each step that began: the input_ids that this rank trained on. If a step failed, the next had begun."""
    steps: list[int] = field(default_factory=list)
    """The steps for which `on_step` was called."""
    finished: tuple[int, bool] | None = None
    error: str | None = None
    state: dict[str, Array] = field(default_factory=dict)
    """The whole state at the end, on rank 0."""


def fit(
    made: Path,
    out: Path,
    changes: Sequence[str],
    stop: int | None = None,
    also: Callable[[StepMetrics], None] = lambda metrics: None,
) -> Seen:
    """Train; after step `stop`, only the last rank gets a Ctrl-C. `also` is called after each step."""
    ranks, seen = join(), Seen()

    def on_step(metrics: StepMetrics) -> None:
        seen.steps.append(metrics.step)
        if metrics.step == stop and ranks.rank == ranks.world_size - 1:
            os.kill(os.getpid(), signal.SIGINT)
        also(metrics)

    try:
        ours = trainer(made, out, *changes)
        note_rows(ours, seen.rows)
        finished = ours.fit(on_step)
        seen.finished = finished.step, finished.interrupted
        del seen.rows[len(seen.steps) :]  # a stop drops the step that was launched before it
        state = state_of(*cast("Any", ours.engine.state()))
        if ranks.is_first:
            seen.state = {name: tensor.numpy() for name, tensor in state.items()}
    except PilekitError as error:
        seen.error = str(error)
    return seen


def note_rows(ours: Trainer, steps: list[list[list[int]]]) -> None:
    """Append the token ids of each step to `steps`, as the engine receives them."""
    forward_backward, begins = ours.engine.forward_backward, [True]

    def noting(rows: Mapping[str, torch.Tensor], *, scale: float, last: bool) -> torch.Tensor:
        if begins[0]:
            steps.append([])
        steps[-1] += rows["input_ids"].tolist()
        begins[0] = last
        return forward_backward(rows, scale=scale, last=last)

    cast("Any", ours.engine).forward_backward = noting


def fit_in_parts(made: Path, out: Path, changes: Sequence[str], stops: Sequence[int]) -> list[Seen]:
    """A run that is interrupted after each of these steps and ends in the last part."""
    parts = [fit(made, out, changes, stop) for stop in stops]
    assert [part.finished for part in parts] == [(stop, True) for stop in stops]
    return [*parts, fit(made, out, changes)]


def assert_close(ours: list[Record], theirs: list[Record], *, loss: float, grad_norm: float) -> None:
    """Losses and norms agree up to relative differences, all other figures exactly."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - {"loss", "loss_by_subset", "grad_norm", "update_norm"}:
            assert one[key] == other[key], key
        assert one["loss"] == pytest.approx(other["loss"], rel=loss), one["step"]
        assert one["loss_by_subset"] == pytest.approx(other["loss_by_subset"], rel=loss), one["step"]
        for norm in ("grad_norm", "update_norm"):
            assert one[norm] == pytest.approx(other[norm], rel=grad_norm), one["step"]


def rows_of_steps(seen: Sequence[Seen]) -> list[list[list[int]]]:
    """The rows of all ranks in each step, sorted, so that the number of ranks does not matter."""
    return [sorted(row for part in parts for row in part) for parts in zip(*(one.rows for one in seen), strict=True)]


@dataclass(frozen=True)
class Job:
    """Runs in real process groups: `made` has their config and data, and `folder` a folder for each."""

    made: Path
    folder: Path
    groups: ProcessGroups

    def run(self, function: Callable[..., T], world_size: int, name: str, *more: Any) -> list[T]:
        """`function(made, folder / name, *more)` in every rank."""
        return self.groups(world_size).run(function, self.made, self.folder / name, *more, timeout=TIMEOUT)

    def lines(self, name: str) -> list[Record]:
        """The figures of a run."""
        return lines(self.folder / name)

    def check_as_one(
        self, one: Mapping[str, Sequence[str]], two: Sequence[tuple[str, Sequence[str], float, float]]
    ) -> None:
        """Runs on two ranks equal runs on one.

        one   name to changes of each run on one rank
        two   for each run on two ranks: the run on one rank that it equals, its changes, and the relative tolerances of
              losses and norms
        """
        expected = {name: self.run(fit, 1, name, changes)[0] for name, changes in one.items()}
        for number, (name, changes, loss, grad_norm) in enumerate(two):
            parts = self.run(fit, 2, f"{name}-{number}", changes)
            assert [part.error for part in (*parts, expected[name])] == [None] * 3
            assert [part.steps for part in parts] == [[*range(1, STEPS + 1)]] * 2
            assert rows_of_steps(parts) == rows_of_steps([expected[name]])
            assert_close(self.lines(f"{name}-{number}"), self.lines(name), loss=loss, grad_norm=grad_norm)

    def check_resumed(self, world_size: int, changes: tuple[str, ...], *, seed: int) -> None:
        """A run that is stopped at two random steps and resumed equals one that never stopped, bit for bit."""
        stops = sorted(random.Random(seed).sample(range(1, STEPS), 2))
        whole = self.run(fit, world_size, "whole", changes)
        in_parts = self.run(fit_in_parts, world_size, "parts", changes, stops)
        assert [one.finished for one in whole] == [(STEPS, False)] * world_size
        for one, parts in zip(whole, in_parts, strict=True):
            assert one.rows == [rows for part in parts for rows in part.rows]
            assert one.steps == [step for part in parts for step in part.steps]
        assert_same_state(in_parts[0][-1].state, whole[0].state)
        assert self.lines("parts") == self.lines("whole")
        for written in (f"checkpoints/step-{STEPS}", "model"):  # with tensors, stream and loss scale
            assert tree(self.folder / "parts" / written) == tree(self.folder / "whole" / written)

    def check_moved(self, parts: Sequence[tuple[int, tuple[str, ...]]]) -> None:
        """A run whose parts have these numbers of ranks and changes equals one on one rank.

        Every step has the same rows, token for token; losses differ only by the order of sums.
        """
        (whole,) = self.run(fit, 1, "whole", ())
        rows = []
        for number, (world_size, changes) in enumerate(parts, 1):
            stop = number if number < len(parts) else None
            seen = self.run(fit, world_size, "parts", changes, stop)
            assert [part.error for part in seen] == [None] * world_size
            assert [part.finished for part in seen] == [(stop or STEPS, stop is not None)] * world_size
            rows += rows_of_steps(seen)
        assert rows == rows_of_steps([whole])
        assert_close(self.lines("parts"), self.lines("whole"), loss=1e-5, grad_norm=1e-5)
        for name, value in whole.state.items():
            np.testing.assert_allclose(seen[0].state[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def assert_same_state(one: dict[str, Array], other: dict[str, Array]) -> None:
    assert one
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert np.array_equal(one[name], other[name]), name


def case(dtype: str, zero: int, micro: int) -> tuple[str, ...]:
    clip_norm = "inf" if dtype == "bf16" else "0.5"
    sections = (f"precision.dtype={dtype}", f"parallel.zero={zero}", f"train.micro_batch_size={micro}")
    return (*sections, f"train.clip_norm={clip_norm}")


def base(made: Path, family: Family = "gpt_neox") -> str:
    """The change that names a trained model without dropout."""
    model = tiny_model(family, seed=3)
    for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout", "attention_dropout"):
        if hasattr(model.config, name):
            setattr(model.config, name, 0.0)
    model.save_pretrained(made / f"base-{family}")
    return f"model.path={made}/base-{family}"


def omega(made: Path) -> int:
    """The first byte of Ω, which nothing else in that corpus has."""
    return int(load_tokenizer(made / "tokenizer").encode_batch(["Ω"])[0][0])


def step_and_rank(seen: Sequence[Seen], token: int) -> tuple[int, int]:
    """Where the token was first trained on; steps counted from 1."""
    places = (
        (step, rank)
        for step, parts in enumerate(zip(*(part.rows for part in seen), strict=True), 1)
        for rank, rows in enumerate(parts)
        if any(token in row for row in rows)
    )
    return next(places)
