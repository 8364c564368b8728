"""document_mask equals the plain reference, and FlexAttention takes it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from pilekit.errors import PilekitError
from pilekit.stream.batch.attention_mask import document_mask
from tests.refusing import refused
from tests.stream.collecting import rows_of
from tests.stream.pack.packing_reference import NAMES, attends, lengths, packed


@given(lengths, st.integers(1, 40), st.sampled_from(["best_fit", "concat", "none"]), st.booleans())
def test_masks_are_those_of_the_reference(lengths: list[int], seq_len: int, packing: str, causal: bool) -> None:
    assume(packing != "none" or any(lengths))  # An empty document has no row there.
    batch = packed(lengths, seq_len, packing)
    expected = torch.tensor([attends(row, causal) for row in rows_of(batch, NAMES)])
    for column in ("doc_ids", "position_ids"):
        held = {column: batch[column]}
        dense = document_mask(held, dense=True, causal=causal)
        rows = len(batch[column])
        assert dense.dtype == torch.bool
        assert dense.shape == (rows, 1, seq_len, seq_len)
        assert torch.equal(dense[:, 0], expected)
        b, q, kv = torch.meshgrid(torch.arange(rows), torch.arange(seq_len), torch.arange(seq_len), indexing="ij")
        assert torch.equal(document_mask(held, causal=causal)(b, torch.tensor(0), q, kv), expected)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("column", "causal"), [("doc_ids", True), ("position_ids", False)])
def test_flex_attention_takes_it(column: str, causal: bool) -> None:
    batch = packed([100, 40, 130, 17, 60, 200, 3], 256)
    rows, seq_len = batch["input_ids"].shape
    mask_mod = document_mask({column: batch[column]}, causal=causal)
    blocks = create_block_mask(mask_mod, rows, None, seq_len, seq_len, device="cpu")
    # Queries, keys and values [rows, 2, T, 16] are a function of each token.
    tables = torch.randn(3, int(batch["input_ids"].max()) + 1, 2, 16, generator=torch.Generator().manual_seed(0))
    q, k, v = (table[batch["input_ids"]].transpose(1, 2) for table in tables)
    found = flex_attention(q, k, v, block_mask=blocks)
    expected = scaled_dot_product_attention(q, k, v, attn_mask=document_mask(batch, dense=True, causal=causal))
    torch.testing.assert_close(found, expected)


def test_a_batch_without_documents_or_positions_is_refused() -> None:
    with pytest.raises(PilekitError, match=r"needs doc_ids or position_ids, and the batch has input_ids, labels"):
        document_mask({"input_ids": torch.zeros(1, 2), "labels": torch.zeros(1, 2)})
    refused(r"needs position_ids as a tensor \[batch, T\], not \[3\]", document_mask, {"position_ids": torch.zeros(3)})
