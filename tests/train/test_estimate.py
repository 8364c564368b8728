"""What a run takes of memory: the estimates against what tensors really hold, in real process groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode

from pilekit.errors import PilekitError
from pilekit.evaluate.causal_lm import as_causal_lm
from pilekit.train.activations import activation_bytes, kept_by_trunk
from pilekit.train.blocks import blocks_of
from pilekit.train.config import (
    DataConfig,
    ModelConfig,
    ParallelConfig,
    PrecisionConfig,
    TrainConfig,
    TrainSection,
)
from pilekit.train.engine import Engine
from pilekit.train.estimate import Estimate, Held, estimate, held_bytes, table
from pilekit.train.ranks import join
from pilekit.train.recompute import KEPT
from pilekit.train.sharding import own_part
from tests.process_groups import ProcessGroups
from tests.tiny import Family, tiny_model, tiny_tokenizer
from tests.train.plain_loop import cut, random_rows

ROWS, LENGTH = 4, 32


def shape_of(family: Family) -> Any:
    with torch.device("meta"):
        return tiny_model(family)


# Parameters, gradients, optimizer


def held_by_engine(family: Family, zero: Any, dtype: Any, micro_batches: int) -> tuple[Held, int]:
    """In each rank, what a step really holds (buffers apart), and the tensors of its optimizer's steps."""
    ranks = join()
    config = TrainConfig(
        train=TrainSection(steps=1), parallel=ParallelConfig(zero=zero), precision=PrecisionConfig(dtype=dtype)
    )
    engine = Engine(as_causal_lm(tiny_model(family)), config, ranks)
    parameters = list(engine.lm.model.parameters())
    mine = cut(random_rows(0, 8, 64), ranks.world_size)[ranks.rank]
    gathered = [0]
    accumulated = 0

    def look(*_: Any) -> None:
        gathered[0] = max(gathered[0], gathered_bytes(engine._step_loss))

    for block in blocks_of(engine.lm.model):
        block.register_forward_hook(look)
    for number, rows in enumerate(cut(mine, micro_batches)):
        engine.forward_backward(rows, scale=1e-3, last=number == micro_batches - 1)
        if number < micro_batches - 1:
            accumulated = whole_gradients(engine._step_loss)
    gradients = sum(own_part(p.grad).nbytes for p in parameters if p.grad is not None)
    engine.update(1e-3)
    state = [value for each in engine.optimizer.state.values() for value in each.values()]
    held = Held(
        parameters=sum(own_part(parameter).nbytes for parameter in parameters),
        gradients=gradients,
        accumulated=accumulated,
        optimizer=sum(own_part(value).nbytes for value in state),
        gathered=gathered[0],
        buffers=0,
    )
    return held, ranks.rank


def groups_of(root: nn.Module) -> list[Any]:
    """The parameters that torch cuts, from its own books."""
    states = [module._get_fsdp_state() for module in root.modules() if isinstance(module, FSDPModule)]
    return [parameter for state in states for parameter in state._fsdp_param_group.fsdp_params]


def gathered_bytes(root: nn.Module) -> int:
    return sum(
        output.untyped_storage().nbytes() for parameter in groups_of(root) for output in parameter.all_gather_outputs
    )


def whole_gradients(root: nn.Module) -> int:
    total = 0
    for parameter in groups_of(root):
        for whole in (parameter.unsharded_accumulated_grad, getattr(parameter, "_unsharded_param", None)):
            gradient = whole.grad if isinstance(whole, nn.Parameter) else whole
            total += 0 if gradient is None else gradient.nbytes
    return total


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_what_two_ranks_hold(process_group: ProcessGroups, zero: Any, dtype: Any, micro_batches: int) -> None:
    results = process_group(2).run(held_by_engine, "gpt2", zero, dtype, micro_batches)
    found = max((held for held, _ in results), key=lambda held: held.parameters)
    expected = held_bytes(shape_of("gpt2"), stage=zero, world_size=2, dtype=dtype, micro_batches=micro_batches)
    print(found, expected)
    assert found.parameters == pytest.approx(expected.parameters, rel=0.02)
    assert found.gradients == pytest.approx(expected.gradients, rel=0.02)
    assert found.optimizer == pytest.approx(expected.optimizer, rel=0.02)
    assert found.accumulated == pytest.approx(expected.accumulated, rel=0.02)
    assert found.gathered <= expected.gathered * 1.02
