"""Masks equal the plain reference, have BERT's proportions, and depend only on row and place."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.stream.batch.mlm import Masking, mask
from pilekit.stream.order.shuffle import mix
from tests.stream.packing_reference import masked
from tests.stream.reference import Row

Int64 = np.ndarray


def applied(tokens: Int64, keys: Int64, used: list[int], masking: Masking) -> tuple[Int64, Int64]:
    """(input_ids, labels) of `tokens`, int64 [rows, seq_len]."""
    input_ids, labels = tokens.flatten(), np.full(tokens.size, 12345)
    mask(input_ids, labels, keys, np.array(used, np.int64), masking)
    return input_ids.reshape(tokens.shape), labels.reshape(tokens.shape)


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


def test_proportions_are_bert_s() -> None:
    # Each count is binomial, so its distance from the mean is in standard deviations; 4 is 1 chance in 16,000.
    rows, seq_len, vocabulary = 1000, 2048, 1000
    masking = Masking(3, vocabulary, (0, 1, 2, 999))
    tokens = np.random.default_rng(0).integers(4, 999, (rows, seq_len))
    input_ids, labels = applied(tokens, mix(1, np.arange(rows)), [seq_len] * rows, masking)
    chosen = labels != -100
    became_mask = chosen & (input_ids == 3)
    replaced = chosen & (input_ids != 3) & (input_ids != tokens)

    def deviations(count: int, of: int, share: float) -> float:
        return (count - of * share) / math.sqrt(of * share * (1 - share))

    n = int(chosen.sum())
    assert abs(deviations(n, tokens.size, 0.15)) < 4
    assert abs(deviations(int(became_mask.sum()), n, 0.8)) < 4
    assert abs(deviations(int(replaced.sum()), n, 0.1 * (1 - 1 / 995))) < 4  # one in 995 is the token that was there
    assert np.array_equal(labels[chosen], tokens[chosen])
    assert np.array_equal(input_ids[~chosen], tokens[~chosen])

    drawn = np.bincount(input_ids[replaced], minlength=vocabulary)
    assert drawn[[0, 1, 2, 3, 999]].sum() == 0
    expected = replaced.sum() / 995
    chi_square = ((drawn[4:999] - expected) ** 2 / expected).sum()
    assert abs(chi_square - 994) < 4 * math.sqrt(2 * 994)


def test_a_vocabulary_of_special_tokens_alone_is_refused() -> None:
    Masking(0, 3, (1, 7))
    with pytest.raises(PilekitError, match=r"a vocabulary of 3 tokens, all of them special.*objective=\"mlm\""):
        Masking(0, 3, (1, 2, 7))
