"""The part of a model that each rank holds: ZeRO stages 0 to 3, as settings of one primitive.

FSDP2 cuts every parameter along its first dimension, and gathers a group of parameters when it is needed. Each
transformer block is a group, and the rest of the model is one more. `replicate` is the same machinery with whole
parameters.

Parameters, gradients and the optimizer's state are float32. In bf16 and fp16, parameters are gathered as copies of that
type, and gradients are summed over micro-batches and ranks in float32.

    stage  gathered parameters                  gradients before the last micro-batch
    0      copies (whole on every rank)         whole, not yet averaged over ranks
    1      first forward to last backward       whole, not yet averaged over ranks
    2      first forward to last backward       averaged and cut after every micro-batch
    3      a block at a time, forward and back  averaged and cut after every micro-batch

With one micro-batch per step, stages 1 and 2 are the same program. In stage 3, embeddings, final norm and head stay
gathered from a micro-batch's forward to its backward, because both ends of the model need them. A single rank in
float32 leaves its model as it is.

The ranks may form groups, such as the machines of a cluster: a group shares one copy, and gradients are summed over
groups once a step (HSDP). So only the ranks of a group gather parameters from each other.

All ranks start with rank 0's weights. The other ranks need only the model's shape. Each parameter is sent after all are
cut, so only rank 0 ever holds a whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from pilekit.train.config.sections import ParallelConfig
from pilekit.workers.ranks import Ranks

Stage = Literal[0, 1, 2, 3]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def shard(
    root: nn.Module,
    blocks: Sequence[nn.Module],
    ranks: Ranks,
    parallel: ParallelConfig,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Cut `root` in place, with each of `blocks` as a group, and fill it with rank 0's numbers, on the ranks' device.

    Trained parameters are float32. All become DTensors with the same names, unless a single rank in float32 leaves
    them alone. `parallel` has the stage, whether parameters, gradients and the optimizer's state stay in the CPU's
    memory between uses (`offload`), and how many ranks, in order, share one copy (`shard`; None: all). Parameters are
    gathered as copies in `dtype`; float32: as they are.
    """
    for name, parameter in root.named_parameters():
        # A bfloat16 master would silently learn next to nothing.
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise TypeError(f"{name} is {parameter.dtype}, but masters are float32")
    stage, offload, group = parallel.zero, parallel.offload, parallel.shard
    if ranks.world_size == 1 and dtype == torch.float32 and not (offload and ranks.device.type != "cpu"):
        root.to(ranks.device)
        return
    whole = {name: parameter.detach() for name, parameter in root.named_parameters() if ranks.is_first}
    computing, summing = (None, None) if dtype == torch.float32 else (dtype, torch.float32)
    if group is None or group == ranks.world_size:
        mesh = ranks.mesh
    else:  # all ranks as rows of `group`: a row shares one copy, and a column holds the same part of each
        shape = ranks.world_size // group, group
        mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=("replicate", "shard"))
    settings: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=computing, reduce_dtype=summing),
        "offload_policy": CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda") if offload else OffloadPolicy(),
    }
    if stage == 0 and ranks.world_size > 1:
        from torch.distributed._composable.replicate_with_fsdp import replicate  # not in older torch

        for module in (*blocks, root):
            replicate(module, **settings)
    else:
        for block in blocks:
            fully_shard(block, reshard_after_forward=stage == 3, **settings)
        fully_shard(root, **settings)
    register_fsdp_forward_method(root, "gather")  # for `gather_rest`
    if ranks.world_size > 1:
        _fill(root, whole, ranks)


def _fill(root: nn.Module, whole: dict[str, Tensor], ranks: Ranks) -> None:
    """Send rank 0's numbers to the parameters and buffers of all ranks; empties `whole` on the way."""
    for name, parameter in root.named_parameters():
        part = cast("DTensor", parameter.detach())
        values = whole.pop(name) if ranks.is_first else torch.empty(part.shape, dtype=part.dtype)
        sent = distribute_tensor(values.to(ranks.device), part.device_mesh, part.placements)
        part.to_local().copy_(sent.to_local())
    for buffer in root.buffers():
        send_from_rank0(buffer)


def send_from_rank0(tensor: Tensor) -> None:
    """Copy rank 0's numbers into `tensor` on all ranks, byte by byte because gloo does not send every type."""
    if tensor.numel():
        values = tensor.detach().reshape(-1).contiguous()
        dist.broadcast(values.view(torch.uint8), src=0)
        tensor.data.copy_(values.view_as(tensor))


def before_micro_batch(root: nn.Module, stage: Stage, *, last: bool) -> None:
    """Set which tensors the next forward and backward keep and send; `last`: the step's last micro-batch."""
    if not isinstance(root, FSDPModule):
        return
    root.set_is_last_backward(last)
    if stage <= 1:
        root.set_requires_gradient_sync(last)
    if stage <= 2:
        root.set_reshard_after_backward(last)
    if stage >= 2:
        root.set_requires_all_reduce(last)  # between groups; within a group they are summed every time


def gather_rest(root: nn.Module) -> None:
    """Gather all parameters outside of blocks on every rank until `release`. Blocks gather themselves."""
    if isinstance(root, FSDPModule):
        # An empty method of `root`: FSDP2 gathers before it, as before a forward. It gets an argument, because on a GPU
        # torch 2.13 cannot move none (IndexError in `_to_kwargs`).
        cast("Any", root).gather(None)


def release(root: nn.Module) -> None:
    """Leave each rank only its own parts, as between two steps."""
    if isinstance(root, FSDPModule):
        root.reset_iter_state()


def is_sharded(parameter: Tensor) -> bool:
    """Whether this rank holds only a part of the parameter."""
    return isinstance(parameter, DTensor) and any(placement.is_shard() for placement in parameter.placements)


def is_first_copy(parameter: Tensor) -> bool:
    """Whether this rank's part of a sharded parameter is the one that counts: other groups may hold the same part."""
    if not isinstance(parameter, DTensor):
        return True
    coordinates = parameter.device_mesh.get_coordinate() or ()
    return not any(
        coordinate
        for coordinate, placement in zip(coordinates, parameter.placements, strict=True)
        if placement.is_replicate()
    )


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, which may be empty; the tensor itself if it is whole."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor that the ranks may have cut. All ranks call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_parameters(
    model: nn.Module, ranks: Ranks, instead: Callable[[nn.Parameter], Tensor] = lambda parameter: parameter
) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor on the CPU) of each parameter, then of each stored buffer: whole on rank 0, empty elsewhere.

    instead   returns the tensor to use for a parameter, sharded alike

    All ranks must iterate to the end. A tied parameter comes once. A whole tensor on the CPU is yielded without a copy.
    """
    nothing = torch.empty(0)
    for name, parameter in model.named_parameters():
        value = instead(parameter).detach()
        if isinstance(value, DTensor):
            local = value.to_local().to(ranks.device)  # offloaded parts must be on the device to be sent
            value = DTensor.from_local(
                local, value.device_mesh, value.placements, shape=value.shape, stride=value.stride()
            ).full_tensor()
        yield name, value.cpu() if ranks.is_first else nothing
    stored = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in stored:
            yield name, buffer.detach().cpu() if ranks.is_first else nothing
