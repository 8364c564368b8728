"""The reference of the engine: a training loop in one process that shares nothing with it.

Whole logits, PyTorch's own cross entropy, one sum over all targets of the step, AdamW without tricks. In bf16 the model
is called with parameters that are cast to it, and gradients are added up in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

Batch = dict[str, Tensor]


def random_rows(seed: int, rows: int, count: int, *, seq_len: int = 16, vocabulary: int = 320) -> Batch:
    """Rows of random documents with `count` targets in all; every fourth row has no target."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, vocabulary, (rows, seq_len), generator=draw)
    positions, possible = torch.zeros_like(ids), torch.ones(rows, seq_len, dtype=torch.bool)
    for row in range(rows):
        start = 0
        while start < seq_len:
            length = min(int(torch.randint(1, seq_len + 1, (), generator=draw)), seq_len - start)
            positions[row, start : start + length] = torch.arange(length)
            possible[row, start] = row % 4 == 0 and start > 0  # a document's first token is mostly no target
            start += length
    possible[3::4] = False
    places = possible.flatten().nonzero().squeeze(1)
    chosen = places[torch.randperm(len(places), generator=draw)[:count]]
    labels = torch.full((rows * seq_len,), -100).index_copy(0, chosen, ids.flatten()[chosen]).view(rows, seq_len)
    batch = {"input_ids": ids, "labels": labels, "position_ids": positions}
    assert targets(batch) == count
    return batch


def cut(batch: Batch, pieces: int) -> list[Batch]:
    """The batch in pieces of as many rows."""
    rows = len(batch["input_ids"])
    assert rows % pieces == 0
    size = rows // pieces
    return [{name: column[first : first + size] for name, column in batch.items()} for first in range(0, rows, size)]


def targets(batch: Batch) -> int:
    """Tokens of the batch that are predicted."""
    return int((batch["labels"][:, 1:] != -100).sum())


def plain_adamw(model: Any, *, eps: float, lr: float = 1e-3) -> torch.optim.AdamW:
    """AdamW without tricks; embeddings and parameters of one dimension do not decay."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    decayed = [p for p in model.parameters() if p.ndim > 1 and id(p) not in embeddings]
    others = [p for p in model.parameters() if p.ndim < 2 or id(p) in embeddings]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=eps, foreach=False)


def add_gradient(model: Any, batch: Batch, pieces: int, dtype: torch.dtype | None, factor: float = 1.0) -> float:
    """Add the gradient of the mean loss of `batch`, times `factor`, to that of `model`; returns the mean loss.

    The batch goes through the model in `pieces`. With `dtype`, the model computes with parameters cast to it.
    """
    parameters, count, loss = dict(model.named_parameters()), targets(batch), 0.0
    for piece in cut(batch, pieces):
        inputs = {"input_ids": piece["input_ids"], "position_ids": piece["position_ids"], "use_cache": False}
        used = parameters if dtype is None else {name: p.to(dtype) for name, p in parameters.items()}
        logits = functional_call(model, used, kwargs=inputs).logits[:, :-1].float()
        nll = functional.cross_entropy(logits.transpose(1, 2), piece["labels"][:, 1:], reduction="sum")
        (nll * (factor / count)).backward()  # type: ignore[no-untyped-call]
        loss += nll.item() / count
    return loss


def plain_loop(
    model: Any,
    steps: Sequence[Batch],
    *,
    pieces: int = 1,
    lr: float,
    clip_norm: float,
    eps: float,
    dtype: torch.dtype | None = None,
) -> list[tuple[float, float]]:
    """(mean loss, gradient norm before clipping) of each step; `model` is trained in place.

    `pieces`: each batch goes through the model in this many pieces, because rounding in bf16 depends on it.
    """
    optimizer, figures = plain_adamw(model, eps=eps, lr=lr), []
    for batch in steps:
        loss = add_gradient(model, batch, pieces, dtype)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        figures.append((loss, norm.item()))
        optimizer.step()
        optimizer.zero_grad()
    return figures
