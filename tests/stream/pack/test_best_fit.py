"""best_fit: the rows are those of the plain reference, whatever the lengths; and what they promise, on their own."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.shards.read.reader import read
from pilekit.stream.pack.best_fit import best_fit
from pilekit.stream.pack.window import room_for
from pilekit.tokenize import Tokenize, load_tokenizer
from tests.stream import reference
from tests.stream.packing_reference import documents_of, layout, reference_layout


def check(lengths: list[int], seq_len: int) -> None:
    documents = documents_of(lengths, append_eod=False)
    expected = reference_layout(reference.best_fit(documents, seq_len), documents)
    assert layout(best_fit(np.array(lengths, np.int64), seq_len)) == expected


@given(st.lists(st.integers(0, 100), max_size=80), st.integers(1, 130))
@example([], 1)
@example([0, 0], 5)
@example([64, 128, 129], 64)  # full rows only, and one token more
@example([1] * 70, 64)
@example([40, 40, 40, 24, 24, 24, 24], 64)  # equal space in many rows: the one opened first
@example([63, 1, 62, 2, 61, 3], 64)
def test_rows_are_those_of_the_reference(lengths: list[int], seq_len: int) -> None:
    check(lengths, seq_len)


@given(st.data(), st.sampled_from([16, 64, 65, 127, 128, 1000]), st.integers(1, 4))
def test_rows_with_equal_space_are_taken_as_they_were_opened(data: st.DataObject, seq_len: int, kinds: int) -> None:
    # Few different lengths, so that hundreds of rows have the same space, and change it out of order.
    lengths = data.draw(st.lists(st.integers(1, seq_len), min_size=kinds, max_size=kinds))
    check(data.draw(st.lists(st.sampled_from([*lengths, 1, 2]), min_size=50, max_size=150)), seq_len)


@pytest.mark.parametrize(("seq_len", "documents"), [(63, 150), (64, 150), (2048, 2000)])
def test_lengths_as_text_has_them(seq_len: int, documents: int) -> None:
    lengths = np.random.default_rng(0).lognormal(5, 1.5, documents).astype(np.int64)
    check(np.minimum(20_000, lengths).tolist(), seq_len)


@given(st.lists(st.integers(0, 5000), max_size=300), st.integers(1, 3000))
def test_every_token_once_no_document_cut_that_fits_and_rows_not_too_many(lengths: list[int], seq_len: int) -> None:
    rows = layout(best_fit(np.array(lengths, np.int64), seq_len))
    by_document: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        assert 0 < sum(length for _, _, length in row) <= seq_len
        for document, begin, length in row:
            by_document.setdefault(document, []).append((begin, length))
    for document, total in enumerate(lengths):
        found = sorted(by_document.get(document, []))
        assert [begin for begin, _ in found] == list(range(0, total, seq_len))
        assert sum(length for _, length in found) == total
        assert all(length == seq_len for _, length in found[:-1])
    # Best-fit-decreasing is within 11/9 of the best, and no packing needs fewer rows than the tokens fill.
    assert len(rows) >= math.ceil(sum(lengths) / seq_len)
    assert sum(1 for row in rows if 2 * sum(length for _, _, length in row) <= seq_len) <= 1


def test_many_documents_of_any_length_are_packed_at_once() -> None:
    # Far past what a quadratic packer could do within this test's time-out.
    for lengths in (np.arange(1, 200_001) % 2048 + 1, np.full(200_000, 100), np.repeat([1025, 1, 7], 100_000)):
        rows = best_fit(lengths.astype(np.int64), 2048)
        assert rows.length.sum() == lengths.sum()


def test_rows_of_real_text_are_full(real_corpus: Path) -> None:
    tokenize = Tokenize(load_tokenizer(real_corpus / "20B_tokenizer.json"))
    with read(real_corpus / "minipile-00.jsonl.zst") as batches:
        lengths = np.concatenate([np.diff(tokens.offsets) + 1 for tokens in tokenize(batches)])
    for window, least in ((128, 0.98), (256, 0.99), (512, 0.995)):
        tokens = rows = begin = 0
        while begin < len(lengths):
            count = room_for(lengths[begin:], window)
            rows += len(best_fit(lengths[begin : begin + count], 2048))
            tokens += int(lengths[begin : begin + count].sum())
            begin += count
        print(f"window {window}: fill {tokens / (rows * 2048):.4f} in {rows:,} rows")
        assert tokens / (rows * 2048) >= least
