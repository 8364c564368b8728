"""Activation checkpointing: the backward pass computes activations again instead of keeping them.

"full" keeps only a block's input. "selective" keeps the results of matrix products and of attention, which take most of
the time, and computes norms, activation functions and rotations again. The models of transformers do this themselves,
around the body of a block, so parameter names do not change and sharding stays outside. Random numbers are drawn again
as before, so results do not change.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from pilekit.errors import PilekitError, visible

_ATEN = torch.ops.aten
KEPT = {
    operation.default
    for operation in (
        _ATEN.mm,
        _ATEN.addmm,
        _ATEN.bmm,
        _ATEN.baddbmm,
        _ATEN._scaled_dot_product_flash_attention,
        _ATEN._scaled_dot_product_efficient_attention,
        _ATEN._scaled_dot_product_cudnn_attention,
        _ATEN._scaled_dot_product_flash_attention_for_cpu,
    )
}


def recompute_activations(model: PreTrainedModel, what: Literal["none", "full", "selective"]) -> None:
    """Make the blocks of `model` compute activations again; PilekitError if the model does not support it."""
    if what == "none":
        return
    settings: dict[str, Any] = {"use_reentrant": False}
    if what == "selective":
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    given: Any = model
    enable = (
        getattr(given, "activation_checkpointing_enable", None) or given.gradient_checkpointing_enable
    )  # older name
    try:
        enable(settings)
    except ValueError as error:
        raise PilekitError(
            f"a {visible(str(model.config.model_type), 60)} model cannot compute its activations again; set "
            'parallel.activation_checkpoint = "none"'
        ) from error


def _policy(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
