"""concat, separate and the order of rows against the plain reference; what windows take and what is left over."""

from __future__ import annotations

import dataclasses
import itertools
from typing import cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.stream.order.shuffle import mix
from pilekit.stream.pack.best_fit import best_fit
from pilekit.stream.pack.concat import concat, unused
from pilekit.stream.pack.rows import Rows, ordered, row_keys, taken
from pilekit.stream.pack.separate import separate
from pilekit.stream.pack.window import MOST_TOKENS, Packing, TokenizedDocuments, joined, packed, room_for
from tests.stream import reference
from tests.stream.packing_reference import documents_of, layout, lengths, plan, reference_layout


def int64(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@given(lengths, st.integers(1, 40))
@example([0], 1)
@example([4, 4, 0, 0], 4)
@example([0, 0, 100, 0], 7)
def test_concat_is_that_of_the_reference(lengths: list[int], seq_len: int) -> None:
    documents = documents_of(lengths, append_eod=False)
    expected = reference_layout(list(reference.concat(iter(documents), seq_len)), documents)
    assert layout(concat(int64(lengths), seq_len, last=True)) == expected
    full = [row for row in expected if sum(length for _, _, length in row) == seq_len]
    assert layout(concat(int64(lengths), seq_len)) == full


@given(lengths, st.integers(1, 40), st.data())
def test_concat_goes_on_where_it_stopped(lengths: list[int], seq_len: int, data: st.DataObject) -> None:
    expected = layout(concat(int64(lengths), seq_len, last=True))
    found, at, begin = [], 0, 0
    end = 0
    while end < len(lengths):
        end = data.draw(st.integers(end + 1, len(lengths)))
        part = int64(lengths[at:end])
        rows = concat(part, seq_len, begin, last=end == len(lengths))
        found += [[(at + document, first, count) for document, first, count in row] for row in layout(rows)]
        document, begin = unused(part, begin + len(rows) * seq_len if end < len(lengths) else int(part.sum()))
        at += document
    assert found == expected
    assert (at, begin) == (len(lengths), 0)


def test_nothing_to_pack_gives_no_rows() -> None:
    for packing in (concat, separate, best_fit):
        assert layout(packing(int64([]), 4)) == []
        assert layout(packing(int64([0, 0]), 4)) == []
    assert layout(concat(int64([]), 4, last=True)) == []
    assert unused(int64([]), 0) == (0, 0)
    assert unused(int64([0, 3, 0]), 3) == (3, 0)


@given(lengths, st.integers(1, 40), st.integers(-(2**63), 2**64), st.sampled_from(["best_fit", "none", "concat"]))
def test_rows_of_a_window_come_in_the_order_of_their_keys(
    lengths: list[int], seq_len: int, seed: int, packing: str
) -> None:
    documents = documents_of(lengths, sizes=(4, 1), append_eod=False)
    one = plan(seq_len, packing, seed=seed)
    expected = list(reference.lane_rows(iter(documents), one))
    keys = np.array([reference.document_key(one, document) for document in documents], np.uint64)
    window = packed(tokenized(lengths, keys), cast(Packing, packing), seq_len, append_eod=False)
    assert layout(window.rows) == reference_layout(expected, documents)
    assert window.row_keys.tolist() == [reference.row_key(one, row) for row in expected]
    assert window.row_keys.dtype == np.uint64


def test_the_order_of_rows_is_that_of_their_keys_alone() -> None:
    rows = best_fit(int64([9, 3, 5, 2, 30, 1, 8, 8, 8]), 10)
    keys = mix(5, np.arange(9))
    found, found_keys = ordered(rows, keys)
    assert np.all(found_keys[:-1] < found_keys[1:])
    assert sorted(layout(found)) == sorted(layout(rows))
    assert row_keys(found, keys).tolist() == found_keys.tolist()
    reversed_rows = taken(rows, np.arange(len(rows))[::-1].copy())
    assert layout(reversed_rows) == layout(rows)[::-1]
    assert layout(ordered(reversed_rows, keys)[0]) == layout(found)
    assert layout(ordered(rows, mix(6, np.arange(9)))[0]) != layout(found)


def test_rows_of_one_document_have_different_keys() -> None:
    keys = row_keys(separate(int64([1000]), 10), mix(1, np.arange(1)))
    assert len(set(keys.tolist())) == 100


@given(
    st.lists(st.integers(0, 300_000), max_size=30),
    st.integers(1, 12),
    st.integers(0, 11),
    st.integers(0, 2 * MOST_TOKENS),
)
@example([MOST_TOKENS - 1, 1, 1], 5, 0, 0)
@example([MOST_TOKENS - 1, 0, 1, 0, 1], 9, 0, 0)
@example([1], 3, 2, MOST_TOKENS)
def test_a_window_takes_documents_until_it_has_enough(lengths: list[int], window: int, had: int, tokens: int) -> None:
    had %= window + 1
    count = 0
    so_far = tokens
    while count < len(lengths) and had + count < window and so_far < MOST_TOKENS:
        so_far += lengths[count]
        count += 1
    assert room_for(int64(lengths), window, had, tokens) == count


def tokenized(lengths: list[int], keys: np.ndarray) -> TokenizedDocuments:
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    numbers = np.arange(len(lengths))
    return TokenizedDocuments(
        *(np.arange(offsets[-1], dtype=np.uint32), offsets, numbers % 3, numbers % 2, numbers * 10, keys),
        *(numbers // 4, numbers % 4, numbers % 5),
    )


@given(lengths, st.data())
def test_parts_joined_are_the_whole(lengths: list[int], data: st.DataObject) -> None:
    whole = tokenized(lengths, mix(0, np.arange(len(lengths))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=4)))
    parts = [whole.part(begin, end) for begin, end in itertools.pairwise([0, *cuts, len(lengths)])]
    for part in parts:
        assert part.offsets[0] == 0
        assert part.offsets[-1] == len(part.ids)
    again = joined(parts)
    for field in dataclasses.fields(TokenizedDocuments):
        found, expected = getattr(again, field.name), getattr(whole, field.name)
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("seq_len", [1, 7, 100])
def test_separate_gives_each_piece_its_row(seq_len: int) -> None:
    documents = documents_of([0, 7, 8, 100, 1, 14], append_eod=False)
    expected = [[piece] for document in documents for piece in reference.pieces_of(document, seq_len)]
    rows: Rows = separate(int64([0, 7, 8, 100, 1, 14]), seq_len)
    assert layout(rows) == reference_layout(expected, documents)
