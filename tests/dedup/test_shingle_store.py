"""Shingle sets on disk are looked up by id; two of any size are compared without being loaded."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.bits import Bits
from pilekit.dedup.compare import shingle_store
from pilekit.dedup.compare.difference import bitmaps
from pilekit.dedup.compare.shingle_store import ShingleStore, extents_file, sets_file
from pilekit.errors import PilekitError
from tests.dedup.given import given_store, write_store_files

values = st.sets(st.integers(0, 30) | st.integers(0, 2**64 - 1), min_size=1, max_size=40)


def store_of_some(folder: Path, sets: list[set[int]], flagged: list[bool], borders: list[int]) -> ShingleStore:
    """A store of the sets that are flagged, in shards that end at these borders, as the second pass writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    base = np.array([0, *sorted(min(border, len(sets)) for border in borders), len(sets)], dtype=np.int64)
    for place, (begin, end) in enumerate(pairwise(base.tolist())):
        chosen = [np.array(sorted(sets[i]), dtype=np.uint64) for i in range(begin, end) if flagged[i]]
        write_store_files(folder, place, chosen)
    bits: Bits = np.packbits(np.array(flagged, dtype=bool), bitorder="little")
    return ShingleStore(folder, base, bits)


@given(st.data())
def test_every_set_is_found_alone_and_among_others(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sets = data.draw(st.lists(values, min_size=1, max_size=200))
    flagged = data.draw(st.lists(st.booleans(), min_size=len(sets), max_size=len(sets)))
    borders = data.draw(st.lists(st.integers(0, len(sets)), max_size=4))
    store = store_of_some(tmp_path_factory.mktemp("store"), sets, flagged, borders)
    ids = np.flatnonzero(flagged)
    for id in ids.tolist():
        assert store.get(id).tolist() == sorted(sets[id])
    some = ids[data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))]
    extents = store.extents(some)
    assert extents.sizes.tolist() == [len(sets[id]) for id in some]
    loaded = store.sets(some, extents)
    assert store.bits(some, extents).tolist() == bitmaps(loaded, extents.sizes).tolist()
    assert loaded.tolist() == list(chain(*(sorted(sets[id]) for id in some.tolist())))


@given(one=values, other=values, piece=st.integers(1, 5), shards=st.integers(1, 2))
def test_what_two_share_is_known_without_loading_them(
    tmp_path_factory: pytest.TempPathFactory, one: set[int], other: set[int], piece: int, shards: int
) -> None:
    store = given_store(tmp_path_factory.mktemp("store"), [one, other], shards=shards)
    shared = len(one & other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shingle_store, "PIECE", piece)
        for first, second in ((0, 1), (1, 0)):
            assert store.shared_if_enough(first, second, 0) == shared
            assert store.shared_if_enough(first, second, shared) == shared
            assert store.shared_if_enough(first, second, shared + 1) == -1


def test_a_store_that_has_lost_something_is_an_error(tmp_path: Path) -> None:
    store = given_store(tmp_path, [{1, 2, 3}, {4, 5}])
    sets_file(tmp_path, 0).write_bytes(sets_file(tmp_path, 0).read_bytes()[:-8])
    assert store.get(0).tolist() == [1, 2, 3]
    with pytest.raises(PilekitError, match=r"0\.sets: is shorter than it was"):
        store.get(1)
    extents_file(tmp_path, 0).unlink()
    with pytest.raises(PilekitError, match=r"0\.extents: cannot be read: No such file"):
        store.get(0)
