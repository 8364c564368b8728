"""What each rank holds of a model: ZeRO stages 0 to 3, each a setting of one primitive.

FSDP2 cuts every parameter along its first dimension and gathers it, group by group, when it is needed; `replicate` is
the same machinery with whole parameters. One group is a transformer block; one more, the root's, is what is left. What
stays with a rank between steps is float32: the masters. What is gathered is in the type that is computed in, and
gradients are summed over micro-batches and ranks in float32.

    stage  gathered parameters                  gradients before the last micro-batch
    0      copies (whole on every rank)         whole, not yet averaged over ranks
    1      first forward to last backward       whole, not yet averaged over ranks
    2      first forward to last backward       averaged and cut after every micro-batch
    3      a block at a time, forward and back  averaged and cut after every micro-batch

With one micro-batch per step, 1 and 2 are the same program. The embeddings, final norm and head are gathered from a
micro-batch's forward to its backward in stage 3 too: they are needed at both of its ends.

One rank computing in float32 has nothing to share and nothing to convert, and its model is left as it is.

All ranks begin with rank 0's weights: it alone needs to have built them. Each parameter is sent out when all have been
cut, so no rank but it ever holds a whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from pilekit.engine.ranks import Ranks
from pilekit.train.step.precision import policy

Stage = Literal[0, 1, 2, 3]


def shard(
    root: nn.Module,
    blocks: Sequence[nn.Module],
    ranks: Ranks,
    *,
    stage: Stage,
    dtype: Literal["fp32", "bf16", "fp16"],
    offload: bool,
) -> None:
    """Cut `root` in place, its `blocks` each as a group, and put rank 0's numbers into all of it; on ranks' device.

    Parameters are float32 and become DTensors of the same names (but not where there is nothing to do, see above);
    `offload`: they lie in the CPU's memory between uses, and so will gradients and the optimizer's state.
    """
    for name, parameter in root.named_parameters():
        if parameter.dtype != torch.float32:  # a master in bfloat16 would silently learn next to nothing
            raise TypeError(f"{name} is {parameter.dtype}, but masters are float32")
    if ranks.world_size == 1 and dtype == "fp32" and not (offload and ranks.device.type != "cpu"):
        root.to(ranks.device)
        return
    whole = dict(root.named_parameters()) if ranks.is_first else {}
    settings: dict[str, Any] = {
        "mesh": ranks.mesh,
        "mp_policy": policy(dtype),
        "offload_policy": CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda") if offload else OffloadPolicy(),
    }
    if stage == 0 and ranks.world_size > 1:
        for module in (*blocks, root):
            replicate(module, **settings)
    else:
        for block in blocks:
            fully_shard(block, reshard_after_forward=stage == 3, **settings)
        fully_shard(root, **settings)
    register_fsdp_forward_method(root, "gather")
    _fill(root, {name: parameter.detach() for name, parameter in whole.items()}, ranks)


def _fill(root: nn.Module, whole: dict[str, Tensor], ranks: Ranks) -> None:
    """Rank 0's numbers into the parameters and buffers of all ranks; `whole` is given up on the way."""
    if ranks.world_size == 1:
        return
    for name, parameter in root.named_parameters():
        part = cast("DTensor", parameter.detach())
        own = whole.pop(name) if ranks.is_first else torch.empty(part.shape, dtype=part.dtype)
        sent = distribute_tensor(own.to(ranks.device), part.device_mesh, part.placements)
        part.to_local().copy_(sent.to_local())
    for _, buffer in root.named_buffers():
        if buffer.numel():
            value = buffer.detach().contiguous()
            dist.broadcast(value.view(torch.uint8) if value.dim() else value.unsqueeze(0).view(torch.uint8), src=0)
            buffer.copy_(value)


def before_micro_batch(root: nn.Module, stage: Stage, *, last: bool) -> None:
    """Set what the next forward and backward keep and send; `last`: it is the step's last micro-batch."""
    if not isinstance(root, FSDPModule):
        return
    root.set_is_last_backward(last)
    if stage <= 1:
        root.set_requires_gradient_sync(last)
    if stage <= 2:
        root.set_reshard_after_backward(last)


def gather_rest(root: nn.Module) -> None:
    """Have what belongs to no block whole on every rank, until `release` is called; blocks gather themselves."""
    if isinstance(root, FSDPModule):
        cast("Any", root).gather()


def release(root: nn.Module) -> None:
    """Leave to each rank its own part of everything, as between two steps."""
    if isinstance(root, FSDPModule):
        root.reset_iter_state()


def is_sharded(parameter: Tensor) -> bool:
    """Whether a rank holds a part of it, and not all."""
    return isinstance(parameter, DTensor) and any(placement.is_shard() for placement in parameter.placements)


def own_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: itself where it is whole; it may be empty."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_parameters(model: nn.Module, ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    """(name, float32 on the CPU) of each parameter, then of each stored buffer, whole on rank 0 and empty elsewhere.

    One at a time; all ranks must go through to the end. A tied parameter comes once. What every rank has whole anyway
    is no copy, but the model's own memory.
    """
    nothing = torch.empty(0)
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        if isinstance(value, DTensor):
            local = value.to_local().to(ranks.device)  # where the mesh's messages travel
            value = DTensor.from_local(
                local, value.device_mesh, value.placements, shape=value.shape, stride=value.stride()
            ).full_tensor()
        yield name, value.cpu() if ranks.is_first else nothing
    stored = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in stored:
            yield name, buffer.detach().cpu() if ranks.is_first else nothing
