"""Attention over documents of many lengths: the cuts, the reference on a CPU, and whole runs with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from pilekit.errors import PilekitError
from pilekit.models.causal import as_causal_lm, isolates_documents
from pilekit.stream.batch.attention_mask import document_mask
from pilekit.train.model.attention import use_attention
from pilekit.train.model.varlen import VARLEN, Cuts, varlen_reference
from tests.tiny.models import tiny_model
from tests.train.runs import lines, tiny_run, trainer

LENGTH = 8


def batch_of(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """The columns of rows of documents with these lengths; a row's rest is padding."""
    positions, documents = np.zeros((2, len(rows), LENGTH), np.int64)
    documents -= 1
    number = 0
    for row, lengths in enumerate(rows):
        at = 0
        for length in lengths:
            taken = min(length, LENGTH - at)
            positions[row, at : at + taken], documents[row, at : at + taken] = np.arange(taken), number
            at, number = at + taken, number + 1
    columns = {"input_ids": positions, "position_ids": positions, "doc_ids": documents}
    return {name: torch.from_numpy(column.copy()) for name, column in columns.items()}


@given(st.lists(st.lists(st.integers(1, LENGTH), max_size=LENGTH), min_size=1, max_size=3))
def test_each_document_attends_to_itself(rows: list[list[int]]) -> None:
    batch = batch_of(rows)
    cuts = Cuts("document").find(batch)
    assert cuts[0] == 0
    assert cuts[-1] == batch["input_ids"].numel()
    assert bool((cuts.diff() >= 0).all())
    query, key, value = torch.randn(3, len(rows), LENGTH, 2, 4, dtype=torch.float64)
    flat = (each.flatten(0, 1) for each in (query, key, value))
    found = varlen_reference(*flat, cuts, cuts, LENGTH, LENGTH, window_size=(-1, 0)).view_as(query)
    heads = (each.transpose(1, 2) for each in (query, key, value))
    mask = document_mask(batch, dense=True)
    expected = functional.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2)
    is_token = batch["doc_ids"] >= 0
    torch.testing.assert_close(found[is_token], expected[is_token])


def test_a_window_ends_what_a_token_sees() -> None:
    query, key, value = torch.randn(3, 5, 1, 4)
    cuts = torch.tensor([0, 5], dtype=torch.int32)
    found = varlen_reference(query, key, value, cuts, cuts, 5, 5, window_size=(0, 0))
    torch.testing.assert_close(found, value)


def test_the_number_of_cuts_only_grows() -> None:
    cuts, rows = Cuts("document"), [[1] * LENGTH] * 3
    few = len(cuts.find(batch_of([[3]])))
    many = {"input_ids": torch.zeros(1, 40), "position_ids": torch.zeros(1, 40)}
    assert len(cuts.find(batch_of([[1] * LENGTH]))) == few
    grown = len(cuts.find(many))
    assert grown > 40 > few
    assert len(cuts.find(batch_of([[3]]))) == grown
    assert Cuts("causal").find(batch_of(rows)).tolist()[:4] == [0, LENGTH, 2 * LENGTH, 3 * LENGTH]


@pytest.mark.parametrize("kind", ["gpt_neox", "llama"])
def test_models_predict_as_with_sdpa_and_keep_documents_apart(kind: str) -> None:
    lm = as_causal_lm(tiny_model(kind).eval())
    ids, positions = torch.arange(2, 34)[None].repeat(2, 1), torch.cat([torch.arange(10), torch.arange(22)])[None]
    found = []
    with torch.no_grad():
        for implementation in ("sdpa", VARLEN):
            use_attention(lm.model, implementation)
            found.append(lm.model(input_ids=ids, position_ids=positions.repeat(2, 1), use_cache=False).logits)
            assert isolates_documents(lm, 2)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["document", "causal"])
def test_a_run_learns_as_with_sdpa(attention: str, tmp_path: Path) -> None:
    made = tiny_run(tmp_path, "train.steps=4", f"data.attention={attention}", "data.packing=concat")
    found = []
    for name in ("sdpa", VARLEN):
        trainer(made, tmp_path / name, f"model.attention_implementation={name}").fit()
        found.append([line["loss"] for line in lines(tmp_path / name)])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_a_step_whose_loss_is_compiled_learns_the_same(tmp_path: Path) -> None:
    made = tiny_run(tmp_path, "train.steps=4")
    found = []
    for compiled in ("false", "step"):
        trainer(made, tmp_path / compiled, f"parallel.compile={compiled}").fit()
        found.append([line["loss"] for line in lines(tmp_path / compiled)])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_dropout_of_attention_is_refused(tmp_path: Path) -> None:
    made = tiny_run(tmp_path, "train.steps=1", "model.attention_implementation=varlen", attention_dropout=0.1)
    with pytest.raises(PilekitError, match=r'"varlen": does not support dropout; set "sdpa"$'):
        trainer(made, tmp_path / "run").fit()
