"""Activation checkpointing: what the forward pass makes and the backward pass needs is computed twice, not kept.

"full" keeps a block's input and nothing else. "selective" keeps the results of matrix products and of attention, which
take nearly all of the time, and computes again what lies between: norms, activations, rotations. Models of
transformers do it themselves, around the body of a block, so no name of a parameter changes, and what gathers a block's
parameters stays outside. Random numbers are drawn again as they were, so no result changes.
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
    """Have the blocks of `model` compute activations again; PilekitError if the model has no provision for it."""
    if what == "none":
        return
    settings: dict[str, Any] = {"use_reentrant": False}
    if what == "selective":
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    given: Any = model  # untyped, and of another name in older versions
    enable = getattr(given, "activation_checkpointing_enable", None) or given.gradient_checkpointing_enable
    try:
        enable(settings)
    except ValueError as error:
        raise PilekitError(
            f"a {visible(str(model.config.model_type), 60)} model cannot compute its activations again; set "
            'parallel.activation_checkpoint = "none"'
        ) from error


def _policy(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
