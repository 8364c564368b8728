"""pilekit's trainer under torch 2.11, which machines with a GPU may have, for tests/gpu and for benchmarks."""

from __future__ import annotations

from typing import Any, cast

from torch.distributed.fsdp import FSDPModule

from pilekit.train.config import check


def allow_older_torch() -> None:
    """Let `train` run under torch 2.11, and give it the one method that it lacks."""
    check.NEEDED["torch"] = (2, 11)
    if not hasattr(FSDPModule, "reset_iter_state"):
        cast("Any", FSDPModule).reset_iter_state = _reset


def _reset(root: Any) -> None:
    """`reset_iter_state` after a forward pass that ended as it should."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    context = root._get_fsdp_state()._state_ctx
    context.iter_forward_root = None
    root._get_fsdp_state()._comm_ctx.post_forward_order.clear()
