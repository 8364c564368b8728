"""Masks equal the plain reference, which has BERT's proportions, and depend only on row and place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.shuffle import mix
from pilekit.stream.batch.mlm import Masking, mask
from tests.stream.pack.packing_reference import masked
from tests.stream.reference import Row

Int64 = np.ndarray


def applied(tokens: Int64, keys: Int64, used: list[int], masking: Masking) -> tuple[Int64, Int64]:
    """(input_ids, labels) of `tokens`, int64 [rows, seq_len]."""
    input_ids, labels = tokens.copy(), np.full(tokens.shape, 12345)
    mask(input_ids, labels, keys, np.array(used, np.int64), masking)
    return input_ids, labels


@given(
    st.integers(0, 5),
    st.integers(1, 60),
    st.integers(0, 30),
    st.sets(st.integers(0, 40), max_size=8),
    st.integers(0, 2**64 - 1),
    st.data(),
)
@example(4, 400, 30, {0, 1, 30, 39, 40}, 1, None)  # special tokens at both ends, and past the vocabulary
def test_masks_are_those_of_the_reference(
    rows: int, seq_len: int, mask_id: int, special: set[int], seed: int, data: st.DataObject | None
) -> None:
    masking = Masking(mask_id, 40, tuple(special))
    rng = np.random.default_rng(seed % 1000)
    tokens = rng.integers(0, 42, (rows, seq_len))  # ids past the vocabulary are tokens too
    used = [data.draw(st.integers(0, seq_len)) if data else seq_len - row for row in range(rows)]
    keys = mix(seed, np.arange(rows))
    found_ids, found_labels = applied(tokens, keys, used, masking)
    for row in range(rows):
        doc_ids = tuple(0 if place < used[row] else -1 for place in range(seq_len))
        whole = Row((), tuple(tokens[row].tolist()), (), (), doc_ids, ())
        assert (found_ids[row].tolist(), found_labels[row].tolist()) == masked(whole, int(keys[row]), masking)


def test_a_vocabulary_of_special_tokens_alone_is_refused() -> None:
    Masking(0, 3, (1, 7))
    with pytest.raises(PilekitError, match=r"a vocabulary of 3 tokens, all of them special.*objective=\"mlm\""):
        Masking(0, 3, (1, 2, 7))
