"""Tell transformers whether rows hold several documents, so that it does not ask the device.

From position_ids that begin again, transformers makes a mask that keeps documents apart, and none if no position does,
because attention is faster without. It asks the device, in each forward, which waits for all work before it. The batch
on the CPU knows the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import masking_utils

_FIND = "find_packed_sequence_indices"


def has_several_documents(position_ids: Tensor) -> bool:
    """Whether transformers would find several documents in a row of these positions: any that do not rise by 1."""
    return bool((position_ids.diff(dim=-1) != 1).any())


@contextmanager
def packed_rows(several: bool) -> Iterator[None]:
    """Inside, forwards of transformers' models take their rows to hold several documents or not, and ask nobody."""
    if not hasattr(masking_utils, _FIND):  # older versions do not ask
        yield
        return

    def answer(position_ids: Tensor) -> Tensor | None:
        before_first = position_ids[:, :1] - 1
        return (torch.diff(position_ids, prepend=before_first, dim=-1) != 1).cumsum(-1) if several else None

    ask = getattr(masking_utils, _FIND)
    setattr(masking_utils, _FIND, answer)
    try:
        yield
    finally:
        setattr(masking_utils, _FIND, ask)
