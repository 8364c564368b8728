"""What a run takes of each rank's memory, stage by stage, before anything is allocated.

Formulas for what sharding.py does, of Ψ parameters on W ranks, with c bytes of the type that is computed in, u
parameters in the largest group (a block, or all that is in none), r in that rest:

                stage 0    stage 1         stage 2    stage 3
    parameters  4Ψ         4Ψ/W            4Ψ/W       4Ψ/W           the masters, float32
    gradients   4Ψ         4Ψ/W            4Ψ/W       4Ψ/W           when they are complete
    accumulated 4Ψ         4Ψ              0          0              whole, if there are several micro-batches
    optimizer   8Ψ         8Ψ/W            8Ψ/W       8Ψ/W
    gathered    cΨ         cΨ              cΨ         c(r + 2u')     u': in the largest block
    buffers     (c + 4)u   (c + 4)u        (c + 4)u   (c + 4)u       one group's gradients on their way
    sent        0          0               4r         4r             between micro-batches: what has just been sent

A parameter is cut along its first dimension into W pieces of as many rows, so the first rank holds all of Ψ/W rounded
up, row by row. One rank that computes in float32 gathers nothing and has no buffers. Activations come from running the
trunk on the meta device (activations.py).

The peak is either when a backward pass begins, or when it ends: activations are all there at the one, gradients at the
other. With several micro-batches the gradients of those before are there at both; and the buffer that the last group,
which is the rest, was sent from is given back only when the next backward pass sends its first. Where a run uses more
than that, it is what lies outside of tensors: the libraries, their workspaces, and memory in pieces that fit nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from pilekit.train.config import TrainConfig, check, check_world, world_sizes
from pilekit.train.data import open_tokenizer
from pilekit.train.estimate.activations import activation_bytes
from pilekit.train.model.blocks import blocks_of
from pilekit.train.model.build import model_shape
from pilekit.train.step.optimizer import lr_scales

Stage = Literal[0, 1, 2, 3]
Dtype = Literal["fp32", "bf16", "fp16"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of model and optimizer on the first rank, each at its most; see the table of the module."""

    parameters: int
    gradients: int
    accumulated: int
    optimizer: int
    gathered: int
    buffers: int
    sent: int


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """Bytes per rank under one ZeRO stage.

    device   at the peak, on the device that computes
    host     in the CPU's memory, if `parallel.offload` moves parameters, gradients and optimizer there; else 0
    """

    zero: Stage
    held: Held
    activations: int
    device: int
    host: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a config takes on a number of ranks.

    parameters     of the model, tied ones counted once
    micro_batches  of each rank per step
    world_sizes    numbers of ranks that can share its steps
    chosen         the stage of the config
    stages         all four, by their number; stage 0 cannot offload, and is given as it is without
    """

    parameters: int
    world_size: int
    micro_batches: int
    world_sizes: list[int]
    chosen: Stage
    stages: list[StageEstimate]


def estimate(config: TrainConfig, world_size: int) -> Estimate:
    """The bytes per rank that `config` takes on `world_size` ranks; reads the tokenizer and the model's shape, no data.

    PilekitError for a config that cannot run, on so many ranks or at all.
    """
    check(config)
    check_world(config, world_size)
    train, parallel, dtype = config.train, config.parallel, config.precision.dtype
    shape = model_shape(config.model, open_tokenizer(config), config.data.seq_len, train.objective)
    lr_scales(shape, config.optimizer)  # a pattern that matches nothing is told here already
    micro_batches = train.global_batch_size // world_size // train.micro_batch_size
    stages: tuple[Stage, ...] = get_args(Stage)
    held = [
        held_bytes(shape, stage=stage, world_size=world_size, dtype=dtype, micro_batches=micro_batches)
        for stage in stages
    ]
    parameters = sum(parameter.numel() for parameter in shape.parameters())
    activations = activation_bytes(
        shape,
        rows=train.micro_batch_size,
        seq_len=config.data.seq_len,
        attention=config.data.attention,
        objective=train.objective,
        dtype=DTYPES[dtype],
        recomputed=parallel.activation_checkpoint,
    )
    return Estimate(
        parameters=parameters,
        world_size=world_size,
        micro_batches=micro_batches,
        world_sizes=world_sizes(config),
        chosen=parallel.zero,
        stages=[
            _stage(stage, held[stage], activations, micro_batches, offload=parallel.offload and stage > 0)
            for stage in stages
        ],
    )


def held_bytes(model: nn.Module, *, stage: Stage, world_size: int, dtype: Dtype, micro_batches: int) -> Held:
    """What the first rank holds of `model`, which is whole (the meta device will do), and of its optimizer."""
    ranks = world_size if stage > 0 else 1
    size = DTYPES[dtype].itemsize
    whole = {id(parameter): parameter for parameter in model.parameters()}
    own = {name: _rows(parameter, ranks) for name, parameter in whole.items()}
    trained = [name for name, parameter in whole.items() if parameter.requires_grad]
    blocks = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks_of(model)]
    in_blocks = {id(parameter) for block in blocks_of(model) for parameter in block.parameters()}
    total = sum(parameter.numel() for parameter in whole.values())
    learnt = sum(whole[name].numel() for name in trained)
    rest = total - sum(blocks)
    alone = world_size == 1 and dtype == "fp32"  # the model is left as it is
    gathered = total if stage < 3 else rest + 2 * max(blocks, default=0)
    return Held(
        parameters=4 * sum(own.values()),
        gradients=4 * sum(own[name] for name in trained),
        accumulated=4 * learnt if micro_batches > 1 and stage < 2 else 0,
        optimizer=sum(8 * own[name] + 4 for name in trained),  # two means, and the number of steps
        gathered=0 if alone else size * gathered,
        buffers=0 if alone else (size + 4) * max([rest, *blocks]),
        sent=4 * world_size * sum(own[name] for name in trained if name not in in_blocks)
        if stage >= 2 and micro_batches > 1 and not alone
        else 0,
    )


def _rows(parameter: nn.Parameter, ranks: int) -> int:
    """Numbers in the largest of as many pieces of a parameter as there are ranks."""
    if parameter.ndim == 0:
        return 1
    return -(-parameter.shape[0] // ranks) * math.prod(parameter.shape[1:])


def _stage(zero: Stage, held: Held, activations: int, micro_batches: int, *, offload: bool) -> StageEstimate:
    """Add up what is there at the same time."""
    stays = held.parameters + held.optimizer
    complete = held.gradients
    before = 0 if micro_batches == 1 else max(held.accumulated, complete)
    if offload:
        host, stays, complete = stays + complete, 0, 0
        before = held.accumulated
    else:
        host = 0
    backward_begins = before + held.sent + activations
    backward_ends = max(before, complete) + held.buffers
    return StageEstimate(zero, held, activations, stays + held.gathered + max(backward_begins, backward_ends), host)


def table(found: Estimate) -> list[str]:
    """The lines of a table of all stages, the chosen one marked, in units of 1000."""
    from rich.filesize import decimal

    ranks = "1 rank" if found.world_size == 1 else f"{found.world_size:,} ranks, each"
    parts = "1 micro-batch" if found.micro_batches == 1 else f"{found.micro_batches:,} micro-batches"
    head = ["zero", "parameters", "gradients", "optimizer", "gathered", "buffers", "activations", "peak"]
    rows = [
        [
            f"{'*' if stage.zero == found.chosen else ' '} {stage.zero}",
            decimal(stage.held.parameters),
            decimal(max(stage.held.gradients, stage.held.accumulated)),
            decimal(stage.held.optimizer),
            decimal(stage.held.gathered),
            decimal(stage.held.buffers),
            decimal(stage.activations),
            decimal(stage.device),
        ]
        for stage in found.stages
    ]
    if any(stage.host for stage in found.stages):
        head.append("in CPU memory")
        for row, stage in zip(rows, found.stages, strict=True):
            row.append(decimal(stage.host) if stage.host else "-")
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    sizes = ", ".join(map(str, found.world_sizes[:20])) + (", …" if len(found.world_sizes) > 20 else "")
    return [
        f"{found.parameters:,} parameters on {ranks} with {parts} per step",
        *lines,
        f"* chosen; its steps can be shared by {sizes} rank{'s' * (found.world_sizes != [1])}",
    ]
