"""Attention over documents by a kernel for sequences of any lengths: model.attention_implementation = "varlen".

The rows of a micro-batch are one long sequence of tokens, cut where a document or a row begins, and each piece attends
to itself. `torch.nn.attention.varlen` computes this with flash attention, at the price of one causal row: no mask is
made, and nothing is computed between documents. With a mask of documents, PyTorch's own attention cannot use flash
attention.

The places of the cuts come from the batch on the CPU, so nothing waits for the GPU. They are padded with empty pieces
to a number that only grows (`Cuts`), and compiled blocks are made for any number of them.

On a CPU `varlen_reference` computes the same in plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from pilekit.errors import PilekitError
from pilekit.train.config.sections import Attention

VARLEN: Final = "varlen"
PIECES_OF_A_ROW = 16
"""Pieces of a row for which there is room from the start. Empty pieces cost little."""


class Cuts:
    """Finds the cuts of micro-batches. A later call never returns fewer of them."""

    def __init__(self, attention: Attention) -> None:
        self._attention = attention
        self._room = 0

    def find(self, batch: Mapping[str, Tensor]) -> Tensor:
        """int32 [room + 1], on the batch's device, best a CPU: the first token of each piece, then the end.

        Tokens count through all rows. Padding belongs to the last document of its row: it predicts nothing, and no
        token comes after it.
        """
        rows, length = batch["input_ids"].shape
        is_first = torch.zeros(rows, length, dtype=torch.bool)
        if self._attention == "document":
            is_first = batch["position_ids"] == 0
            if "doc_ids" in batch:
                is_first &= batch["doc_ids"] >= 0
        is_first[:, 0] = True
        places = is_first.flatten().nonzero().squeeze(1)
        room = max(self._room, rows * PIECES_OF_A_ROW)
        while room < len(places):
            room *= 2
        self._room = room
        cuts = torch.full((room + 1,), rows * length, dtype=torch.int32)
        cuts[: len(places)] = places
        return cuts


def cuts_as_inputs(cuts: Tensor, length: int) -> dict[str, Any]:
    """The arguments by which a model of transformers passes `cuts` to its attention. No piece exceeds `length`."""
    return {"cu_seq_lens_q": cuts, "cu_seq_lens_k": cuts, "max_length_q": length, "max_length_k": length}


def varlen_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """The attention of a layer, as transformers calls it: [rows, heads, length, width] to [rows, length, heads, width].

    Without cuts, as in scoring, they are found from `position_ids`, or each row is a piece.
    """
    unsupported = [name for name in ("softcap", "s_aux", "position_bias") if more.get(name) is not None]
    if attention_mask is not None or dropout or unsupported or not getattr(module, "is_causal", True):
        feature = "dropout" if dropout else ", ".join(unsupported) or "a mask, or attention to later tokens"
        raise PilekitError(f'model.attention_implementation = "varlen": does not support {feature}; set "sdpa"')
    rows, heads, length, _ = query.shape
    if cu_seq_lens_q is None:
        cu_seq_lens_q, max_length_q = _cuts_of_call(rows, length, position_ids, query.device), length
    if key.shape[1] != heads:
        key, value = (each.repeat_interleave(heads // each.shape[1], dim=1) for each in (key, value))
    if query.device.type == "cuda":
        from torch.nn.attention.varlen import varlen_attn  # not in torch before 2.10

        attend: Any = varlen_attn
    else:
        attend = varlen_reference
    states: Tensor = attend(
        *(each.transpose(1, 2).flatten(0, 1) for each in (query, key, value)),
        cu_seq_lens_q,
        cu_seq_lens_q,
        max_length_q,
        max_length_q,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
    )
    return states.view(rows, length, *states.shape[1:]), None


def _cuts_of_call(rows: int, length: int, positions: Tensor | None, device: torch.device) -> Tensor:
    """The cuts where positions begin again, or of whole rows."""
    if positions is None:
        return torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=device)
    is_first = (positions == 0).expand(rows, -1).clone()
    is_first[:, 0] = True
    places = is_first.flatten().nonzero().squeeze(1)
    return functional.pad(places, (0, 1), value=rows * length).int()


def varlen_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """The result of `torch.nn.attention.varlen.varlen_attn`, [tokens, heads, width], for the same pieces of both.

    A token sees at most `window_size` tokens before and after itself in its piece. -1 means all of them.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    result: Tensor = _attend(query, key, value, cu_seq_q, scale, *window_size)
    return result


@torch.library.custom_op("pilekit::attend_in_pieces", mutates_args=())
def _attend(query: Tensor, key: Tensor, value: Tensor, cuts: Tensor, scale: float, before: int, after: int) -> Tensor:
    """An operator of torch, so that a compiler leaves it whole as it does `varlen_attn`, whatever the cuts are."""
    result = torch.empty_like(query)
    for piece in _pieces(cuts):
        shares = _shares(query[piece], key[piece], scale, before, after)
        result[piece] = torch.einsum("hqk,khw->qhw", shares, value[piece].to(shares.dtype))
    return result


@torch.library.custom_op("pilekit::attend_in_pieces_backward", mutates_args=())
def _attend_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, cuts: Tensor, scale: float, before: int, after: int
) -> tuple[Tensor, Tensor, Tensor]:
    grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    for piece in _pieces(cuts):
        shares = _shares(query[piece], key[piece], scale, before, after)
        g, q, k, v = (each[piece].to(shares.dtype) for each in (grad, query, key, value))
        grad_shares = torch.einsum("qhw,khw->hqk", g, v)
        grad_scores = scale * shares * (grad_shares - (grad_shares * shares).sum(-1, keepdim=True))
        grads[0][piece] = torch.einsum("hqk,khw->qhw", grad_scores, k)
        grads[1][piece] = torch.einsum("hqk,qhw->khw", grad_scores, q)
        grads[2][piece] = torch.einsum("hqk,qhw->khw", shares, g)
    return grads


def _pieces(cuts: Tensor) -> Iterator[slice]:
    return (slice(begin, end) for begin, end in pairwise(cuts.tolist()) if begin < end)


def _shares(query: Tensor, key: Tensor, scale: float, before: int, after: int) -> Tensor:
    """The softmax of a piece, at least float32: [heads, queries, keys]."""
    exact = torch.promote_types(query.dtype, torch.float32)
    scores = torch.einsum("qhw,khw->hqk", query.to(exact), key.to(exact)) * scale
    places = torch.arange(len(query), device=query.device)
    distance = places[:, None] - places  # positive: the key is before the query
    is_hidden = ((distance > before) & (before >= 0)) | ((-distance > after) & (after >= 0))
    return scores.masked_fill(is_hidden, -torch.inf).softmax(-1)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.settings = inputs[4:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (*_attend_backward(grad, *ctx.saved_tensors, *ctx.settings), *[None] * 4)


_attend.register_fake(lambda query, *_: torch.empty_like(query))
_attend_backward.register_fake(lambda _grad, *inputs: tuple(map(torch.empty_like, inputs[:3])))
_attend.register_autograd(_backward, setup_context=_keep)
AttentionInterface.register(VARLEN, varlen_attention)
