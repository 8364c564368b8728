"""Two results of `memorised` on the same sequences, paired, equal a plain loop; other sequences are refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PilekitError, compare_memorised
from pilekit.corpus.sidecar_files import SEQUENCES_FILE
from pilekit.evaluate.results import memorised_result
from pilekit.evaluate.results.memorised_comparison import _STATES, mcnemar
from pilekit.evaluate.results.memorised_result import Memorised, MemorisedShare, write_sequences
from pilekit.evaluate.results.records import ScoredDocument
from pilekit.evaluate.score.continuations import SEQUENCE
from tests.refusing import refused
from tests.shards.making import flipped

SUBSETS = ("ArXiv", "Github", "")
PROTOCOL: dict[str, Any] = {
    "model": {"path": "model"},
    "tokenizer": {"fingerprint": "sha256:0"},
    **{"dtype": "float32", "max_length": 7, "context_len": 1, "prefix": {"given": "none", "id": None}},
    "sequences": {"prompt": 3, "continuation": 4, "every": "first"},
}

Documents = list[tuple[str, int, str, int, list[int]]]
"""(shard, number, subset, hash of the text, right tokens before the first wrong one in each sequence)"""


def written(folder: Path, documents: Documents, **protocol: Any) -> Path:
    """A finished folder with these sequences."""
    folder.mkdir(parents=True, exist_ok=True)

    def items(runs: list[int]) -> np.ndarray:
        sequences = np.zeros(len(runs), SEQUENCE)
        sequences["place"], sequences["run"] = 7 * np.arange(len(runs)), runs
        return sequences

    rows = [
        (ScoredDocument(shard, number, text, subset, 1, 1, 0.0), items(runs))
        for shard, number, subset, text, runs in documents
    ]
    names = {subset: MemorisedShare() for _, _, subset, _, _ in documents}
    result = Memorised(MemorisedShare(), {name: names[name] for name in SUBSETS if name in names}, PROTOCOL | protocol)
    write_sequences(folder, lambda: rows, result, {})
    return folder


def document(number: int) -> st.SearchStrategy[tuple[str, int, str, int, list[tuple[int, int]]]]:
    runs = st.lists(st.tuples(st.sampled_from([0, 3, 4]), st.sampled_from([1, 4])), max_size=5)
    return st.tuples(st.just("00"), st.just(number), st.sampled_from(SUBSETS), st.integers(0, 2**64 - 1), runs)


def exact_p(new: int, forgotten: int) -> Fraction:
    """Both tails of a fair coin, summed."""
    tosses = new + forgotten
    outcomes = [math.comb(tosses, heads) for heads in range(tosses + 1)]
    far = abs(2 * new - tosses)
    return Fraction(sum(ways for heads, ways in enumerate(outcomes) if abs(2 * heads - tosses) >= far), 2**tosses)


@given(drawn=st.integers(0, 9).flatmap(lambda count: st.tuples(*map(document, range(count)))))
def test_counts_are_those_of_a_plain_loop(tmp_path_factory: pytest.TempPathFactory, drawn: Any) -> None:
    folder = tmp_path_factory.mktemp("pair")
    folders = [
        written(folder / name, [(*place, [pair[model] for pair in pairs]) for *place, pairs in drawn])
        for model, name in enumerate("ab")
    ]
    with pytest.MonkeyPatch.context() as patch:  # several row groups
        patch.setattr(memorised_result, "ROWS_PER_GROUP", 4)
        for model, name in enumerate("ab"):
            written(folder / name, [(*place, [pair[model] for pair in pairs]) for *place, pairs in drawn])
        result = compare_memorised(*folders)
    counts = {name: Counter[str]() for name in SUBSETS}
    for _, _, subset, _, pairs in drawn:
        for one, other in pairs:
            words = {(True, True): "both", (False, True): "new", (True, False): "forgotten", (False, False): "neither"}
            counts[subset][words[one == 4, other == 4]] += 1
    assert list(result.subsets) == [name for name in SUBSETS if counts[name]]
    for change, count in (
        *((result.subsets[name], counts[name]) for name in result.subsets),
        (result.overall, sum(counts.values(), Counter())),
    ):
        assert {name: getattr(change, name) for name in _STATES} == {name: count[name] for name in _STATES}
        assert change.p == pytest.approx(float(exact_p(count["new"], count["forgotten"])), rel=1e-12)
        assert change.p <= change.adjusted_p <= 1
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


@given(st.integers(0, 400), st.integers(0, 400))
def test_p_is_the_sum_of_both_tails(new: int, forgotten: int) -> None:
    assert mcnemar(new, forgotten) == pytest.approx(float(exact_p(new, forgotten)), rel=1e-10)


def test_p_of_very_many_sequences() -> None:
    z = 2.0  # the normal distribution's two tails beyond it hold 0.0455
    new, tosses = 50_000_000, 100_000_000
    shift = round(z * math.sqrt(tosses) / 2)
    assert mcnemar(new + shift, new - shift) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-3)
    assert mcnemar(0, 10_000) == 0.0
    assert mcnemar(new, new) == 1.0


BASE: Documents = [("00", 0, "ArXiv", 5, [4, 1]), ("00", 3, "Github", 6, [4]), ("01", 0, "Github", 7, [2])]


def test_subsets_have_holms_p_and_the_table_shows_all(tmp_path: Path) -> None:
    many: Documents = [("00", number, "ArXiv", 0, [4]) for number in range(8)]
    few: Documents = [("00", number, "Github", 0, [4]) for number in range(8, 14)]
    worse: Documents = [(*place, [0]) for *place, _ in many + few]  # type: ignore[misc]
    result = compare_memorised(written(tmp_path / "a", worse), written(tmp_path / "b", many + few))
    assert [result[name].p for name in ("ArXiv", "Github")] == pytest.approx([2 / 2**8, 2 / 2**6])
    assert [result[name].adjusted_p for name in ("ArXiv", "Github")] == pytest.approx([4 / 2**8, 2 / 2**6])
    assert result.overall.adjusted_p == result.overall.p == pytest.approx(2 / 2**14)
    assert (result.overall.shares, result.overall.difference) == ((0.0, 1.0), 1.0)
    assert "Overall" in str(result)
    assert repr(result) == "MemorisedComparison(new=14, forgotten=0, p=0.00012)"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            BASE[:2],
            r"b: has 3 sequences, but A has 4; score both on the same PATHs, with the same --subsets and limits",
        ),
        ([*BASE[:2], ("01", 1, "Github", 7, [2])], r"b: 01, document 1, token 0: A has another sequence there; "),
        ([("00", 0, "ArXiv", 5, [4]), ("00", 3, "Github", 6, [4, 1]), BASE[2]], "b: 00, document 3, token 0: A has an"),
        ([*BASE[:2], ("01", 0, "Github", 8, [2])], "b: 01, document 0, token 0: A has scored another text there, so"),
    ],
)
def test_other_sequences_are_refused(tmp_path: Path, changed: Documents, message: str) -> None:
    refused(message, compare_memorised, written(tmp_path / "a", BASE), written(tmp_path / "b", changed))


def test_other_protocols_are_refused_and_precision_is_a_caution(tmp_path: Path) -> None:
    one = written(tmp_path / "a", BASE)
    for protocol, message in (
        ({"tokenizer": {"fingerprint": "sha256:1"}}, "b: its model has another tokenizer than A's"),
        ({"sequences": {**PROTOCOL["sequences"], "prompt": 2}}, "b: its --prompt is 2, but A's is 3; score both with"),
        (
            {"sequences": {**PROTOCOL["sequences"], "every": 9}},
            "b: its --every is 9, but A's is first; score both",
        ),
    ):
        refused(message, compare_memorised, one, written(tmp_path / "b", BASE, **protocol))
    [caution] = compare_memorised(one, written(tmp_path / "b", BASE, dtype="bfloat16")).cautions
    assert caution.startswith('A was scored with dtype "float32", B with "bfloat16"')


def test_missing_and_damaged_results_are_refused(tmp_path: Path) -> None:
    one, other = written(tmp_path / "a", BASE), written(tmp_path / "b", BASE)
    refused("none/sequences.parquet: is not there; the same command writes it again", compare_memorised, one, "none")
    file = other / SEQUENCES_FILE
    file.write_bytes(flipped(file.read_bytes(), 300))
    with pytest.raises(PilekitError, match=r"b/sequences\.parquet: is (damaged|not a result)"):
        compare_memorised(one, other)
