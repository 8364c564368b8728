"""`StoredIds` and the loops that copy them, against lists of Python numbers."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PilekitError, TokenFile
from pilekit.tokenize.files.id_kernels import find_spans
from pilekit.tokenize.files.stored_ids import copied, join_stored, stored_in
from tests.tokenize.files.test_token_file import index

EOD = 7
Documents = list[list[list[int]]]
"""The ids of each sequence of each document."""


def written(stem: Path, documents: Documents, item: int, cuts: list[int]) -> TokenFile:
    """The token file of these documents; its `.bin` is in parts, which end at the bytes `cuts`, if there are any."""
    sequences = [sequence for document in documents for sequence in document]
    firsts = np.cumsum([0, *map(len, documents)]).tolist()
    stem.with_suffix(".idx").write_bytes(index([*map(len, sequences)], firsts, item))
    data = np.array([token for sequence in sequences for token in sequence], f"<i{item}" if item == 4 else "<u2")
    borders = [0, *sorted(min(cut, data.nbytes) for cut in cuts), data.nbytes]
    for number, (begin, end) in enumerate(pairwise(borders)):
        name = f"{stem.name}-{number:05}-of-{len(cuts):05}.bin" if cuts else f"{stem.name}.bin"
        (stem.parent / name).write_bytes(data.tobytes()[begin:end])
    return TokenFile(stem)


def files() -> st.SearchStrategy[tuple[Documents, int, list[int], int | None]]:
    """(documents, bytes of an id, cuts of the `.bin`, EOD to remove)."""

    def documents(item: int) -> st.SearchStrategy[tuple[Documents, int, list[int], int | None]]:
        most = {2: 2**16 - 1, 4: 2**31 - 1}[item]
        ids = st.lists(st.sampled_from([0, 1, EOD, most]) | st.integers(0, most), max_size=12)
        ended = st.tuples(ids, st.sampled_from([[], [EOD], [EOD, EOD]])).map(lambda parts: [*parts[0], *parts[1]])
        cuts = st.lists(st.integers(0, 150), max_size=4)
        of_file = st.lists(st.lists(ended, max_size=3), min_size=1, max_size=8)
        return st.tuples(of_file, st.just(item), cuts, st.sampled_from([None, EOD]))

    return st.sampled_from([2, 4]).flatmap(documents)


@given(st.lists(files(), min_size=1, max_size=3), st.data())
def test_copies_are_the_lists_of_ids_in_any_order_and_part(
    corpus: list[tuple[Documents, int, list[int], int | None]], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        wanted, parts = [], []
        for number, (documents, item, cuts, ending) in enumerate(corpus):
            file = written(Path(folder) / f"file{number}", documents, item, cuts)
            chosen = sorted(data.draw(st.sets(st.integers(0, len(documents) - 1))))
            parts.append(stored_in(file, np.array(chosen, np.int64), ending))
            for document in chosen:
                ids = [token for sequence in documents[document] for token in sequence]
                wanted.append(ids[:-1] if ids and ids[-1] == ending else ids)
        stored = join_stored(parts)
        assert [ids.tolist() for ids in stored] == wanted
        order = data.draw(st.permutations(range(len(wanted))))
        first, last = (data.draw(st.integers(0, len(wanted))) for _ in range(2))
        ordered = stored.take(np.array(order, np.int64))
        for given_parts, places in (
            (parts, range(len(wanted))),
            ([ordered], order),
            ([ordered[:first], ordered[last:], stored], [*order[:first], *order[last:], *range(len(wanted))]),
        ):
            ids, offsets, largest = copied(join_stored(given_parts))
            lists = [wanted[place] for place in places]
            assert ids.dtype == np.uint32
            assert ids.tolist() == [token for tokens in lists for token in tokens]
            assert offsets.tolist() == np.cumsum([0, *map(len, lists)]).tolist()
            assert largest == max(ids.tolist(), default=-1)
            assert [len(tokens) for tokens in lists] == [length for part in given_parts for length in part.lengths]


@given(
    st.lists(st.tuples(*[st.integers(-9, 9)] * 2), max_size=5), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)
)
def test_spans_stay_inside_a_file_whose_index_was_overwritten(
    spans: list[tuple[int, int]], pointers: list[int]
) -> None:
    firsts, lasts = np.array(spans, np.int64).reshape(-1, 2).T
    begins, lengths = np.empty(len(spans), np.int64), np.empty(len(spans), np.int64)
    find_spans(firsts, lasts, np.array(pointers, np.int64), 2, 100, begins, lengths)
    assert ((begins >= 0) & (lengths >= 0) & (begins + lengths <= 100)).all()


def test_ids_below_0_are_above_every_vocabulary(tmp_path: Path) -> None:
    file = written(tmp_path / "x", [[[5, -1, 3]]], 4, [])
    assert copied(stored_in(file, np.array([0])))[2] == 2**32 - 1


@pytest.mark.parametrize(("changed", "is_found"), [("x.idx", False), ("x.bin", False), ("x.bin", True)])
def test_a_file_that_becomes_shorter_is_named(tmp_path: Path, changed: str, is_found: bool) -> None:
    """Before its documents are found, or before their ids are copied."""
    file = written(tmp_path / "x", [[[5] * 9000]] * 3, 2, [])
    stored = stored_in(file, np.array([2]), EOD)
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        return
    os.truncate(tmp_path / changed, 3)
    try:
        copied(stored if is_found else stored_in(file, np.array([2]), EOD))
    except PilekitError as error:
        os._exit(7 if f"{tmp_path / changed}: was changed while it was read; run again" in str(error) else 1)
    os._exit(0)
