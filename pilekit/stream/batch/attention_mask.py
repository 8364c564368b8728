"""`document_mask`: which tokens attend to each other, so that a document depends on no other document of its row.

Each token has a segment number. Two tokens see each other if they have the same row and the same segment. Each padding
token is a segment of its own. It attends only to itself, so no row of a softmax is empty (which would give NaN), and no
other token attends to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, overload

import torch
from torch import Tensor

from pilekit.errors import PilekitError, shortened

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(b, h, q_idx, kv_idx) -> bool, the argument of `torch.nn.attention.flex_attention.create_block_mask`."""


@overload
def document_mask(
    batch: Mapping[str, Tensor], *, dense: Literal[False] = False, causal: bool = True
) -> MaskFunction: ...
@overload
def document_mask(batch: Mapping[str, Tensor], *, dense: Literal[True], causal: bool = True) -> Tensor: ...


def document_mask(batch: Mapping[str, Tensor], *, dense: bool = False, causal: bool = True) -> MaskFunction | Tensor:
    """A mask with which each token attends to its own document, up to itself.

    batch   has `doc_ids` or `position_ids`, int64 [batch, T], on the device of the mask
    dense   False: a `mask_mod` for FlexAttention: `create_block_mask(document_mask(batch), B, None, T, T)`. True: bool
            [batch, 1, T, T], True where a query (third dimension) attends to a key (fourth), for
            `scaled_dot_product_attention(q, k, v, attn_mask=mask)`
    causal  False: each token attends to its whole document, later tokens included, as `objective="mlm"` needs

    PilekitError if the batch has neither column, or if the column is not [batch, T].
    """
    segments = _segments(batch)
    if dense:
        mask = (segments[:, :, None] == segments[:, None, :])[:, None]
        return mask.tril_() if causal else mask

    def attends(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        same = segments[b, q_idx] == segments[b, kv_idx]
        return (q_idx >= kv_idx) & same if causal else same

    return attends


def _segments(batch: Mapping[str, Tensor]) -> Tensor:
    """int64 [batch, T]: one number for all tokens of a document in its row, and a unique one for each padding token."""
    name = next((name for name in ("doc_ids", "position_ids") if name in batch), None)
    if name is None:
        columns = shortened(", ".join(map(str, batch)), 200)
        raise PilekitError(
            f"document_mask needs doc_ids or position_ids, and the batch has {columns}: ask for one in the stream's "
            '"outputs"'
        )
    column = batch[name]
    if column.dim() != 2:
        raise PilekitError(f"document_mask needs {name} as a tensor [batch, T], not {list(column.shape)}")
    if name == "doc_ids":
        places = torch.arange(column.shape[1], device=column.device)
        return column.where(column >= 0, -1 - places)
    return (column == 0).cumsum(1)  # 0 is at each document's start and on every padding token
