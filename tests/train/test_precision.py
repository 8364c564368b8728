"""What each precision computes with, and what it adds gradients up in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pilekit.engine.ranks import join
from pilekit.evaluate.model.causal import as_causal_lm
from pilekit.train.config import ParallelConfig, PrecisionConfig, TrainConfig, TrainSection
from pilekit.train.model.blocks import blocks_of
from pilekit.train.step.engine import Engine
from pilekit.train.step.sharding import own_part
from tests.process_groups import ProcessGroups
from tests.tiny import tiny_model
from tests.train.plain_loop import random_rows


def types_in_a_step(dtype: Any) -> dict[str, set[str]]:
    """What a block, the head and the optimizer have before them."""
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


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_blocks_compute_in_the_type_asked_for_and_all_else_is_float32(
    process_group: ProcessGroups, dtype: str, world_size: int
) -> None:
    computed = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    for seen in process_group(world_size).run(types_in_a_step, dtype):
        assert seen.pop("block") == {str(computed)}
        assert seen.pop("head") == {str(computed)}
        assert seen == {key: {"torch.float32"} for key in ("loss", "masters", "gradients", "optimizer")}
