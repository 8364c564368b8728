"""concat, separate and the order of rows against the plain reference; which documents a window takes."""

from __future__ import annotations

import dataclasses
import itertools
from typing import cast

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.stream.pack.best_fit import best_fit
from pilekit.stream.pack.concat import concat, unused
from pilekit.stream.pack.rows import separate
from pilekit.stream.pack.window import (
    MOST_TOKENS,
    Layout,
    Packing,
    Place,
    TokenizedDocuments,
    gathered,
    joined,
    windows,
)
from tests.stream import reference
from tests.stream.packing_reference import documents_of, layout, lengths, plan, reference_layout, tokenized


def int64(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@given(lengths, st.integers(1, 40))
@example([0], 1)
@example([4, 4, 0, 0], 4)
@example([0, 0, 100, 0], 7)
def test_concat_and_separate_are_those_of_the_reference(lengths: list[int], seq_len: int) -> None:
    documents = documents_of(lengths, append_eod=False)
    expected = reference_layout(list(reference.concat(iter(documents), seq_len)), documents)
    assert layout(concat(int64(lengths), seq_len, last=True)) == expected
    full = [row for row in expected if sum(length for _, _, length in row) == seq_len]
    assert layout(concat(int64(lengths), seq_len)) == full
    alone = [[piece] for document in documents for piece in reference.pieces_of(document, seq_len)]
    assert layout(separate(int64(lengths), seq_len)) == reference_layout(alone, documents)


@given(lengths, st.integers(1, 40), st.data())
def test_concat_resumes_where_it_stopped(lengths: list[int], seq_len: int, data: st.DataObject) -> None:
    expected = layout(concat(int64(lengths), seq_len, last=True))
    found, at, begin, end = [], 0, 0, 0
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
        for nothing in ([], [0, 0]):
            assert layout(packing(int64(nothing), 4)) == []
    assert layout(concat(int64([]), 4, last=True)) == []
    assert unused(int64([]), 0) == (0, 0)
    assert unused(int64([0, 3, 0]), 3) == (3, 0)


@given(lengths, st.integers(1, 40), st.integers(0, 2**63), st.sampled_from(["best_fit", "none", "concat"]))
def test_rows_of_a_window_come_in_the_order_of_their_keys(
    lengths: list[int], seq_len: int, seed: int, packing: str
) -> None:
    documents = documents_of(lengths, sizes=(4, 1), append_eod=False)
    one = plan(seq_len, packing, seed=seed)
    expected = list(reference.lane_rows(iter(documents), one))
    how = Layout(seq_len, cast(Packing, packing), 256, False, seed)
    found = list(windows(iter([tokenized(documents, append_eod=False)]), 0, Place(0, 0), how))
    assert [key for window in found for key in window.row_keys.tolist()] == [
        reference.row_key(one, row) for row in expected
    ]
    if packing != "concat":
        (window,) = found
        assert layout(window.rows) == reference_layout(expected, documents)
        assert window.row_keys.dtype == np.uint64


def test_rows_of_one_document_have_different_keys() -> None:
    how = Layout(10, "none", 256, False, 1)
    (window,) = windows(
        iter([tokenized(documents_of([1000], append_eod=False), append_eod=False)]), 0, Place(0, 0), how
    )
    assert len(set(window.row_keys.tolist())) == 100


@given(
    st.lists(st.lists(st.integers(0, 300_000), max_size=12), max_size=5),
    st.integers(1, 12),
)
@example([[MOST_TOKENS - 1, 1, 1]], 5)
@example([[MOST_TOKENS - 1, 0, 1], [0, 1]], 9)
def test_a_window_takes_documents_until_it_has_enough(parts: list[list[int]], window: int) -> None:
    class Sizes(list[int]):
        def part(self, begin: int, end: int) -> Sizes:
            return Sizes(self[begin:end])

    expected: list[list[int]] = [[]]
    for size in (size for part in parts for size in part):
        if len(expected[-1]) == window or sum(expected[-1]) >= MOST_TOKENS:
            expected.append([])
        expected[-1].append(size)
    found = [
        [size for some in list_of_parts for size in some]
        for list_of_parts in gathered(map(Sizes, parts), int64, window)
    ]
    assert found == [one for one in expected if one]


@given(lengths, st.data())
def test_parts_joined_are_the_whole(lengths: list[int], data: st.DataObject) -> None:
    whole = tokenized(documents_of(lengths))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=4)))
    parts = [whole.part(begin, end) for begin, end in itertools.pairwise([0, *cuts, len(lengths)])]
    for part in parts:
        assert (part.offsets[0], part.offsets[-1]) == (0, len(part.ids))
    again = joined(parts)
    for field in dataclasses.fields(TokenizedDocuments):
        found, expected = getattr(again, field.name), getattr(whole, field.name)
        assert list(found) == list(expected)
