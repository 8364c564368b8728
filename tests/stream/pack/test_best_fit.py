"""best_fit: for any lengths, the rows equal the plain reference; their guarantees are also checked alone."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.shards.read.reader import read
from pilekit.stream.pack.packings import best_fit
from pilekit.tokenize import Tokenize, load_tokenizer
from tests.stream import reference
from tests.stream.pack.packing_reference import documents_of


def layout(lengths: list[int], seq_len: int) -> list[list[tuple[int, int, int]]]:
    """Each row's pieces as (document, begin, length)."""
    rows = best_fit(np.array(lengths, np.int64), seq_len)
    found = list(zip(rows.document.tolist(), rows.begin.tolist(), rows.length.tolist(), strict=True))
    assert rows.start[0] == 0
    assert rows.start[-1] == len(found)
    return [found[first:last] for first, last in itertools.pairwise(rows.start)]


# With few different lengths, many rows have the same space, and their space changes out of order.
few_lengths = st.sets(st.integers(1, 100), min_size=1, max_size=4).flatmap(
    lambda some: st.lists(st.sampled_from([*some, 1, 2]), min_size=50, max_size=150)
)


@given(st.lists(st.integers(0, 100), max_size=80) | few_lengths, st.integers(1, 130))
@example([], 1)
@example([0, 0], 5)
@example([64, 128, 129], 64)  # full rows only, and one token more
@example([40, 40, 40, 24, 24, 24, 24], 64)  # equal space in many rows: the one opened first
def test_rows_are_those_of_the_reference(lengths: list[int], seq_len: int) -> None:
    documents = documents_of(lengths, append_eod=False)
    index = {(document.position, document.order): number for number, document in enumerate(documents)}
    assert layout(lengths, seq_len) == [
        [(index[piece.document.position, piece.document.order], piece.begin, piece.length) for piece in row]
        for row in reference.best_fit([reference.pieces_of(document, seq_len) for document in documents], seq_len)
    ]


@given(st.lists(st.integers(0, 5000), max_size=300), st.integers(1, 3000))
def test_every_token_once_no_document_cut_that_fits_and_rows_not_too_many(lengths: list[int], seq_len: int) -> None:
    rows = layout(lengths, seq_len)
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
    assert len(rows) >= math.ceil(sum(lengths) / seq_len)
    assert sum(1 for row in rows if 2 * sum(length for _, _, length in row) <= seq_len) <= 1


def test_rows_of_real_text_are_full(real_corpus: Path) -> None:
    tokenize = Tokenize(load_tokenizer(real_corpus / "20B_tokenizer.json"))
    with read(real_corpus / "minipile-00.jsonl.zst") as batches:
        lengths = np.concatenate([np.diff(tokens.offsets) + 1 for tokens in tokenize(batches)])
    for window, least in ((128, 0.98), (256, 0.99), (512, 0.995)):
        rows = sum(len(best_fit(lengths[at : at + window], 2048)) for at in range(0, len(lengths), window))
        assert lengths.sum() / (rows * 2048) >= least
