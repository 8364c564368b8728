"""The engine on random configs against a loop of the plainest kind: stages, ranks, accumulation, precisions, overflow.

In fp16 the first loss scale is so high that the first steps overflow, and the window so short that the scale grows into
an overflow again. The reference keeps the scale by the definition in docs/training.md, in three lines of its own.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from pilekit.train.config.sections import OptimizerConfig, ParallelConfig, PrecisionConfig, TrainConfig, TrainSection
from pilekit.workers.ranks import join
from tests.process_groups import ProcessGroups
from tests.train.plain_loop import Batch, cut, plain_adamw, random_rows, targets
from tests.train.step.test_step_engine import engine_of, model_of, step, weights

EPS = 1e-3
CONFIGS = 8
HALF = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Drawn:
    """A random config, and rows for each of its steps."""

    family: str
    zero: Any
    micro_batches: int
    dtype: Any
    clip_norm: float
    rates: tuple[float, ...]
    scale: float
    window: int
    hysteresis: int
    rows: int
    seed: int

    @classmethod
    def of(cls, seed: int, world_size: int) -> Drawn:
        draw = random.Random(f"{seed} {world_size}")
        micro_batches = draw.choice([1, 2, 4])
        dtype = ["fp32", "fp16", "bf16", "fp16"][seed % 4]
        steps = 24 if dtype == "fp16" else 6
        return cls(
            family=draw.choice(["gpt_neox", "llama", "gpt2", "narrow"]),
            zero=draw.choice([0, 1, 2, 3]),
            micro_batches=micro_batches,
            dtype=dtype,
            clip_norm=draw.choice([0.05, 0.5, 1e9]),
            rates=tuple(draw.uniform(1e-4, 2e-3) for _ in range(steps)),
            scale=2.0 ** draw.randint(24, 28),
            window=draw.randint(2, 4),
            hysteresis=draw.randint(1, 3),
            rows=4 * micro_batches * world_size,
            seed=seed,
        )

    def config(self) -> TrainConfig:
        return TrainConfig(
            train=TrainSection(steps=len(self.rates), clip_norm=self.clip_norm),
            optimizer=OptimizerConfig(eps=EPS),
            parallel=ParallelConfig(zero=self.zero),
            precision=PrecisionConfig(
                dtype=self.dtype,
                loss_scale=self.scale,
                loss_scale_window=self.window,
                loss_scale_hysteresis=self.hysteresis,
            ),
        )

    def batches(self) -> list[Batch]:
        return [random_rows(1000 * self.seed + number, self.rows, 32) for number in range(len(self.rates))]


Figures = list[tuple[float, float, bool, float]]
"""Of each step: mean loss, norm (0 if it was skipped), whether it was skipped, and the loss scale after it."""


def trained(drawn: Drawn) -> tuple[Figures, dict[str, npt.NDArray[Any]]]:
    """The engine's figures and final weights, on one rank."""
    ranks, figures = join(), []
    engine = engine_of(drawn.family, drawn.config(), ranks)
    for batch, rate in zip(drawn.batches(), drawn.rates, strict=True):
        loss, update = step(engine, ranks, batch, drawn.micro_batches, rate)
        scale = 1.0 if engine.loss_scale is None else engine.loss_scale.value
        figures.append((loss, 0.0 if update.skipped else update.grad_norm, update.skipped, scale))
    return figures, weights(engine)


def plainly_trained(drawn: Drawn, ranks: int) -> tuple[Figures, Any]:
    """The reference's figures, and its model.

    Gradients are averaged over ranks, so each rank's loss is multiplied by their number, and may overflow earlier.
    """
    model, figures, half = model_of(drawn.family).train(), [], HALF[drawn.dtype]
    parameters = dict(model.named_parameters())
    optimizer = plain_adamw(model, eps=EPS)
    scale, good, odd = (drawn.scale if drawn.dtype == "fp16" else 1.0), 0, 0
    for batch, rate in zip(drawn.batches(), drawn.rates, strict=True):
        count, loss = targets(batch), 0.0
        for piece in cut(batch, ranks * drawn.micro_batches):
            inputs = {"input_ids": piece["input_ids"], "position_ids": piece["position_ids"], "use_cache": False}
            used = parameters if half is None else {name: p.to(half) for name, p in parameters.items()}
            logits = functional_call(model, used, kwargs=inputs).logits[:, :-1].float()
            nll = functional.cross_entropy(logits.transpose(1, 2), piece["labels"][:, 1:], reduction="sum")
            (nll * (scale * ranks / count)).backward()  # type: ignore[no-untyped-call]
            loss += nll.item() / count
        gradient = torch.cat([p.grad.flatten() for p in parameters.values() if p.grad is not None]).double()
        norm = float(gradient.norm()) / ranks / scale
        if skipped := not math.isfinite(norm):
            good, odd = 0, odd + 1
            scale /= 2 if odd >= drawn.hysteresis else 1
        else:
            for p in parameters.values():
                if p.grad is not None:
                    p.grad *= min(1.0, drawn.clip_norm / norm) / ranks / scale
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            good += 1
            if drawn.dtype == "fp16" and good == drawn.window:
                scale, good, odd = 2 * scale, 0, 0
        optimizer.zero_grad()
        figures.append((loss, 0.0 if skipped else norm, skipped, scale))
    return figures, model


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_random_configs_are_the_plain_loop(process_group: ProcessGroups, world_size: int) -> None:
    overflows = regrown = 0
    for seed in range(CONFIGS):
        drawn = Drawn.of(seed, world_size)
        results = process_group(world_size).run(trained, drawn)
        expected, model = plainly_trained(drawn, world_size)
        figures, weights = results[0]
        assert all(others == figures for others, _ in results), drawn
        for number, (one, other) in enumerate(zip(figures, expected, strict=True)):
            assert one[2:] == other[2:], (number, figures[: number + 1], expected[: number + 1], drawn)
        near = {"fp32": 1e-5, "bf16": 2e-3, "fp16": 5e-3}[drawn.dtype]
        for found, wanted in zip(figures, expected, strict=True):
            assert found[0] == pytest.approx(wanted[0], rel=near), drawn
            assert found[1] == pytest.approx(wanted[1], rel=10 * near), drawn
        moved = sum(drawn.rates)
        for name, parameter in model.named_parameters():
            share = {"fp32": 1e-3, "bf16": 0.05, "fp16": 0.05}[drawn.dtype]
            np.testing.assert_allclose(
                weights[name], parameter.detach().numpy(), rtol=0, atol=share * moved, err_msg=f"{name} {drawn}"
            )
        overflows += sum(one[2] for one in figures)
        scales = [one[3] for one in figures]
        regrown += any(later > earlier for earlier, later in pairwise(scales))
    assert overflows > 20
    assert regrown >= CONFIGS // 4
