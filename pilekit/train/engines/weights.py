"""What the adapters do with weights: send rank 0's to all, and show a state that lies elsewhere as a torch model's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from pilekit.engine.ranks import Ranks
from pilekit.train.step.sharding import send_from_rank0


def share_weights(model: nn.Module, ranks: Ranks) -> None:
    """Put the model on the ranks' device, and rank 0's numbers into everyone's."""
    model.to(ranks.device)
    if ranks.world_size == 1:
        return
    for tensor in chain(model.parameters(), model.buffers()):
        send_from_rank0(tensor)


def own_share(whole: Tensor, ranks: Ranks) -> Tensor:
    """This rank's copy of its part of a tensor that all have whole, as FSDP2 would cut it."""
    if whole.dim() == 0:
        return whole.clone()
    parts = torch.chunk(whole, ranks.world_size)
    part = parts[ranks.rank].clone() if ranks.rank < len(parts) else whole[:0].clone()
    return DTensor.from_local(
        part, ranks.mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.contiguous().stride()
    )


def module_of(
    parameters: Mapping[str, Tensor], buffers: Iterable[tuple[str, Tensor]], persistent: Iterable[str]
) -> nn.Module:
    """A module that has these under their names, and computes nothing; buffers are the very same tensors."""
    root, stored = nn.Module(), set(persistent)
    for name, tensor in parameters.items():
        home, last = _home(root, name)
        home.register_parameter(last, nn.Parameter(tensor))
    for name, buffer in buffers:
        home, last = _home(root, name)
        home.register_buffer(last, buffer, persistent=name in stored)
    return root


def _home(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root, last
