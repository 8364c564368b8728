"""The loss of a batch, causal or masked, against plain calls of the model; its sums by subset against plain Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from pilekit.models.causal import CausalLM, as_causal_lm
from pilekit.models.logit_transform import UNCHANGED
from pilekit.models.masked import MaskedLM
from pilekit.train.config.sections import Attention
from pilekit.train.step.losses import StepLoss, count_targets, subset_sums
from tests.tiny.logit_transforms import LOGIT_TRANSFORMS, transforming_model
from tests.tiny.masked import FAMILIES as MASKED_FAMILIES
from tests.tiny.masked import PAD, called
from tests.tiny.masked import tiny as tiny_masked
from tests.tiny.models import Family, tiny_model
from tests.train.living_bytes import LivingBytes

FAMILIES = get_args(Family)
VOCABULARY = 320
SEQ_LEN = 12

Batch = dict[str, Tensor]
ATTENTIONS: tuple[Attention, ...] = ("document", "causal")
MASKED_ATTENTIONS: tuple[Attention, ...] = ("document", "row")


def packed(lengths: Sequence[int], *, seq_len: int = SEQ_LEN) -> Batch:
    """Documents of random tokens of three subsets, one after another, each with token 0 at its end; padded with 1."""
    generator = torch.Generator().manual_seed(0)
    cells = []  # (token, label, document, place in it, subset)
    for number, length in enumerate(lengths):
        ids = [*torch.randint(2, VOCABULARY, (length,), generator=generator).tolist(), 0]
        cells += [(token, token if place else -100, number, place, number % 3) for place, token in enumerate(ids)]
    rows = []
    for begin in range(0, len(cells), seq_len):
        _, _, first, cut, _ = cells[begin]
        row = [
            (token, label, number - first, place - cut * (number == first), subset)
            for token, label, number, place, subset in cells[begin : begin + seq_len]
        ]
        rows.append(row + [(1, -100, -1, 0, -1)] * (seq_len - len(row)))
    names = ("input_ids", "labels", "doc_ids", "position_ids", "subset_ids")
    return dict(zip(names, torch.tensor(rows).unbind(-1), strict=True))


def tiny(family: str, *, dtype: torch.dtype = torch.float64) -> CausalLM:
    """A tiny model without dropout, of `FAMILIES` or of `LOGIT_TRANSFORMS`; GPT-NeoX with a bias in its head."""
    model = transforming_model(family) if family in LOGIT_TRANSFORMS else tiny_model(family)  # type: ignore[arg-type]
    lm = as_causal_lm(model.to(dtype).eval())
    if family == "gpt_neox":
        lm.head.bias = torch.nn.Parameter(torch.randn(VOCABULARY, dtype=dtype))
    return lm


def plain_nll(lm: CausalLM, batch: Batch, attention: Attention) -> list[list[float]]:
    """Each target from one call of the model with the tokens before it that it may see, and nothing else."""
    columns = {name: column.tolist() for name, column in batch.items()}
    nll = []
    for ids, labels, documents in zip(columns["input_ids"], columns["labels"], columns["doc_ids"], strict=True):
        row = []
        for place in range(1, len(ids)):
            first = documents.index(documents[place]) if attention == "document" else 0
            if labels[place] == -100:
                row.append(0.0)
                continue
            with torch.no_grad():
                logits = lm.model(input_ids=torch.tensor([ids[first:place]]), use_cache=False).logits[0, -1]
            row.append(-float(logits.double().log_softmax(-1)[labels[place]]))
        nll.append(row)
    return nll


def gradients(lm: CausalLM | MaskedLM) -> dict[str, Tensor]:
    """Of each parameter by name, taken away from the model."""
    found = {}
    for name, parameter in lm.model.named_parameters():
        assert parameter.grad is not None, name
        found[name] = parameter.grad
    lm.model.zero_grad()
    return found


def assert_same_gradients(found: dict[str, Tensor], right: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    assert found.keys() == right.keys()
    largest = max(float(grad.abs().max()) for grad in right.values())
    for name, grad in found.items():
        torch.testing.assert_close(grad, right[name], rtol=tolerance, atol=tolerance * largest, msg=name)


@pytest.mark.parametrize("family", [*FAMILIES, *LOGIT_TRANSFORMS])
def test_losses_and_gradients_are_those_of_the_model(family: str) -> None:
    """In chunks and with all logits, under both kinds of attention."""
    lm = tiny(family)
    assert lm.transform == LOGIT_TRANSFORMS.get(family, UNCHANGED)
    assert (lm.head.weight is lm.model.get_input_embeddings().weight) == (family in ("gpt2", "gemma2", "cohere"))
    batch = packed([5, 3, 20, 0, 7, 1])
    for attention in ATTENTIONS:
        right = torch.tensor(plain_nll(lm, batch, attention), dtype=torch.float64)
        loss, nll = StepLoss(lm, attention=attention)(batch, 0.25)
        loss.backward()
        found = gradients(lm)
        whole, whole_nll = StepLoss(dataclasses.replace(lm, transform=None), attention=attention)(batch, 0.25)
        whole.backward()

        assert right.count_nonzero() == count_targets(batch)
        torch.testing.assert_close(nll, right, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(whole_nll, nll)
        torch.testing.assert_close(loss.detach(), right.sum() * 0.25, rtol=1e-6, atol=1e-6)
        assert not nll.requires_grad
        assert_same_gradients(found, gradients(lm))
    logits = lm.model(input_ids=batch["input_ids"], use_cache=False).logits
    targets = batch["labels"][:, 1:].flatten()
    (0.25 * functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="sum")).backward()
    assert_same_gradients(found, gradients(lm))  # those of "causal", through the model's own forward
    if family in LOGIT_TRANSFORMS:  # the transform matters, or this would show nothing
        without, _ = StepLoss(dataclasses.replace(lm, transform=UNCHANGED), attention="causal")(batch, 0.25)
        assert abs((loss - without).item()) > 0.01 * loss.item()


@pytest.mark.parametrize("family", ["gpt_neox", "gemma2"])
def test_the_head_runs_only_where_a_target_is(family: str) -> None:
    lm = tiny(family, dtype=torch.float32)
    batch = packed([30] * 20, seq_len=31)
    few = torch.full_like(batch["labels"], -100)
    few[3, 17] = few[8, 2] = 5
    with LivingBytes() as made_inside:
        StepLoss(lm, attention="document")({**batch, "labels": few}, 1.0)[0].backward()
    assert made_inside.largest < 4 * few.numel() * VOCABULARY / 2
    lm.model.zero_grad()
    none = {**batch, "labels": torch.full_like(few, -100)}
    loss, nll = StepLoss(lm, attention="document")(none, 0.5)
    loss.backward()
    assert (loss.item(), count_targets(none)) == (0, 0)
    assert torch.equal(nll, torch.zeros(len(few), 30))
    assert all(torch.equal(grad, torch.zeros_like(grad)) for grad in gradients(lm).values())
    one_token = packed([1], seq_len=1)
    loss, nll = StepLoss(lm, attention="document")(one_token, 1.0)
    assert (loss.item(), nll.shape, count_targets(one_token)) == (0.0, (2, 0), 0)


@given(data=st.data(), rows=st.integers(1, 4), seq_len=st.integers(1, 9), shift=st.sampled_from([0, 1]))
def test_losses_by_subset(data: st.DataObject, rows: int, seq_len: int, shift: int) -> None:
    """A target's loss goes to the subset of the predicted token; a causal row has no loss for its first token."""
    cells = st.lists(st.lists(st.integers(-1, 3), min_size=seq_len, max_size=seq_len), min_size=rows, max_size=rows)
    subsets, labels = data.draw(cells), data.draw(cells)
    labels = [
        [-100 if label < 0 or subset < 0 else label for label, subset in zip(*row, strict=True)]
        for row in zip(labels, subsets, strict=True)
    ]
    nll = torch.rand(rows, seq_len - shift, generator=torch.Generator().manual_seed(rows))
    right: list[list[float]] = [[], [], [], []]
    for row in range(rows):
        for place in range(shift, seq_len):
            if labels[row][place] != -100:
                right[subsets[row][place]].append(float(nll[row, place - shift]))

    sums, counts = subset_sums(nll, {"labels": torch.tensor(labels), "subset_ids": torch.tensor(subsets)}, 4)

    assert sums.dtype == counts.dtype == torch.float64
    assert counts.tolist() == [len(losses) for losses in right]
    assert sums.tolist() == pytest.approx([sum(losses) for losses in right], rel=1e-12)


def masked(lengths: Sequence[int], *, share: float = 0.3) -> Batch:
    """Packed documents with a share of the tokens chosen and masked."""
    batch = packed(lengths)
    draw = torch.Generator().manual_seed(1)
    chosen = (torch.rand(batch["input_ids"].shape, generator=draw) < share) & (batch["doc_ids"] >= 0)
    labels = batch["input_ids"].where(chosen, -100)
    return {**batch, "labels": labels, "input_ids": batch["input_ids"].masked_fill(chosen, 2)}


def masked_nll(lm: MaskedLM, batch: Batch, attention: Attention) -> Tensor:
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


@pytest.mark.parametrize("family", MASKED_FAMILIES)
@pytest.mark.parametrize("attention", MASKED_ATTENTIONS)
def test_loss_and_gradients_are_those_of_each_document_alone(family: str, attention: Attention) -> None:
    lm = tiny_masked(family)
    assert lm.head_by_place
    batch = masked([5, 3, 20, 0, 7, 1, 11])
    assert (batch["doc_ids"] < 0).any()
    right = masked_nll(lm, batch, attention)

    loss, nll = StepLoss(lm, attention=attention)(batch, 0.25)
    loss.backward()  # type: ignore[no-untyped-call]
    found = gradients(lm)
    whole_loss, whole_nll = StepLoss(dataclasses.replace(lm, head_by_place=False), attention=attention)(batch, 0.25)
    whole_loss.backward()  # type: ignore[no-untyped-call]

    assert nll.shape == batch["labels"].shape
    assert count_targets(batch, "mlm") == int((right > 0).sum()) > 10
    torch.testing.assert_close(nll, right, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(whole_nll, right, rtol=1e-9, atol=1e-9)
    assert loss.item() == pytest.approx(0.25 * float(right.sum()), rel=1e-9)
    assert_same_gradients(found, gradients(lm))


@pytest.mark.parametrize("family", MASKED_FAMILIES)
def test_batches_without_a_target_and_with_a_row_of_padding(family: str) -> None:
    lm = tiny_masked(family, dtype=torch.float32)
    batch = masked([5, 3, 20])
    for name, value in {"input_ids": PAD, "labels": -100, "position_ids": 0, "doc_ids": -1}.items():
        batch[name][-1] = value
    batch["labels"][:] = -100
    for attention in MASKED_ATTENTIONS:
        loss, nll = StepLoss(lm, attention=attention)(batch, 1.0)
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.item() == 0
        assert torch.equal(nll, torch.zeros(batch["labels"].shape))
        assert all(torch.equal(grad, torch.zeros_like(grad)) for grad in gradients(lm).values())
