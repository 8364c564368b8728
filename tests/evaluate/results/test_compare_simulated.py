"""How often `compare` sees a difference that is not there, and how often its interval misses the true difference.

Each simulated subset is a comparison of its own. A model's document costs its length times a hardness, and the further
model adds noise of a law to it. docs/bpb.md says for each law how often intervals are too narrow.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from pilekit.corpus import load_manifest
from pilekit.evaluate.results.compare import compare
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.scores import Score
from tests.benchmarks.bpb.comparison_coverage import LAWS, simulate
from tests.evaluate.documents import protocol_of


def result(subsets: list[str], sizes: npt.NDArray[np.int64], bits: npt.NDArray[np.float64]) -> BitsPerByte:
    columns = zip(
        range(len(subsets)), subsets, sizes.ravel().tolist(), (bits.ravel() * math.log(2)).tolist(), strict=True
    )
    scored = [ScoredDocument("a.jsonl", number, number, name, size, 1, nll) for number, name, size, nll in columns]
    return BitsPerByte(Score(), {}, protocol_of(), records=Records.of(scored, ["a.jsonl"], load_manifest()))


@pytest.mark.slow
@pytest.mark.parametrize("law", ["normal", "t(2)", "exponential", "lognormal 1.0", "lognormal 1.5"])
def test_the_real_comparison_does_what_docs_bpb_tells(law: str) -> None:
    """In `compare` itself; the simulation behind docs/bpb.md computes the same with matrices and fewer splits."""
    for documents in (10, 100):
        bits, lengths = LAWS[law](np.random.default_rng([7, documents]), (400, documents))
        sizes = lengths.astype(np.int64)
        hardness = np.random.default_rng(8).uniform(50, 60, sizes.shape)
        subsets = [str(subset) for subset in range(400) for _ in range(documents)]
        other = result(subsets, sizes, sizes * (hardness + bits / lengths))
        found = list(compare([result(subsets, sizes, sizes * hardness), other]).against[0].subsets.values())
        spans = [one.interval or (1.0, 0.0) for one in found]
        missed = np.mean([not low <= 0 <= high for low, high in spans])
        marked = np.mean([one.is_approximate for one in found])
        expected = simulate(LAWS[law], documents, 2000)
        for share, told in ((missed, expected.missed), (marked, expected.marked)):
            assert share == pytest.approx(told, abs=4.5 * (max(told, 0.01) * (1 - told) / 333) ** 0.5), documents


@pytest.mark.slow
def test_intervals_of_skewed_and_long_tailed_differences() -> None:
    """At most 6 % are missed in most cells; lengths without a mean square and heavy one-sided tails stay a limit."""
    cells = {(law, n): simulate(LAWS[law], n, 2000, seed=1) for law in LAWS for n in (10, 30, 100, 300)}
    for (law, documents), cell in cells.items():
        assert cell.missed <= MOST_MISSED.get(law, 0.065) + 0.012, (law, documents)
        assert cell.width < 1.35 or law != "normal"
    assert np.mean([cell.missed <= 0.06 for cell in cells.values()]) > 0.7
    wrong = [cell.marked if cell.missed <= 0.07 else 1 - cell.marked for cell in cells.values()]
    assert np.mean(wrong) < 0.4  # marked without need, or narrow without a mark


MOST_MISSED = {"lognormal 1.0": 0.085, "lognormal 1.5": 0.145, "lengths 1.5, 0.2": 0.105, "lengths 2.0, 0.1": 0.13}
"""Where docs/bpb.md tells more than 7 %."""
