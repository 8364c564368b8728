"""The memory that a run takes on each rank under every ZeRO stage, before anything is allocated.

Formulas for step/sharding.py, with Ψ parameters on W ranks (with parallel.shard, on those of a group), c bytes of the
computing type, u parameters in the largest group (a block, or the rest outside of blocks), r in the rest, and b in the
largest block:

                stage 0    stage 1         stage 2    stage 3
    parameters  4Ψ         4Ψ/W            4Ψ/W       4Ψ/W           float32 masters
    gradients   4Ψ         4Ψ/W            4Ψ/W       4Ψ/W           complete gradients
    accumulated 4Ψ         4Ψ              0          0              whole, with several micro-batches
    optimizer   8Ψ         8Ψ/W            8Ψ/W       8Ψ/W
    gathered    cΨ         cΨ              cΨ         c(r + 2b)
    buffers     (c + 4)u   (c + 4)u        (c + 4)u   (c + 4)u       one group's gradients while they are sent
    sent        0          0               4r         4r             the last buffer, kept between micro-batches
    teacher     parameters and gathered, as above, of its own parameters and bytes

Parameters are cut along their first dimension, so the first rank holds Ψ/W rounded up row by row. A single rank in
float32 gathers nothing and needs no buffers. The peak is when a backward pass begins (all activations exist) or ends
(all gradients exist). Memory outside of tensors, such as libraries and fragments, comes on top.

Activations are a formula too: for every token, a block keeps twice as many numbers as its matrix products give, because
the operations between two products (norms, rotations, activation functions) keep about as many again. That is within
2 % for GPT-NeoX, and approximate for other architectures. Tests compare the sum with the peak of real steps, to 10 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import torch
from rich.filesize import decimal
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pilekit.artifacts.sort.memory_limit import memory_limit
from pilekit.display.fitted_table import Column, FittedTable, rounded_bytes
from pilekit.errors import counted
from pilekit.models.transformer_blocks import blocks_of
from pilekit.stream.batch.mlm import CHOSEN
from pilekit.train.config.check import check_model, check_world
from pilekit.train.config.file import load_config
from pilekit.train.config.sections import AttentionKernel, TrainConfig
from pilekit.train.data import open_tokenizer
from pilekit.train.model.attention import chosen_attention, with_attention
from pilekit.train.model.shape import model_shapes
from pilekit.train.model.varlen import VARLEN
from pilekit.train.step.chunked_loss import ROWS
from pilekit.train.step.optimizer import muon_parameters
from pilekit.train.step.sharding import DTYPES, Stage


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Peak bytes of model and optimizer on the first rank, by the rows of the table above."""

    parameters: int
    gradients: int
    accumulated: int
    optimizer: int
    gathered: int
    buffers: int
    sent: int
    teacher: int = 0


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """Bytes per rank under one ZeRO stage.

    device   peak on the device that computes
    host     in the CPU's memory, if `parallel.offload` moves parameters, gradients and optimizer there; else 0
    """

    zero: Stage
    held: MemoryParts
    activations: int
    device: int
    host: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory that a config takes on a number of ranks.

    parameters     number of parameters of the model; tied ones count once
    rows           rows of its embedding: the ids that it knows
    micro_batches  number of micro-batches of each rank in a step
    chosen         the config's stage
    attention      how the model attends on this machine, if "varlen" runs where "auto" tries it
    stages         all four stages in order; stage 0 never offloads
    """

    parameters: int
    rows: int
    world_size: int
    micro_batches: int
    chosen: Stage
    attention: AttentionKernel
    stages: list[StageEstimate]


def estimate(config: TrainConfig, world_size: int) -> Estimate:
    """The bytes per rank that `config` takes on `world_size` ranks; reads the tokenizer and the model's shape, no data.

    Raises PilekitError for a config that cannot run on this number of ranks.
    """
    check_model(config := load_config(config))
    check_world(config, world_size)
    config = with_attention(config, chosen_attention(config, "cuda" if torch.cuda.is_available() else "cpu"))
    train, parallel, dtype = config.train, config.parallel, DTYPES[config.precision.dtype]
    shape, teacher = model_shapes(config, open_tokenizer(config), config.source)
    micro_batches = train.global_batch_size // world_size // train.micro_batch_size
    sharing = parallel.shard or world_size
    for_muon = muon_parameters(shape, config.optimizer)
    matrices = [parameter for name, parameter in shape.named_parameters() if name in for_muon]
    activations = activation_bytes(shape, config)
    stages = []
    for stage in get_args(Stage):
        parts = state_bytes(shape, stage=stage, world_size=sharing, dtype=dtype, micro_batches=micro_batches)
        # Muon keeps one mean instead of two, and no number of steps.
        spared = 4 * _numbers(matrices, sharing if stage else 1) + 4 * len(matrices)
        averages = parts.gradients if train.ema else 0  # 4 bytes of each trained parameter too
        parts = replace(parts, optimizer=parts.optimizer - spared + averages)
        if teacher is not None:
            teacher_parts = state_bytes(teacher, stage=stage, world_size=sharing, dtype=torch.float32, micro_batches=1)
            size = DTYPES[config.teacher.dtype].itemsize
            parts = replace(parts, teacher=(teacher_parts.parameters + teacher_parts.gathered) * size // 4)
        offload = parallel.offload and stage > 0
        stages.append(_at_peak(stage, parts, activations, micro_batches, offload=offload))
    return Estimate(
        parameters=sum(parameter.numel() for parameter in shape.parameters()),
        rows=cast("Any", shape).get_input_embeddings().num_embeddings,
        world_size=world_size,
        micro_batches=micro_batches,
        chosen=parallel.zero,
        attention=config.model.attention_implementation,
        stages=stages,
    )


def _at_peak(zero: Stage, parts: MemoryParts, activations: int, micro_batches: int, *, offload: bool) -> StageEstimate:
    """Add up the memory that is in use at the same time."""
    stays, complete, host = parts.parameters + parts.optimizer + parts.teacher, parts.gradients, 0
    before = 0 if micro_batches == 1 else max(parts.accumulated, complete)
    if offload:
        host, stays, complete, before = stays + complete, 0, 0, parts.accumulated
    backward_begins = before + parts.sent + activations
    backward_ends = max(before, complete) + parts.buffers
    return StageEstimate(zero, parts, activations, stays + parts.gathered + max(backward_begins, backward_ends), host)


def state_bytes(
    model: nn.Module, *, stage: Stage, world_size: int, dtype: torch.dtype, micro_batches: int
) -> MemoryParts:
    """The bytes that the first rank holds of `model` and its optimizer. `model` may be on the meta device."""
    parameters, groups = list(model.parameters()), [list(block.parameters()) for block in blocks_of(model)]
    in_blocks = {id(parameter) for group in groups for parameter in group}
    outside = [parameter for parameter in parameters if id(parameter) not in in_blocks]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    cut, several = world_size if stage > 0 else 1, micro_batches > 1
    is_plain = world_size == 1 and dtype == torch.float32  # the model is left as it is
    blocks = [_numbers(group) for group in groups]
    gathered = _numbers(parameters) if stage < 3 else _numbers(outside) + 2 * max(blocks, default=0)
    trained_outside = [parameter for parameter in outside if parameter.requires_grad]
    return MemoryParts(
        parameters=4 * _numbers(parameters, cut),
        gradients=4 * _numbers(trained, cut),
        accumulated=4 * _numbers(trained) if several and stage < 2 else 0,
        optimizer=8 * _numbers(trained, cut) + 4 * len(trained),  # two means, and the number of steps
        gathered=0 if is_plain else dtype.itemsize * gathered,
        buffers=0 if is_plain else (dtype.itemsize + 4) * max([_numbers(outside), *blocks]),
        sent=4 * world_size * _numbers(trained_outside, cut) if several and stage >= 2 and not is_plain else 0,
    )


def _numbers(parameters: list[nn.Parameter], ranks: int = 1) -> int:
    """How many of the parameters' numbers the first of `ranks` ranks holds."""
    return sum(-(-(p.shape[0] if p.ndim else 1) // ranks) * math.prod(p.shape[1:]) for p in parameters)


def activation_bytes(model: PreTrainedModel, config: TrainConfig) -> int:
    """The most bytes that a micro-batch holds between forward and backward pass, apart from parameters.

    Models that change their logits, other than by scaling or a soft cap, also hold all of their logits.
    """
    rows, seq_len = config.train.micro_batch_size, config.data.seq_len
    recomputed = config.parallel.activation_checkpoint
    is_causal, dtype = config.train.objective == "clm", DTYPES[config.precision.dtype]
    blocks, tokens = blocks_of(model), rows * seq_len
    width: int = cast("Any", model).get_output_embeddings().weight.shape[1]
    products = 0  # the numbers per token that the matrix products of a block give
    for module in blocks[0].modules() if blocks else ():
        products += module.out_features if isinstance(module, nn.Linear) else 0
        products += module.nf if isinstance(module, Conv1D) else 0
    has_mask = config.data.attention == "document" and config.model.attention_implementation != VARLEN
    mask = tokens * seq_len if has_mask or not is_causal else 0  # one for all blocks
    block = (2 * tokens * products + mask) * dtype.itemsize  # each block keeps a copy of the mask in `dtype`
    outside = mask + 2 * tokens * width * dtype.itemsize  # the last norm's input and result
    head = head_bytes(model, rows * (seq_len - 1) if is_causal else round(CHOSEN * tokens), dtype)
    if recomputed == "none":
        return outside + len(blocks) * block + head
    # A block's input, and with "selective" also the results of its matrix products and attention.
    kept_numbers = width if recomputed == "full" else 2 * width + products
    kept_bytes = tokens * len(blocks) * kept_numbers * dtype.itemsize
    return outside + kept_bytes + max(head, block)  # blocks are computed again after the head's backward pass


def head_bytes(model: PreTrainedModel, targets: int, dtype: torch.dtype) -> int:
    """The most bytes that `chunked_cross_entropy` holds for this number of targets."""
    words, width = cast("Any", model).get_output_embeddings().weight.shape
    states = 2 * targets * width * dtype.itemsize  # with their gradient
    logits = min(ROWS, targets) * words * (dtype.itemsize + 4)  # also in float32
    gradient = 4 * words * width
    total: int = states + gradient + max(logits, gradient)  # the gradient exists twice when the backward pass begins
    return total


def shortage(plan: Estimate, ranks: int) -> str | None:
    """Why this machine has too little memory for `ranks` ranks of it, in words, or None if it has enough."""
    stage = plan.stages[plan.chosen]
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    host = stage.host if gpus else stage.device + stage.host
    on_gpu, limit = min((gpu.total_memory for gpu in gpus), default=0), memory_limit()
    if gpus and stage.device > on_gpu:
        return f"a GPU here has {decimal(on_gpu)}"
    if host * ranks > limit:
        return f"{counted(ranks, 'rank')} of this machine would take {decimal(host * ranks)}; it has {decimal(limit)}"
    return None


def table(plan: Estimate) -> FittedTable[StageEstimate]:
    """A row for each stage."""

    def teacher(stage: StageEstimate) -> str:
        return rounded_bytes(stage.held.teacher)

    columns: list[Column[StageEstimate]] = [
        Column("ZeRO", lambda stage: f"{stage.zero}{', chosen' * (stage.zero == plan.chosen)}"),
        Column("Parameters", lambda stage: rounded_bytes(stage.held.parameters)),
        Column("Gradients", lambda stage: rounded_bytes(max(stage.held.gradients, stage.held.accumulated))),
        Column("Optimizer", lambda stage: rounded_bytes(stage.held.optimizer)),
        Column("Gathered", lambda stage: rounded_bytes(stage.held.gathered)),
        Column("Buffers", lambda stage: rounded_bytes(stage.held.buffers)),
        *([Column("Teacher", teacher)] if any(stage.held.teacher for stage in plan.stages) else []),
        Column("Activations", lambda stage: rounded_bytes(stage.activations)),
        Column("Peak", lambda stage: rounded_bytes(stage.device)),
    ]
    if any(stage.host for stage in plan.stages):
        columns.append(Column("In CPU memory", lambda stage: rounded_bytes(stage.host)))
    return FittedTable(plan.stages, columns, priority=("Buffers", "Gathered"))
