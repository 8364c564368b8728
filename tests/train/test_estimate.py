"""Memory estimates against the bytes that tensors really hold, in real process groups."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from pilekit.engine.ranks import join
from pilekit.errors import PilekitError
from pilekit.evaluate.model.causal import as_causal_lm
from pilekit.train.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    TrainConfig,
    TrainSection,
)
from pilekit.train.estimate import DTYPES, Estimate, Held, activation_bytes, estimate, head_bytes, held_bytes, table
from pilekit.train.model.blocks import blocks_of
from pilekit.train.step.engine import Engine
from pilekit.train.step.recompute import recompute_activations
from pilekit.train.step.sharding import own_part
from tests.process_groups import ProcessGroups
from tests.tiny import Family, tiny_model, tiny_tokenizer
from tests.train.living_bytes import LivingBytes
from tests.train.plain_loop import cut, random_rows

ROWS, LENGTH = 4, 32


def shape_of(family: Family) -> Any:
    with torch.device("meta"):
        return tiny_model(family)


# Parameters, gradients, optimizer


def held_by_engine(family: Family, zero: Any, dtype: Any, micro_batches: int) -> tuple[Held, int]:
    """The bytes that a step on this rank really holds, without buffers, and those of all tensors alive after it.

    `gathered` is seen in a block's forward.
    """
    ranks = join()
    config = TrainConfig(
        train=TrainSection(steps=1), parallel=ParallelConfig(zero=zero), precision=PrecisionConfig(dtype=dtype)
    )
    before = bytes_alive()
    engine = Engine(as_causal_lm(tiny_model(family)), config, ranks)
    parameters = list(engine.lm.model.parameters())
    gathered = [0]
    accumulated = sent = 0

    def look(*_: Any) -> None:
        gathered[0] = max(gathered[0], gathered_bytes(engine._step_loss))

    for block in blocks_of(engine.lm.model):
        next(block.children()).register_forward_hook(look)
    for number, rows in enumerate(cut(cut(random_rows(0, 8, 64), ranks.world_size)[ranks.rank], micro_batches)):
        engine.forward_backward(rows, scale=1e-3, last=number == micro_batches - 1)
        if number < micro_batches - 1:
            accumulated = whole_gradients(engine._step_loss)
            sent = sent_bytes(engine._step_loss)
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
        sent=sent,
    )
    return held, bytes_alive() - before


def bytes_alive() -> int:
    """Bytes of all living tensors, each piece of memory once."""
    gc.collect()
    sizes: dict[int, int] = {}
    for tensor in [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]:
        local = own_part(tensor)
        if type(local) in (torch.Tensor, nn.Parameter) and local.device.type == "cpu":
            sizes[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
    return sum(sizes.values())


def groups_of(root: nn.Module) -> list[Any]:
    """The parameters that torch cuts, from its own records."""
    states = [module._get_fsdp_state() for module in root.modules() if isinstance(module, FSDPModule)]
    return [parameter for state in states for parameter in cast("Any", state)._fsdp_param_group.fsdp_params]


def gathered_bytes(root: nn.Module) -> int:
    return sum(
        output.untyped_storage().nbytes() for parameter in groups_of(root) for output in parameter.all_gather_outputs
    )


def sent_bytes(root: nn.Module) -> int:
    """The buffers that gradients were sent from, which torch keeps until it sends again."""
    if not isinstance(root, FSDPModule):
        return 0
    context: Any = root._get_fsdp_state()._comm_ctx
    return sum(state.reduce_scatter_input.nbytes for state in context.reduce_scatter_states)


def whole_gradients(root: nn.Module) -> int:
    total = 0
    for parameter in groups_of(root):
        for whole in (parameter.unsharded_accumulated_grad, getattr(parameter, "_unsharded_param", None)):
            gradient = whole.grad if isinstance(whole, nn.Parameter) else whole
            total += 0 if gradient is None else gradient.nbytes
    return total


def test_the_bytes_that_ranks_hold(process_group: ProcessGroups) -> None:
    for zero in (0, 1, 2, 3):
        check_held(process_group, 2, "gpt2", zero, "bf16", 2)
    check_held(process_group, 2, "gpt2", 2, "fp32", 1)
    check_held(process_group, 1, "llama", 0, "fp32", 2)
    check_held(process_group, 1, "llama", 2, "bf16", 2)


def check_held(
    process_group: ProcessGroups, world_size: int, family: Family, zero: Any, dtype: Any, micro_batches: int
) -> None:
    shape, is_plain = shape_of(family), (world_size, dtype) == (1, "fp32")
    held = held_bytes(shape, stage=zero, world_size=world_size, dtype=DTYPES[dtype], micro_batches=micro_batches)
    expected = replace(held, buffers=0)
    if zero == 3:  # during its forward the next block is not gathered yet
        block = sum(parameter.numel() for parameter in blocks_of(shape)[0].parameters())
        expected = replace(expected, gathered=held.gathered - block * DTYPES[dtype].itemsize)
    if is_plain:  # its gradients are the accumulated ones
        expected = replace(expected, accumulated=0)
    results = process_group(world_size).run(held_by_engine, family, zero, dtype, micro_batches)
    assert results[0][0] == expected
    for found, alive in results:
        assert found.parameters <= expected.parameters
        assert alive < 1.2 * (found.parameters + found.optimizer)  # no other copy is left after the step
    assert (expected.sent > 0) == (zero >= 2 and micro_batches > 1 and not is_plain)


def test_a_parameter_with_fewer_rows_than_ranks_and_one_that_is_not_trained() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(4, 7))
    model[1].requires_grad_(False)

    held = held_bytes(model, stage=3, world_size=4, dtype=torch.bfloat16, micro_batches=1)

    trained, frozen = 1 * 5 + 1, 2 * 4 + 2  # one row of three, two of seven
    assert held.parameters == 4 * (trained + frozen)
    assert (held.gradients, held.accumulated, held.optimizer) == (4 * trained, 0, 8 * trained + 2 * 4)
    everything = 3 * 5 + 3 + 7 * 4 + 7  # there are no blocks, so all of it is the one group
    assert (held.gathered, held.buffers) == (2 * everything, (2 + 4) * everything)


# Activations


def held_after_forward(model: Any, inputs: dict[str, torch.Tensor], recomputed: Any) -> int:
    """Bytes that live between a real trunk's forward and backward pass, and did not before."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and name.endswith("attn_dropout"):
            module.p = 0.0  # no fused kernel of a CPU can drop out
    recompute_activations(model.train(), recomputed)
    with LivingBytes() as live:
        result = model.base_model(**inputs)
        found: int = live.bytes
    del result
    return found


def test_activations_are_within_a_tenth_of_real_ones() -> None:
    cases: list[tuple[Family, Literal["document", "causal"], torch.dtype]] = [
        ("gpt_neox", "causal", torch.float32),
        ("gpt_neox", "document", torch.bfloat16),
        ("gpt2", "document", torch.float32),
        ("llama", "document", torch.bfloat16),
        ("llama", "causal", torch.float32),
    ]
    for family, attention, dtype in cases:
        inputs: dict[str, Any] = {"input_ids": torch.randint(0, 300, (ROWS, LENGTH)), "use_cache": False}
        if attention == "document":
            inputs["position_ids"] = torch.arange(LENGTH // 2).repeat(ROWS, 2)
        shape = shape_of(family)
        head = head_bytes(shape, ROWS * (LENGTH - 1), dtype)
        found = {}
        for recomputed in get_args(Literal["none", "selective", "full"]):
            real = held_after_forward(tiny_model(family).to(dtype), inputs, recomputed)
            if recomputed == "none":
                block = real // 2
            real += head if recomputed == "none" else max(head, block)
            found[recomputed] = activation_bytes(
                shape, rows=ROWS, seq_len=LENGTH, attention=attention, dtype=dtype, recomputed=recomputed
            )
            assert found[recomputed] == pytest.approx(real, rel=0.1), (family, attention, dtype, recomputed)
        assert found["full"] < found["selective"] < found["none"]


# The whole


def config_of(folder: Path, **sections: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "data": DataConfig(tokenizer=str(tiny_tokenizer(folder)), seq_len=64),
        "model": ModelConfig(preset="pythia-14m"),
        "train": TrainSection(steps=1, global_batch_size=16, micro_batch_size=2),
    }
    return TrainConfig(**given | sections)


def test_an_estimate_by_hand(tmp_path: Path) -> None:
    """Stage 2 of pythia-14m in bf16 on four ranks with two micro-batches; all of its dimensions can be cut in four."""
    config = config_of(tmp_path, parallel=ParallelConfig(zero=2), precision=PrecisionConfig(dtype="bf16"))

    found = estimate(config, 4)

    block = 12 * 128**2 + 13 * 128
    rest = 2 * 384 * 128 + 2 * 128
    count = 6 * block + rest
    tensors = 6 * 12 + 4
    assert (found.parameters, found.world_size, found.micro_batches, found.chosen) == (count, 4, 2, 2)
    assert found.world_sizes == [1, 2, 4, 8]
    chosen = found.stages[2]
    assert chosen.held.gathered == 2 * count
    assert chosen.held.buffers == 6 * max(block, rest)
    backward_begins = count + 4 * rest + chosen.activations  # what the first micro-batch leaves, and the second needs
    assert backward_begins > count + chosen.held.buffers
    assert (chosen.device, chosen.host) == (3 * count + 4 * tensors + 2 * count + backward_begins, 0)
    peaks = [stage.device for stage in found.stages]
    assert peaks == sorted(peaks, reverse=True)

    lines = table(found)
    assert lines[0].startswith(f"{found.parameters:,} parameters")
    assert lines[1].split()[::7] == ["zero", "peak"]
    assert [line.split()[0] for line in lines[2:6]] == ["0", "1", "*", "3"]
    assert len({len(line) for line in lines[1:6]}) == 1
    assert lines[6].endswith(": 1, 2, 4, 8")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Estimate) == found


def test_offload_moves_all_but_what_is_gathered_to_the_host(tmp_path: Path) -> None:
    found = estimate(config_of(tmp_path, parallel=ParallelConfig(zero=3, offload=True)), 4)
    held, chosen = found.stages[3].held, found.stages[3]
    assert chosen.host == held.parameters + held.gradients + held.optimizer
    assert chosen.device == held.gathered + held.sent + max(chosen.activations, held.buffers)
    assert found.stages[0].host == 0
    assert "in CPU memory" in table(found)[1]


def test_what_cannot_run_is_not_estimated(tmp_path: Path) -> None:
    with pytest.raises(PilekitError, match=r"^train.global_batch_size = 16: 3 ranks cannot share it"):
        estimate(config_of(tmp_path), 3)
    with pytest.raises(PilekitError, match=r"^optimizer.lr_by_pattern: "):
        estimate(config_of(tmp_path, optimizer=OptimizerConfig(lr_by_pattern={"none": 1.0})), 1)
