"""Repeats: documents that stay are counted, and the choice is computed a second time in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pilekit.corpus import load_manifest
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.stream.order.unit_sequence import documents_of_copy
from pilekit.stream.read.mixture import exact_repeats

PILE = load_manifest("pile")


@pytest.mark.parametrize("factor", [0.0, 0.25, 1.0, 1.5, 2.0, 3.75])
def test_each_document_is_used_floor_or_ceil_times(factor: float) -> None:
    numbers = np.arange(20_000)
    batch = DocumentBatch([""] * len(numbers), ["ArXiv"] * len(numbers), "s", numbers)
    chosen = []
    for epoch in range(2):
        used = [documents_of_copy(batch, {"ArXiv": factor}, 1, epoch, copy, 0).numbers for copy in range(5)]
        uses = np.bincount(np.concatenate(used), minlength=len(numbers))
        assert set(np.unique(uses)) <= {math.floor(factor), math.ceil(factor)}
        more = factor - math.floor(factor)
        assert abs(uses.sum() / len(numbers) - factor) <= 4 * (more * (1 - more) / len(numbers)) ** 0.5
        chosen.append(uses)
    assert (factor % 1 == 0) == np.array_equal(chosen[0], chosen[1]), "epochs choose anew"


def test_names_are_made_exact_and_ones_dropped() -> None:
    found = exact_repeats({"pile_wikipedia": 3, "GitHub": 0, "arxiv": 1.0}, None, PILE)
    assert found == {"Github": 0.0, "Wikipedia (en)": 3.0}
    assert list(found) == sorted(found)
    assert exact_repeats(None, None, PILE) == {}


def test_wrong_repeats_are_refused() -> None:
    for repeats, subsets, message in (
        ([("ArXiv", 2)], None, "repeats is a dict"),
        ({"ArXif": 2}, None, 'unknown subset "ArXif".*ArXiv'),
        ({"ArXiv": -1}, None, "repeats of ArXiv: -1 is no factor; give a number from 0"),
        ({"ArXiv": float("nan")}, None, "nan is no factor"),
        ({"ArXiv": "2"}, None, "'2' is no factor"),
        ({"ArXiv": True}, None, "True is no factor"),
        ({"ArXiv": 1001}, None, "1001 is no factor"),
        ({"ArXiv": 2, "arxiv": 3}, None, "names ArXiv twice"),
        ({"ArXiv": 2}, ["Github"], "names ArXiv, which subsets leaves out"),
        ({"ArXiv": 0, "Github": 0.0}, ["ArXiv", "Github"], "0 for every selected subset"),
    ):
        with pytest.raises(PilekitError, match=message) as raised:
            exact_repeats(repeats, subsets, PILE)  # type: ignore[arg-type]
        assert "\n" not in str(raised.value)
