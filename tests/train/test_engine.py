"""The engine in real process groups against a plain loop in one process."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pytest
import torch

from pilekit.evaluate.causal_lm import as_causal_lm
from pilekit.train.config import OptimizerConfig, ParallelConfig, PrecisionConfig, TrainConfig, TrainSection
from pilekit.train.engine import Engine
from pilekit.train.ranks import join
from tests.process_groups import ProcessGroups
from tests.tiny import Family, tiny_model
from tests.train.plain_loop import Batch, cut, plain_loop, random_rows, targets

Array = npt.NDArray[Any]

LR, CLIP = 1e-3, 0.5
EPS = 1e-3
"""Far above what rounding leaves of a gradient that should be 0, which Adam would else blow up to a full step."""
STEPS, ROWS = 4, 16


def config(**sections: Any) -> TrainConfig:
    return TrainConfig(
        train=TrainSection(steps=STEPS, clip_norm=CLIP),
        optimizer=OptimizerConfig(lr=1.0, eps=EPS),  # of no effect: the rate comes with each update
        **sections,
    )


def batches(settings: dict[str, Any]) -> list[Batch]:
    """One per step. In bf16 with 64 targets in each: dividing by a power of two is exact wherever it is done, so that
    the roundings are those of the reference, and what remains of a difference is an error."""
    count = 61 if settings["precision"].dtype == "fp32" else 64
    return [random_rows(step, ROWS, count) for step in range(STEPS)]


def train(
    family: Family, micro_batches: int, settings: dict[str, Any]
) -> tuple[list[tuple[float, float]], dict[str, Array]]:
    """In each rank: (mean loss, gradient norm) of each step, and rank 0's final weights."""
    torch.manual_seed(0)
    ranks = join()
    lm = as_causal_lm(tiny_model(family))
    if ranks.rank:
        with torch.no_grad():
            for parameter in lm.model.parameters():
                parameter.fill_(float("nan"))
    engine = Engine(lm, config(**settings), ranks)
    figures = []
    for batch in batches(settings):
        count = targets(batch)
        mine = cut(batch, ranks.world_size)[ranks.rank]
        loss = torch.zeros(1, dtype=torch.float64)
        for number, rows in enumerate(cut(mine, micro_batches)):
            nll = engine.forward_backward(rows, scale=ranks.world_size / count, last=number == micro_batches - 1)
            loss += nll.double().sum()
        update = engine.update(LR)
        figures.append((ranks.sum(loss).item() / count, update.grad_norm))
    return figures, {name: value.numpy() for name, value in engine.full_parameters()}


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_it_is_the_plain_loop(
    process_group: ProcessGroups, dtype: Any, zero: Any, micro_batches: int, world_size: int
) -> None:
    settings = {"parallel": ParallelConfig(zero=zero), "precision": PrecisionConfig(dtype=dtype)}
    results = process_group(world_size).run(train, "gpt_neox", micro_batches, settings)
    model = tiny_model("gpt_neox").train()
    expected = plain_loop(
        model,
        batches(settings),
        pieces=world_size * micro_batches,
        lr=LR,
        clip_norm=CLIP,
        eps=EPS,
        dtype=torch.bfloat16 if dtype == "bf16" else None,
    )
    for figures, _ in results:
        assert figures == results[0][0]
    tolerance = 1e-5 if dtype == "fp32" else 1e-4
    for (loss, norm), (expected_loss, expected_norm) in zip(results[0][0], expected, strict=True):
        assert loss == pytest.approx(expected_loss, rel=tolerance)
        assert norm == pytest.approx(expected_norm, rel=tolerance)
