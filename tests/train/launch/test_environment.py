"""Who started a rank, what it computes on and how ranks talk; and each generator of random numbers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from pilekit.train.launch.environment import adopt_slurm, describe_ranks, rank_environment
from pilekit.train.trainer import seed_of_step
from pilekit.workers.ranks import join
from tests.process_groups import ProcessGroups
from tests.train.runs import tiny_run, trainer

RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
TASK = {
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
    "SLURM_STEP_NODELIST": "gpu[007-008]-a,x1",
    "SLURM_JOB_ID": "123456",
}


def environment(monkeypatch: pytest.MonkeyPatch, **given: str) -> dict[str, str | None]:
    """The variables of a rank after `adopt_slurm` in this environment."""
    others = {name: value for name, value in os.environ.items() if name not in {*RANK, *TASK}}
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", others | given)
        adopt_slurm()
        return {name: os.environ.get(name) for name in RANK}


def test_a_task_of_slurm_is_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = dict(zip(RANK, ("11", "16", "3", "gpu007-a", "23456"), strict=True))
    assert environment(monkeypatch, **TASK) == expected
    assert environment(monkeypatch, **TASK, MASTER_ADDR="other")["MASTER_ADDR"] == "other"
    for nodes, first in (("n1", "n1"), ("n[3,5]", "n3"), ("a-b.c,d", "a-b.c"), ("n[01-02],m[1-2]", "n01")):
        assert environment(monkeypatch, **TASK | {"SLURM_STEP_NODELIST": nodes})["MASTER_ADDR"] == first
    nothing: dict[str, str | None] = dict.fromkeys(RANK)
    assert environment(monkeypatch) == nothing
    assert environment(monkeypatch, **TASK | {"SLURM_STEP_NUM_TASKS": "1"}) == nothing
    by_torchrun = {"RANK": "0", "WORLD_SIZE": "2"}
    assert environment(monkeypatch, **TASK, **by_torchrun) == nothing | by_torchrun


def describe() -> str:
    return describe_ranks(join())


def test_the_environment_is_described(process_group: ProcessGroups) -> None:
    """That of a single rank: tests/cli/test_train.py."""
    for text in process_group(2).run(describe):
        assert text == "2 ranks started by its environment, on cpu; they talk by gloo"


def test_a_rank_on_a_gpu_has_one_thread_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    assert rank_environment(2)["OMP_NUM_THREADS"] == "4"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert rank_environment(2)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert rank_environment(2)["OMP_NUM_THREADS"] == "3"


def test_each_generator_of_random_numbers(tmp_path: Path) -> None:
    """Torch's generator begins each step at its seed; those of Python and NumPy, and torch's of the data, are not used.

    Weights, adapters and the order of documents come from seeds of the config, through generators of their own.
    """
    ours = trainer(tiny_run(tmp_path, "train.steps=3", "train.micro_batch_size=4"), tmp_path / "run")
    states, forward_backward = [], ours.engine.forward_backward

    def noting(*rows: object, **more: object) -> object:
        states.append(torch.get_rng_state())
        return forward_backward(*rows, **more)  # type: ignore[arg-type]

    ours.engine.forward_backward = noting  # type: ignore[method-assign, assignment]
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()
    ours.fit()
    after = random.getstate(), np.random.get_state()
    assert before[0] == after[0]
    assert all(np.array_equal(one, other) for one, other in zip(before[1], after[1], strict=True))
    assert len(states) == 3
    for step, state in enumerate(states):
        assert torch.equal(state, torch.Generator().manual_seed(seed_of_step(0, step)).get_state())
