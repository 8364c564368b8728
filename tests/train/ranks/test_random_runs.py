"""Whole runs of random configs against a plain loop over the global batch: stream, schedule, loss scale, optimizer.

In fp16 the first loss scale is so high that the first steps overflow, and the window so short that the scale grows into
an overflow again. A skipped step must not move the schedule, and an overflow at the floor must end the run.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pilekit.corpus import Corpus
from pilekit.stream.pile_stream import PileStream
from tests.tiny.models import Family, tiny_model_dir
from tests.train.plain_loop import add_gradient, plain_adamw
from tests.train.ranks.fitting import Job, fit

ROWS, LENGTH, LANES, EPS = 8, 24, (2, 2), 1e-3
HALF = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
NEAR = {"fp32": 1e-6, "bf16": 2e-3, "fp16": 5e-4}
"""Relative differences of losses; a product in half precision is rounded to 8 or 11 bits, in another order of sums."""
FAR = {"fp32": 3e-4, "bf16": 0.1, "fp16": 0.02}
"""How far a weight's end may lie from the loop's, as a share of the way from its start. The loop itself, in
bf16, ends up to 0.05 from where it ends in fp32."""
FAMILIES: tuple[Family, ...] = ("gpt_neox", "llama")
SEEDS = 16


@dataclass(frozen=True)
class Drawn:
    """A random config."""

    family: Family
    world_size: int
    zero: int
    micro: int
    dtype: str
    packing: Any
    clip_norm: float
    weight_decay: float
    betas: tuple[float, float]
    lr: float
    warmup: int
    steps: int
    scale: float
    window: int
    hysteresis: int
    floor: float

    @classmethod
    def of(cls, seed: int) -> Drawn:
        """Each pair of stage and number of ranks comes twice, once of them in fp16."""
        draw = random.Random(seed)
        dtype = "fp16" if seed < SEEDS // 2 else draw.choice(["fp32", "bf16"])
        return cls(
            family=FAMILIES[(seed + seed // 4) % 2],
            world_size=1 + seed % 2,
            zero=seed // 2 % 4,
            micro=draw.choice([1, 2, 4]),
            dtype=dtype,
            packing=draw.choice(["best_fit", "concat", "none"]),
            clip_norm=draw.choice([0.05, 0.5, math.inf]),
            weight_decay=draw.choice([0.0, 0.1, 1.0]),
            betas=draw.choice([(0.9, 0.95), (0.8, 0.99), (0.0, 0.9)]),
            lr=draw.uniform(5e-4, 3e-3),
            warmup=draw.choice([0, 1, 4]),
            steps=20 if dtype == "fp16" else 6,
            scale=2.0 ** draw.randint(22, 26),
            window=draw.randint(1, 4),
            hysteresis=draw.randint(1, 3),
            floor=2.0**21 if seed in (0, 5) else 1.0,
        )

    def changes(self, model: Path) -> tuple[str, ...]:
        return (
            f"model.path={model}",
            f"parallel.zero={self.zero}",
            f"precision.dtype={self.dtype}",
            f"precision.loss_scale={self.scale}",
            f"precision.loss_scale_window={self.window}",
            f"precision.loss_scale_hysteresis={self.hysteresis}",
            f"precision.loss_scale_floor={self.floor}",
            f"data.packing={self.packing}",
            f"data.lanes={list(LANES)}",
            f"train.micro_batch_size={self.micro}",
            f"train.clip_norm={self.clip_norm}",
            f"train.steps={self.steps}",
            f"optimizer.lr={self.lr}",
            f"optimizer.betas={list(self.betas)}",
            f"optimizer.weight_decay={self.weight_decay}",
            "schedule.kind=linear",
            f"schedule.warmup={self.warmup}",
            "checkpoint.every=100",
        )


@dataclass
class Plain:
    """The reference: its lines, its rows, its model, and the step whose overflow at the floor ended it."""

    lines: list[dict[str, Any]]
    rows: list[list[list[int]]]
    model: Any
    ended: int | None = None


def plain(drawn: Drawn, made: Path, path: Path) -> Plain:
    """Train in one process. Each rank's loss is multiplied by the number of ranks, because gradients are averaged."""
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa").train()
    parameters, ranks = dict(model.named_parameters()), drawn.world_size
    optimizer = plain_adamw(model, eps=EPS)
    for group in optimizer.param_groups:
        group["betas"] = drawn.betas
        group["weight_decay"] = drawn.weight_decay if group["weight_decay"] else 0.0
    data = {"seq_len": LENGTH, "batch_size": ROWS, "window": 8, "packing": drawn.packing, "lanes": LANES}
    outputs = ("input_ids", "labels", "position_ids")
    stream: Any = PileStream(Corpus(made / "data"), tokenizer=made / "tokenizer", outputs=outputs, **data)
    scale, good, odd, skipped = (drawn.scale if drawn.dtype == "fp16" else 1.0), 0, 0, 0
    found = Plain([], [], model)
    for number, batch in zip(range(drawn.steps), stream, strict=False):
        done = number - skipped
        lr = drawn.lr * (drawn.steps - done) / (drawn.steps - drawn.warmup)
        lr = drawn.lr * (done + 1) / drawn.warmup if done < drawn.warmup else lr
        found.rows.append(batch["input_ids"].tolist())
        loss = add_gradient(model, batch, ROWS // drawn.micro, HALF[drawn.dtype], scale * ranks)
        gradient = torch.cat([p.grad.flatten() for p in parameters.values() if p.grad is not None]).double()
        norm, used_scale = float(gradient.norm()) / ranks / scale, scale
        if overflow := not math.isfinite(norm):
            skipped, good, odd = skipped + 1, 0, odd + 1
            if odd >= drawn.hysteresis:
                if scale <= drawn.floor:
                    found.ended = number + 1
                    return found
                scale = max(drawn.floor, scale / 2)
        else:
            for p in parameters.values():
                if p.grad is not None:
                    p.grad *= min(1.0, drawn.clip_norm / norm) / ranks / used_scale
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            good += 1
            if drawn.dtype == "fp16" and good == drawn.window:
                scale, good, odd = 2 * scale, 0, 0
        optimizer.zero_grad()
        figures = {"loss": loss, "grad_norm": None if overflow else norm, "lr": lr, "skipped": skipped}
        found.lines.append(figures | {"loss_scale": used_scale if drawn.dtype == "fp16" else None})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_run_is_the_plain_loop(job: Job, seed: int) -> None:
    drawn = Drawn.of(seed)
    path = tiny_model_dir(job.folder / "start", drawn.family, seed=seed)
    expected = plain(drawn, job.made, path)
    seen = job.run(fit, drawn.world_size, "run", drawn.changes(path))
    found = job.lines("run")

    for rank, one in enumerate(seen):
        share = ROWS // drawn.world_size
        rows_of_steps = one.rows[: len(expected.rows)]  # the step after one that failed had begun
        assert rows_of_steps == [rows[rank * share : (rank + 1) * share] for rows in expected.rows], drawn
        if expected.ended is None:
            assert one.error is None, drawn
        else:
            assert one.error is not None, drawn
            assert one.error.startswith(f"step {expected.ended}: "), (one.error, drawn)
            assert f"the lowest loss scale, {drawn.floor:g}" in one.error, drawn
    assert len(found) == len(expected.lines), drawn
    near = NEAR[drawn.dtype]
    for ours, theirs in zip(found, expected.lines, strict=True):
        for exact in ("skipped", "loss_scale"):
            assert ours[exact] == theirs[exact], (exact, found, expected.lines, drawn)
        assert ours["lr"] == pytest.approx(theirs["lr"], rel=1e-12), (ours, drawn)
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=near), (ours, drawn)
        assert (ours["grad_norm"] is None) == (theirs["grad_norm"] is None), (ours, theirs, drawn)
        if theirs["grad_norm"] is not None:
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=10 * near), (ours, theirs, drawn)
    if drawn.dtype == "fp16":
        scales = [line["loss_scale"] for line in found]
        assert expected.ended or (found[-1]["skipped"] and any(b > a for a, b in pairwise(scales))), (scales, drawn)
    if expected.ended:
        return
    start = AutoModelForCausalLM.from_pretrained(path).state_dict()
    for name, parameter in expected.model.named_parameters():
        ours, theirs, before = seen[0].state[name], parameter.detach().numpy(), start[name].numpy()
        moved = float(np.linalg.norm(theirs - before))
        assert moved, (name, drawn)
        assert np.linalg.norm(ours - theirs) <= FAR[drawn.dtype] * moved, (name, drawn)
