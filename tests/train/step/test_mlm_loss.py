"""The loss of masked language modelling against plain calls of the model for each document alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import pytest
import torch
from torch import Tensor

from pilekit.evaluate.masked.model import MaskedLM
from pilekit.train.step.losses import StepLoss, count_targets
from tests.tiny.masked import FAMILIES, PAD, called, tiny
from tests.train.step.test_losses import assert_same_gradients, gradients, packed

Batch = dict[str, Tensor]
Attention = Literal["document", "row"]


def masked(lengths: Sequence[int], *, share: float = 0.3) -> Batch:
    """Packed documents with a share of the tokens chosen and masked."""
    batch = packed(lengths)
    draw = torch.Generator().manual_seed(1)
    chosen = (torch.rand(batch["input_ids"].shape, generator=draw) < share) & (batch["doc_ids"] >= 0)
    labels = batch["input_ids"].where(chosen, -100)
    return {**batch, "labels": labels, "input_ids": batch["input_ids"].masked_fill(chosen, 2)}


def plain_nll(lm: MaskedLM, batch: Batch, attention: Attention) -> Tensor:
    """The loss of each chosen token, from a call of the model with only the tokens that it may see."""
    nll = torch.zeros(batch["labels"].shape, dtype=torch.float64)
    for row, documents in enumerate(batch["doc_ids"].tolist()):
        for document in sorted({number for number in documents if number >= 0}) if attention == "document" else [None]:
            where = [i for i, number in enumerate(documents) if number >= 0 and document in (None, number)]
            logits = called(lm.model, batch["input_ids"][row, where].unsqueeze(0))[0]
            for place, log_shares in zip(where, logits.double().log_softmax(-1), strict=True):
                if (label := int(batch["labels"][row, place])) != -100:
                    nll[row, place] = -log_shares[label]
    return nll


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", get_args(Attention))
def test_loss_and_gradients_are_those_of_each_document_alone(family: str, attention: Attention) -> None:
    lm = tiny(family)
    assert lm.head_by_place
    batch = masked([5, 3, 20, 0, 7, 1, 11])
    assert (batch["doc_ids"] < 0).any()
    right = plain_nll(lm, batch, attention)

    loss, nll = StepLoss(lm, attention=attention)(batch, 0.25)
    loss.backward()  # type: ignore[no-untyped-call]
    found = gradients(lm)
    whole_loss, whole_nll = StepLoss(replace(lm, head_by_place=False), attention=attention)(batch, 0.25)
    whole_loss.backward()  # type: ignore[no-untyped-call]

    assert nll.shape == batch["labels"].shape
    assert count_targets(batch, "mlm") == int((right > 0).sum()) > 10
    torch.testing.assert_close(nll, right, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(whole_nll, right, rtol=1e-9, atol=1e-9)
    assert loss.item() == pytest.approx(0.25 * float(right.sum()), rel=1e-9)
    assert_same_gradients(found, gradients(lm))


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_without_a_target_and_with_a_row_of_padding(family: str) -> None:
    lm = tiny(family, dtype=torch.float32)
    batch = masked([5, 3, 20])
    for name, value in {"input_ids": PAD, "labels": -100, "position_ids": 0, "doc_ids": -1}.items():
        batch[name][-1] = value
    batch["labels"][:] = -100
    for attention in get_args(Attention):
        loss, nll = StepLoss(lm, attention=attention)(batch, 1.0)
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.item() == 0
        assert torch.equal(nll, torch.zeros(batch["labels"].shape))
        assert all(torch.equal(grad, torch.zeros_like(grad)) for grad in gradients(lm).values())
