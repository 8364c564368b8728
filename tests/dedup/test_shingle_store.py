"""Shingle sets on disk are found by id, and files that do not fit are an error."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.compare.shingle_store import ShingleStore, ends_file, sets_file
from pilekit.errors import PilekitError
from tests.dedup.given import given_store, write_store_files

values = st.sets(st.integers(0, 30) | st.integers(0, 2**64 - 1), min_size=1, max_size=40)


@given(st.data())
def test_every_set_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    sets = data.draw(st.lists(values, min_size=1, max_size=200))
    flagged = data.draw(st.lists(st.booleans(), min_size=len(sets), max_size=len(sets)))
    borders = data.draw(st.lists(st.integers(0, len(sets)), max_size=4))
    folder = tmp_path_factory.mktemp("store")
    base = np.array([0, *sorted(borders), len(sets)], dtype=np.int64)
    for place, (begin, end) in enumerate(pairwise(base.tolist())):
        chosen = [np.array(sorted(sets[i]), dtype=np.uint64) for i in range(begin, end) if flagged[i]]
        write_store_files(folder, place, chosen)
    store = ShingleStore(folder, base, np.packbits(np.array(flagged, dtype=bool), bitorder="little"))
    for _ in range(2):
        for id in np.flatnonzero(flagged).tolist():
            assert store.get(id).tolist() == sorted(sets[id])
        store.release()


def test_a_store_that_has_lost_something_is_an_error(tmp_path: Path) -> None:
    given_store(tmp_path, [{1, 2, 3}, {4, 5}])
    content = sets_file(tmp_path, 0).read_bytes()
    sets_file(tmp_path, 0).write_bytes(content[:-8])
    base, flagged = np.array([0, 2]), np.array([3], dtype=np.uint8)
    with pytest.raises(PilekitError, match=r"0\.sets: is damaged"):
        ShingleStore(tmp_path, base, flagged)
    ends_file(tmp_path, 0).unlink()
    with pytest.raises(PilekitError, match=r"0\.ends: cannot be read: No such file"):
        ShingleStore(tmp_path, base, flagged)
