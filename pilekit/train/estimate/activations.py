"""The memory that the backward pass of a micro-batch needs of its forward pass, without computing either.

The model's trunk runs once on the meta device, where tensors have shapes and no numbers, and autograd tells which
tensors it keeps. This works for any model. The rest are formulas: the attention mask, the loss, and recomputation,
which takes all blocks for equal. tests/train/test_estimate.py compares the sum with real steps, within 10 %.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pilekit.stream.batch.mlm import CHOSEN
from pilekit.train.config import Attention, Objective
from pilekit.train.model.blocks import blocks_of
from pilekit.train.step.chunked_loss import ROWS


def activation_bytes(
    model: PreTrainedModel,
    *,
    rows: int,
    seq_len: int,
    attention: Attention,
    objective: Objective = "clm",
    dtype: torch.dtype,
    recomputed: Literal["none", "full", "selective"],
) -> int:
    """The most bytes that a micro-batch of `rows` holds between its forward and backward pass, beside parameters.

    model       on the meta device; it is turned into `dtype`
    recomputed  `parallel.activation_checkpoint`

    A model that changes its head's output, other than by scaling or a soft cap, holds all of its logits besides.
    """
    model.to(dtype)  # type: ignore[arg-type]
    blocks = blocks_of(model)
    trunk = _kept_by_trunk(model, rows, seq_len, objective)
    mask, tokens = 0, rows * seq_len
    if attention == "document" or objective == "mlm":
        mask = tokens * seq_len  # one for all blocks, and each block keeps a copy as numbers
        trunk += len(blocks) * mask * dtype.itemsize
    targets = rows * (seq_len - 1) if objective == "clm" else round(CHOSEN * tokens)
    head = _head_bytes(model, targets, dtype)
    if recomputed == "none" or not blocks:
        return mask + trunk + head
    width: int = cast("Any", model).get_output_embeddings().weight.shape[1]
    kept_of_block = width  # its input
    if recomputed == "selective":
        kept_of_block += width + sum(map(_outputs, blocks[0].modules()))  # the results of attention and of products
    kept = tokens * (len(blocks) * kept_of_block + width) * dtype.itemsize  # and the input of the last norm
    return mask + kept + max(head, trunk // len(blocks))  # a block is computed again when the head is done


def _kept_by_trunk(model: PreTrainedModel, rows: int, seq_len: int, objective: Objective) -> int:
    """Bytes that autograd keeps of the trunk's forward pass: each storage once, parameters and buffers not counted."""
    seen = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    total = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal total
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            total += storage.nbytes()
        return tensor

    model.train()
    ids = torch.zeros(rows, seq_len, dtype=torch.int64, device="meta")
    with saved_tensors_hooks(pack, lambda packed: packed), _MetaTrunk():
        result = cast("Any", model.base_model)(ids, **({} if objective == "mlm" else {"use_cache": False}))
    del result  # until here the graph kept every storage, so that none was counted under another's address
    return total


def _outputs(module: nn.Module) -> int:
    """Numbers per token that a matrix product makes; 0 for any other module."""
    return module.out_features if isinstance(module, nn.Linear) else module.nf if isinstance(module, Conv1D) else 0


def _head_bytes(model: PreTrainedModel, targets: int, dtype: torch.dtype) -> int:
    """The most bytes that `chunked_cross_entropy` holds for so many targets."""
    head: nn.Linear = cast("Any", model).get_output_embeddings()
    words, width = head.weight.shape
    states = 2 * targets * width * dtype.itemsize  # and their gradient
    logits = min(ROWS, targets) * words * (dtype.itemsize + 4)  # once more in float32
    gradient = 4 * words * width
    return states + gradient + max(logits, gradient)  # it is there twice when the backward pass begins


class _MetaTrunk(TorchFunctionMode):
    """Has attention keep queries, keys, values, result and a number per row, as every fused kernel does.

    On the meta device torch would take the path that keeps whole attention matrices, which no real device takes. And a
    condition on numbers holds: transformers asks whether each row is one document.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            given = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
            parts = given["query"], given["key"], given["value"]
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*parts)[0]
        if func is Tensor.__bool__:
            return True
        return func(*args, **(kwargs or {}))
