"""Recall is the theory's at least, for every kind of edit and at every similarity; printed with `pytest -s`.

Bounds are exact: so few candidates as were found must not have a chance below one in a million, which is what 4.8
standard deviations are where a bin has many pairs. There are 280 of them in all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dedup.planted import EDITS
from tests.dedup.recall import BINS, Outcome, chance_of_so_few, outcomes, table, within

LEAST_CHANCE = 1e-6


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9])
def test_planted_pairs_are_found_as_often_as_the_theory_says(threshold: float, tmp_path: Path) -> None:
    bands, found = outcomes(tmp_path, threshold, 6000)
    print(table(found, threshold, bands))
    for least, below in BINS:
        for edits in (list(EDITS), *([edit] for edit in EDITS)):
            some = [one for one in within(found, least, below) if one.edit in edits]
            assert len(some) >= 10
            assert chance_of_so_few(some) > LEAST_CHANCE, (least, edits)
    above = within(found, threshold)
    assert len(above) > 400
    assert sum(one.removed for one in above) >= 0.99 * len(above)
    # What is compared is compared exactly.
    assert all(one.candidate for one in above if one.removed)
    assert not any(one.removed for one in found if one.similarity < threshold)


def test_the_chance_is_that_of_a_binomial_distribution() -> None:
    def some(found: int, of_all: int, promised: float) -> list[Outcome]:
        return [Outcome("", 0.8, promised, number < found, False) for number in range(of_all)]

    assert chance_of_so_few(some(0, 3, 0.5)) == 1 / 8
    assert chance_of_so_few(some(2, 3, 0.5)) == 7 / 8
    assert chance_of_so_few(some(3, 3, 0.999)) == pytest.approx(1)
    # 40 % where 99 % are promised: what the usual rule for bands gives.
    assert chance_of_so_few(some(20, 50, 0.99)) < LEAST_CHANCE
    assert chance_of_so_few([*some(1, 1, 0.25), *some(0, 1, 0.5)]) == 0.25 * 0.5 + 0.75 * 0.5 + 0.75 * 0.5
