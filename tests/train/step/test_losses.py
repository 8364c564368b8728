"""The causal loss of a batch against plain calls of the model, and its sums by subset against plain Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from pilekit.evaluate.model.causal import CausalLM, as_causal_lm
from pilekit.evaluate.model.logit_transform import UNCHANGED
from pilekit.train.step.losses import clm_loss, count_targets, subset_sums
from tests.logit_transforms import LOGIT_TRANSFORMS, transforming_model
from tests.tiny import Family, tiny_model
from tests.train.step.concatenated import Document, reference_rows
from tests.train.step.test_chunked_loss import Watched, relative_error

FAMILIES = get_args(Family)
NAMES = ("Pile-CC", "Github", "ArXiv")
VOCABULARY = 320
SEQ_LEN = 12

Batch = dict[str, Tensor]
Attention = Literal["document", "causal"]


def packed(lengths: Sequence[int], *, seq_len: int = SEQ_LEN, seed: int = 0) -> Batch:
    """Documents of random tokens, packed and padded by the stream's own reference."""
    generator = torch.Generator().manual_seed(seed)
    documents = [
        Document(
            "shard",
            number,
            NAMES[number % 3],
            tuple(torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()),
        )
        for number, length in enumerate(lengths)
    ]
    rows = reference_rows(documents, seq_len, eos_id=0, pad_id=1, names=NAMES)
    columns = ("input_ids", "labels", "doc_ids", "position_ids", "subset_ids")
    return {column: torch.tensor([row[column] for row in rows]) for column in columns}


def tiny(family: str, *, dtype: torch.dtype = torch.float64) -> CausalLM:
    """A tiny model without dropout, of `FAMILIES` or of `LOGIT_TRANSFORMS`."""
    model = transforming_model(family) if family in LOGIT_TRANSFORMS else tiny_model(family)  # type: ignore[arg-type]
    return as_causal_lm(model.to(dtype).eval())


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


def gradients(lm: CausalLM) -> dict[str, Tensor]:
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
    for attention in get_args(Attention):
        right = torch.tensor(plain_nll(lm, batch, attention), dtype=torch.float64)
        loss, nll = clm_loss(lm, batch, attention=attention, scale=0.25)
        loss.backward()
        found = gradients(lm)
        whole, whole_nll = clm_loss(dataclasses.replace(lm, transform=None), batch, attention=attention, scale=0.25)
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


@pytest.mark.parametrize("family", LOGIT_TRANSFORMS)
def test_the_transform_of_logits_matters(family: str) -> None:
    """Otherwise the other tests of these families would show nothing."""
    lm = tiny(family)
    batch = packed([5, 3, 20, 0, 7, 1])
    loss, _ = clm_loss(lm, batch, attention="causal", scale=1.0)
    without, _ = clm_loss(dataclasses.replace(lm, transform=UNCHANGED), batch, attention="causal", scale=1.0)
    assert abs((loss - without).item()) > 0.01 * loss.item()


def test_a_head_with_a_bias() -> None:
    lm = tiny("gpt_neox")
    lm.head.bias = torch.nn.Parameter(torch.randn(VOCABULARY, dtype=torch.float64))
    batch = packed([5, 3, 20])
    loss, nll = clm_loss(lm, batch, attention="causal", scale=1.0)
    loss.backward()
    found = gradients(lm)
    whole, whole_nll = clm_loss(dataclasses.replace(lm, transform=None), batch, attention="causal", scale=1.0)
    whole.backward()
    torch.testing.assert_close(nll, whole_nll)
    assert_same_gradients(found, gradients(lm))


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_document_isolates_documents(family: str) -> None:
    """The second of two documents in a row has the same losses as alone; under "causal" it has other losses."""
    lm = tiny(family)
    batch = packed([5, 5])
    second = batch["doc_ids"][:, 1:] == 1
    changed = {**batch, "input_ids": batch["input_ids"].where(batch["doc_ids"] != 0, batch["input_ids"] ^ 1)}
    assert int((changed["input_ids"] != batch["input_ids"]).sum()) == 6
    alone = {name: column[:, 6:] for name, column in batch.items()}
    first_alone = {name: column[:, :6] for name, column in batch.items()}

    def nll(of: Batch, attention: Attention) -> Tensor:
        return clm_loss(lm, of, attention=attention, scale=1.0)[1]

    apart = nll(batch, "document")
    assert torch.equal(apart[second], nll(changed, "document")[second])
    torch.testing.assert_close(apart[:, 6:], nll(alone, "causal"), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(apart[:, :5], nll(first_alone, "causal"), rtol=1e-6, atol=1e-6)
    together = nll(batch, "causal")
    assert float((together - nll(changed, "causal"))[second].abs().max()) > 1e-3
    torch.testing.assert_close(together[:, :5], apart[:, :5], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2"])
def test_dropout_is_that_of_one_forward(family: str) -> None:
    """The gradients belong to the returned loss: the model runs once."""
    lm = tiny(family)
    for module in lm.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    lm.model.train()
    batch = packed([5, 3, 20, 0, 7, 1])
    targets = batch["labels"][:, 1:].flatten()
    torch.manual_seed(7)
    logits = lm.model(input_ids=batch["input_ids"], use_cache=False).logits
    right = functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="sum")
    right.backward()
    right_gradients = gradients(lm)

    torch.manual_seed(7)
    loss, _ = clm_loss(lm, batch, attention="causal", scale=1.0)
    loss.backward()

    torch.testing.assert_close(loss, right)
    assert_same_gradients(gradients(lm), right_gradients)
    lm.model.eval()
    without, _ = clm_loss(lm, batch, attention="causal", scale=1.0)
    assert abs((loss - without).item()) > 1e-3


@pytest.mark.parametrize("cuts", [[0, 1, 5], [0, 1, 2, 3, 4, 5]])
def test_uneven_micro_batches_add_up_to_one_big_batch(cuts: list[int]) -> None:
    lm = tiny("gpt2")
    batch = packed([5, 3, 20, 0, 7, 11, 4])
    assert len(batch["labels"]) == 5
    generator = torch.Generator().manual_seed(1)
    kept = torch.rand(batch["labels"].shape, generator=generator) < torch.tensor([0.9, 0.0, 0.1, 0.5, 1.0])[:, None]
    batch["labels"] = batch["labels"].where(kept, -100)  # the second row has no target at all
    scale = 1 / count_targets(batch)
    logits = lm.model(input_ids=batch["input_ids"], use_cache=False).logits
    mean = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    mean.backward()
    right = gradients(lm)

    total = 0.0
    for begin, end in pairwise(cuts):
        micro_batch = {name: column[begin:end] for name, column in batch.items()}
        loss, _ = clm_loss(lm, micro_batch, attention="causal", scale=scale)
        loss.backward()
        total += loss.item()

    assert total == pytest.approx(mean.item(), rel=1e-12)
    assert_same_gradients(gradients(lm), right)


@pytest.mark.parametrize("family", ["gpt_neox", "gemma2"])
def test_batches_without_a_target(family: str) -> None:
    lm = tiny(family, dtype=torch.float32)
    batch = packed([5, 3, 20])
    batch["labels"] = torch.full_like(batch["labels"], -100)
    loss, nll = clm_loss(lm, batch, attention="document", scale=0.5)
    loss.backward()
    assert (loss.item(), count_targets(batch)) == (0, 0)
    assert torch.equal(nll, torch.zeros(3, SEQ_LEN - 1))
    assert all(torch.equal(grad, torch.zeros_like(grad)) for grad in gradients(lm).values())
    one_token = packed([1], seq_len=1)
    loss, nll = clm_loss(lm, one_token, attention="document", scale=1.0)
    assert (loss.item(), nll.shape, count_targets(one_token)) == (0.0, (2, 0), 0)


def test_a_rows_first_label_is_not_used() -> None:
    """A row that begins inside a document has a first label, but nothing to predict it from."""
    lm = tiny("gpt_neox")
    batch = packed([20])
    assert int(batch["labels"][1, 0]) >= 0
    without = {**batch, "labels": batch["labels"].clone()}
    without["labels"][:, 0] = -100

    torch.testing.assert_close(
        clm_loss(lm, batch, attention="document", scale=1.0), clm_loss(lm, without, attention="document", scale=1.0)
    )
    assert count_targets(batch) == count_targets(without)


@pytest.mark.parametrize("family", ["gpt_neox", "gemma2"])
def test_the_head_runs_only_where_a_target_is(family: str) -> None:
    lm = tiny(family, dtype=torch.float32)
    batch = packed([30] * 20, seq_len=31)
    kept = torch.zeros_like(batch["labels"], dtype=torch.bool)
    kept[3, 17] = kept[8, 2] = True
    batch["labels"] = batch["labels"].where(kept, -100)

    with Watched() as watched:
        clm_loss(lm, batch, attention="document", scale=1.0)[0].backward()

    assert watched.largest < batch["labels"].numel() * VOCABULARY / 2


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "gemma2"])
def test_bf16_is_near_float32(family: str) -> None:
    """A loss within 1 % and gradients within 5 %: eight bits of mantissa, two layers, logits of a few units.

    As in training, parameters are bf16 and buffers are as they are.
    """
    lm = tiny(family, dtype=torch.float32)
    batch = packed([5, 3, 20, 0, 7, 11, 4, 60])
    loss, nll = clm_loss(lm, batch, attention="document", scale=0.01)
    loss.backward()
    right = gradients(lm)

    for parameter in lm.model.parameters():
        parameter.data, parameter.grad = parameter.data.to(torch.bfloat16), None
    found, found_nll = clm_loss(lm, batch, attention="document", scale=0.01)
    found.backward()

    assert loss.dtype == nll.dtype == found.dtype == found_nll.dtype == torch.float32
    assert 0 < abs((found - loss).item()) < 0.01 * loss.item()
    assert 0 < float((found_nll - nll).abs().max()) < 0.3
    found_gradients = gradients(lm)
    assert all(grad.dtype == torch.bfloat16 for grad in found_gradients.values())
    everything = [torch.cat([grad.float().flatten() for grad in grads.values()]) for grads in (found_gradients, right)]
    assert 0 < relative_error(*everything) < 0.05


@given(data=st.data(), rows=st.integers(1, 4), seq_len=st.integers(1, 9))
@settings(deadline=None)
def test_losses_by_subset(data: st.DataObject, rows: int, seq_len: int) -> None:
    """A target's loss goes to the subset of the predicted token, not of the token before it."""
    cells = st.lists(st.lists(st.integers(-1, 3), min_size=seq_len, max_size=seq_len), min_size=rows, max_size=rows)
    subsets, labels = data.draw(cells), data.draw(cells)
    labels = [
        [-100 if label < 0 or subset < 0 else label for label, subset in zip(*row, strict=True)]
        for row in zip(labels, subsets, strict=True)
    ]
    nll = torch.rand(rows, seq_len - 1, generator=torch.Generator().manual_seed(rows))
    right: list[list[float]] = [[], [], [], []]
    for row in range(rows):
        for place in range(1, seq_len):
            if labels[row][place] != -100:
                right[subsets[row][place]].append(float(nll[row, place - 1]))

    sums, counts = subset_sums(nll, {"labels": torch.tensor(labels), "subset_ids": torch.tensor(subsets)}, 4)

    assert sums.dtype == counts.dtype == torch.float64
    assert counts.tolist() == [len(losses) for losses in right]
    assert sums.tolist() == pytest.approx([sum(losses) for losses in right], rel=1e-12)


def test_losses_by_subset_are_summed_in_float64() -> None:
    ones = {"labels": torch.ones(1, 4, dtype=torch.int64), "subset_ids": torch.zeros(1, 4, dtype=torch.int64)}
    sums, counts = subset_sums(torch.tensor([[2.0**25, 1.0, 1.0]]), ones, 2)
    assert (sums.tolist(), counts.tolist()) == ([2**25 + 2, 0], [3, 0])
