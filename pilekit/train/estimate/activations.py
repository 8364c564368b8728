"""How many bytes the backward pass of a micro-batch needs of its forward pass, found without computing either.

The model's trunk runs on the meta device, where tensors have shapes and no numbers, and autograd tells what it keeps.
So it is right for any model, whatever its layers are made of. Attention alone is stood in for: on that device torch
takes the path that holds whole attention matrices, which no other does. The fused ones keep queries, keys, values,
results and a number for each row; and, where documents are kept apart, each layer its copy of the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from pilekit.stream.batch.mlm import CHOSEN
from pilekit.train.config import Attention, Objective
from pilekit.train.model.blocks import blocks_of
from pilekit.train.step.chunked_loss import ROWS
from pilekit.train.step.recompute import KEPT


@dataclass(frozen=True, slots=True)
class Kept:
    """What autograd keeps of a trunk's forward pass, in bytes.

    blocks      of each block
    selective   of each block, if it keeps the results of matrix products and attention only
    inputs      of each block, its input alone
    rest        of all that is outside of blocks
    mask        the mask that all blocks are given; 0 if there is none
    """

    blocks: list[int]
    selective: list[int]
    inputs: list[int]
    rest: int
    mask: int


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

    The loss's own are in it: hidden states, their gradient, that of the head's weight and one chunk of logits. A model
    that does to its head's output what is neither scaling nor a soft cap holds all of its logits besides.
    """
    kept = kept_by_trunk(model, rows=rows, seq_len=seq_len, attention=attention, objective=objective, dtype=dtype)
    targets = rows * (seq_len - 1) if objective == "clm" else round(CHOSEN * rows * seq_len)
    head = _head_bytes(model, targets, dtype)
    if recomputed == "none":
        return kept.rest + kept.mask + sum(kept.blocks) + head
    held = [least + part for least, part in zip(kept.inputs, kept.selective, strict=True)]
    stays = kept.rest + kept.mask + sum(kept.inputs if recomputed == "full" else held)
    return stays + max(head, max(kept.blocks, default=0))  # a block is computed again when the head is done


def kept_by_trunk(
    model: PreTrainedModel,
    *,
    rows: int,
    seq_len: int,
    attention: Attention,
    objective: Objective = "clm",
    dtype: torch.dtype,
) -> Kept:
    """Run the trunk of `model`, on the meta device and turned into `dtype`, on [rows, seq_len] tokens."""
    model.to(dtype)  # type: ignore[arg-type]
    model.train()
    blocks = blocks_of(model)
    ledger = _Ledger(model, len(blocks))
    handles = [hook for number, block in enumerate(blocks) for hook in ledger.watch(block, number)]
    is_mlm, is_packed = objective == "mlm", attention == "document"
    inputs = {"input_ids": torch.zeros(rows, seq_len, dtype=torch.int64, device="meta")}
    if is_packed:
        inputs["position_ids"] = torch.zeros_like(inputs["input_ids"])
    if is_mlm:
        shape = (rows, 1, seq_len, seq_len) if is_packed else (rows, seq_len)
        inputs["attention_mask"] = torch.zeros(shape, dtype=torch.bool, device="meta")
    has_mask = is_packed or is_mlm
    modes = _Products(ledger, is_single=not has_mask), _FusedAttention(ledger)
    try:
        with saved_tensors_hooks(ledger.pack, lambda packed: packed), modes[0], modes[1]:
            result = cast("Any", model.base_model)(**inputs, **({} if is_mlm else {"use_cache": False}))
        del (
            result
        )  # until here the graph kept all that was counted, so that no storage was counted under another's name
    finally:
        for handle in handles:
            handle.remove()
    mask = rows * seq_len * seq_len if has_mask else 0
    return Kept(ledger.blocks, ledger.selective, ledger.inputs, ledger.rest, mask)


def _head_bytes(model: PreTrainedModel, targets: int, dtype: torch.dtype) -> int:
    """What `chunked_cross_entropy` holds at most for so many targets."""
    head: nn.Linear = cast("Any", model).get_output_embeddings()
    words, width = head.weight.shape
    states = 2 * targets * width * dtype.itemsize  # and their gradient
    logits = min(ROWS, targets) * words * (dtype.itemsize + 4)  # once more in float32
    gradient = 4 * words * width
    return states + gradient + max(logits, gradient)  # it is there twice when the backward pass begins


class _Ledger:
    """Bytes kept, by block: each storage once, where it is first seen; parameters and buffers are not counted."""

    def __init__(self, model: nn.Module, blocks: int) -> None:
        self.blocks, self.selective, self.inputs = [0] * blocks, [0] * blocks, [0] * blocks
        self.rest = 0
        self.current: int | None = None
        self._held: list[Tensor] = []
        self._seen = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def pack(self, tensor: Tensor) -> Tensor:
        if (storage := _storage(tensor)) not in self._seen:
            self._seen.add(storage)
            size = tensor.untyped_storage().nbytes()
            if self.current is None:
                self.rest += size
            else:
                self.blocks[self.current] += size
        return tensor

    def product(self, tensor: Tensor) -> None:
        """Count a result that selective recomputation keeps."""
        if self.current is not None:
            self.selective[self.current] += tensor.untyped_storage().nbytes()

    def watch(self, block: nn.Module, number: int) -> Sequence[Any]:
        """Hooks that have what `block` keeps counted as its own."""

        def enter(_module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            self.current = number
            hidden = given[0] if given else named["hidden_states"]
            self._held.append(hidden)
            self.inputs[number] = hidden.untyped_storage().nbytes()

        def leave(*_: Any) -> None:
            self.current = None

        return (
            block.register_forward_pre_hook(enter, with_kwargs=True),
            block.register_forward_hook(leave),
        )


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells the ledger of the results of the operations that selective recomputation keeps.

    A tensor that is asked for its number has none here; what transformers asks is whether all rows are one document.
    """

    def __init__(self, ledger: _Ledger, *, is_single: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger, self._is_single = ledger, is_single

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._is_single if args[0].dtype == torch.bool else 1
        result = func(*args, **(kwargs or {}))
        if func in KEPT:
            for tensor in result if isinstance(result, tuple) else (result,):
                if isinstance(tensor, Tensor):
                    self._ledger.product(tensor)
        return result


class _FusedAttention(TorchFunctionMode):
    """Has scaled_dot_product_attention keep what its fused kernels keep, also where the rest is computed again."""

    def __init__(self, ledger: _Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | (kwargs or {})
            parts = given["query"], given["key"], given["value"], given.get("attn_mask")
            result, sums = _KeepsWhatIsFused.apply(*parts)  # type: ignore[no-untyped-call]
            self._ledger.product(result)
            self._ledger.product(sums)
            return result
        return func(*args, **(kwargs or {}))


class _KeepsWhatIsFused(torch.autograd.Function):
    """(result, each row's logarithm of a sum) in shape; what a fused kernel keeps for its backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        *batch, heads, length, _ = query.shape
        result = torch.empty_like(
            query
        )  # in the order of its strides too: whether heads are copied together hangs on it
        if value.shape[-1] != query.shape[-1]:
            result = result.new_empty(*query.shape[:-1], value.shape[-1])
        sums = query.new_empty(*batch, heads, length, dtype=torch.float32)
        kept = [query, key, value, result, sums]
        if mask is not None:
            kept.append(query.new_empty(mask.shape) if mask.dtype == torch.bool else mask)  # it is turned into numbers
        ctx.save_for_backward(*kept)
        ctx.mark_non_differentiable(sums)
        return result, sums

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError("nothing is computed here")
