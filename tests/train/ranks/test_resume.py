"""A run on several ranks that is stopped and resumed equals one that never stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pilekit.train.config.check import check_world
from pilekit.train.config.file import load_config
from pilekit.train.estimate import estimate
from pilekit.train.step.sharding import own_part
from pilekit.workers.ranks import join
from tests.refusing import refused
from tests.stopping import tree
from tests.train.checkpoint.test_state import stored
from tests.train.ranks.fitting import STEPS, Job, case, fit
from tests.train.runs import trainer

GROUPS = "parallel.shard=2"
"""Each two ranks hold a copy (HSDP)."""
EVERY = ("checkpoint.every=1", "data.packing=concat")
OVERFLOWING = (*EVERY, "precision.loss_scale=16777216", "precision.loss_scale_window=2")


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (2, case("bf16", 3, 2)),
        *(
            pytest.param(*resumed, marks=pytest.mark.slow)
            for resumed in (
                (2, case("fp32", 1, 2)),
                (2, (*case("fp32", 0, 1), *EVERY)),
                (4, (*case("fp32", 2, 1), *EVERY)),
                (2, (*case("bf16", 1, 1), *EVERY)),
                (1, (*case("bf16", 2, 1), *EVERY)),
                (2, (*case("fp16", 3, 1), *OVERFLOWING)),
                (1, (*case("fp16", 0, 1), *OVERFLOWING)),
                (2, (*case("fp32", 3, 2), "optimizer.name=muon", "train.ema=0.9")),
                (4, (*case("bf16", 1, 1), GROUPS, "train.ema=0.9")),
                (4, (*case("bf16", 3, 1), GROUPS, "optimizer.name=muon")),
            )
        ),
    ],
)
def test_a_resumed_run_equals_one_that_never_stopped(job: Job, world_size: int, changes: tuple[str, ...]) -> None:
    """Bit for bit, with dropout, stopped at random steps, with asynchronous checkpoints."""
    job.check_resumed(world_size, (f"model.config={job.made}/dropout", *changes), seed=len(changes))


@pytest.mark.parametrize(
    "parts",
    [[(2, 3), (1, 2), (2, 0)], pytest.param([(4, 3), (2, 0), (1, 2), (4, 1)], marks=pytest.mark.slow)],
)
def test_resumed_on_other_ranks_and_in_other_stages(job: Job, parts: list[tuple[int, int]]) -> None:
    job.check_moved([(size, case("fp32", zero, 1)) for size, zero in parts])


@pytest.mark.slow
@pytest.mark.parametrize("zero", [3, 0])
def test_frozen_parameters_and_a_running_mean_resume_too(job: Job, zero: int) -> None:
    changes = (*case("fp32", zero, 2), "train.ema=0.75", 'model.freeze=["*.embed_in.*", "*.layers.0.*"]')
    job.check_resumed(2, changes, seed=5)
    assert tree(job.folder / "parts/model-ema") == tree(job.folder / "whole/model-ema")
    # The steps again, from a checkpoint of each, in plain Python.
    job.run(fit, 1, "each", (*changes, "checkpoint.every=1", f"checkpoint.keep_last={STEPS}"))
    averaged, model = (load_file(job.folder / f"each/{name}/model.safetensors") for name in ("model-ema", "model"))
    names = {f"model.{name}".replace("embed_out", "lm_head"): name for name in averaged}  # as transformers saves it
    steps = []
    for step in range(1, STEPS + 1):
        tensors = stored(job.folder / f"each/checkpoints/step-{step}", job.folder / "stored")
        steps.append({names[key]: tensor for key, tensor in tensors.items() if key in names})
    means = begun = steps[0]
    for weights in steps[1:]:
        means = {name: mean * 0.75 + weights[name] * 0.25 for name, mean in means.items()}
    assert means.keys() == averaged.keys()
    for name, mean in means.items():
        torch.testing.assert_close(averaged[name], mean, rtol=1e-5, atol=1e-7)
        frozen = "embed_in" in name or "layers.0." in name
        assert torch.equal(model[name], begun[name]) == frozen, name
        assert torch.equal(averaged[name], model[name]) == frozen, name


def own_numbers(made: Path, out: Path, changes: tuple[str, ...]) -> tuple[int, int]:
    """This rank's place, and how many numbers of the model it holds."""
    parameters = trainer(made, out, *changes).engine.lm.model.parameters()
    return join().rank, sum(own_part(parameter).numel() for parameter in parameters)


@pytest.mark.slow
def test_groups_have_the_figures_of_one_rank_and_their_checkpoints_load_anywhere(job: Job) -> None:
    sharded = (*case("fp32", 3, 1), GROUPS)
    parts = [(4, sharded), (2, case("fp32", 1, 2)), (4, (*case("fp32", 2, 1), GROUPS))]
    job.check_moved(parts)
    held = job.run(own_numbers, 4, "parts", sharded)
    assert len({numbers for rank, numbers in held if rank % 2 == 0}) == 1
    config = load_config(job.made / "tiny.toml", sharded)
    assert estimate(config, 4).stages[3].held.parameters == 4 * held[0][1]


def test_groups_that_cannot_be_are_refused(made: Path) -> None:
    refused(r"parallel.shard = 2: needs parallel.zero = 1, 2 or 3", load_config, made / "tiny.toml", (GROUPS,))
    config = load_config(made / "tiny.toml", (GROUPS, "parallel.zero=1"))
    refused(r"^parallel.shard = 2: must divide the number of ranks, 1, into groups", check_world, config, 1)
    check_world(config, 4)
