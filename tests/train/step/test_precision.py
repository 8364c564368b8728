"""Precision: the types a step computes in, and steps whose gradient overflows."""

from __future__ import annotations

from typing import Any

import numpy as np

from pilekit.engine.ranks import join
from pilekit.evaluate.model.causal import as_causal_lm
from pilekit.train.config.sections import ParallelConfig, PrecisionConfig, TrainConfig, TrainSection
from pilekit.train.model.blocks import blocks_of
from pilekit.train.step.engine import Engine
from pilekit.train.step.sharding import own_part
from tests.process_groups import ProcessGroups
from tests.tiny.models import tiny_model
from tests.train.plain_loop import plain_loop, random_rows
from tests.train.step.test_engine import (
    CLIP,
    EPS,
    LR,
    batches,
    model_of,
    settings,
    train,
)


def types_in_a_step(dtype: Any) -> dict[str, set[str]]:
    """The types of tensors that a block, the head and the optimizer see."""
    lm = as_causal_lm(tiny_model())
    precision = PrecisionConfig(dtype=dtype, loss_scale=16.0)
    config = TrainConfig(train=TrainSection(steps=1), parallel=ParallelConfig(zero=2), precision=precision)
    engine = Engine(lm, config, join())
    seen: dict[str, set[str]] = {"block": set(), "head": set()}

    def note(block: Any, given: tuple[Any, ...], made: Any) -> None:
        hidden = made[0] if isinstance(made, tuple) else made
        used = (given[0], hidden, *block.parameters())
        seen["block"] |= {str(tensor.dtype) for tensor in used}
        seen["head"].add(str(lm.head.weight.dtype))

    for block in blocks_of(lm.model):
        block.register_forward_hook(note)
    nll = engine.forward_backward(random_rows(0, 2, 5), scale=1.0, last=False)
    engine.forward_backward(random_rows(1, 2, 5), scale=1.0, last=True)
    parameters = list(lm.model.parameters())
    seen["loss"] = {str(nll.dtype)}
    seen["masters"] = {str(own_part(parameter).dtype) for parameter in parameters}
    seen["gradients"] = {str(own_part(parameter.grad).dtype) for parameter in parameters if parameter.grad is not None}
    assert not engine.update(1e-3).skipped
    seen["optimizer"] = {str(own_part(state[key]).dtype) for state in engine.optimizer.state.values() for key in state}
    return seen


def test_only_blocks_and_head_leave_float32(process_group: ProcessGroups) -> None:
    for world_size, dtype, computed in ((1, "bf16", "torch.bfloat16"), (2, "fp16", "torch.float16")):
        for seen in process_group(world_size).run(types_in_a_step, dtype):
            assert seen.pop("block") == seen.pop("head") == {computed}
            assert seen == {key: {"torch.float32"} for key in ("loss", "masters", "gradients", "optimizer")}


def test_fp16_is_close_to_fp32(process_group: ProcessGroups) -> None:
    config = settings(3, "fp16", loss_scale=1024.0)
    figures, _ = process_group(2).run(train, "llama", 2, config)[0]
    expected = plain_loop(model_of("llama").train(), batches(config), lr=LR, clip_norm=CLIP, eps=EPS)
    np.testing.assert_allclose(figures, expected, rtol=5e-3)
