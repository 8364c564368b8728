"""Figures against a reference in fractions."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.corpus import Manifest, Subset, Totals
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import BitsPerByte, result_text
from pilekit.evaluate.results.tabulate import tabulate

PROTOCOL: dict[str, Any] = {
    "kind": "causal",
    "paper": False,
    "context_len": 1,
    "subsets": None,
    "labels": [],
    "manifest": "small",
    "prefix": {"id": 0},
}
SMALL = Manifest(
    name="small",
    subsets=(
        Subset(name="A", weight_percent=60.0, tokens_per_byte=0.25),
        Subset(name="B", weight_percent=30.0, tokens_per_byte=0.5),
        Subset(name="C", weight_percent=10.0, tokens_per_byte=0.2),
        Subset(name="D"),
    ),
    totals=Totals(tokens_per_byte=0.3),
)


def tabulated(
    documents: list[ScoredDocument], manifest: Manifest = SMALL, shard: str = "x.jsonl", **protocol: Any
) -> BitsPerByte:
    return tabulate(Records.of(documents, [shard], manifest), {**PROTOCOL, **protocol}, manifest)


def reference(documents: list[ScoredDocument], manifest: Manifest, paper: bool) -> dict[str, Any]:
    """The figures, from the documents, in fractions: the cost of a byte read, and of a byte of the mixture."""
    of = defaultdict(list)
    for document in documents:
        of[document.subset].append(document)

    def bits(some: list[ScoredDocument], constant: float | None) -> Fraction | None:
        nats = sum((Fraction(document.nll) for document in some), Fraction(0))
        tokens = sum(document.tokens for document in some)
        size = Fraction(sum(document.bytes for document in some))
        if paper:
            size = tokens / Fraction(constant) if constant else Fraction(0)
        return nats / Fraction(math.log(2)) / size if size and tokens else None

    constants = {subset.name: subset.tokens_per_byte for subset in manifest.subsets}
    subsets = {name: bits(some, constants.get(name)) for name, some in of.items()}
    whole = set(of) == set(constants)
    weights = {subset.name: Fraction(subset.weight_percent) for subset in manifest.subsets if subset.weight_percent}
    figures = {name: figure for name, figure in subsets.items() if figure is not None and name in weights}
    all_there = sum((weights[name] for name in figures), Fraction(0))
    mean = sum((weights[name] * figure for name, figure in figures.items()), Fraction(0))
    return {
        "overall": bits(documents, manifest.totals.tokens_per_byte if whole else None),
        "subsets": subsets,
        "weighted": mean / all_there if figures else None,
        "weight": all_there / sum(weights.values()),
        "missing": {name for name in weights if name not in figures},
    }


def close(found: float | None, expected: Fraction | None) -> bool:
    return found is None if expected is None else found == pytest.approx(float(expected), rel=1e-14, abs=1e-300)


@st.composite
def scored_documents(draw: st.DrawFn) -> list[ScoredDocument]:
    count = draw(st.integers(1, 30))
    return [
        ScoredDocument(
            "x.jsonl",
            number,
            number,
            draw(st.sampled_from("ABCDE")),
            draw(st.sampled_from([0, 1, 7, 1000, 10**9])),
            draw(st.sampled_from([0, 1, 5, 300])),
            draw(st.sampled_from([0.0, 1e-9, 1.5, 700.25, 1e9])),
        )
        for number in range(count)
    ]


@settings(deadline=None, max_examples=30)
@given(scored_documents(), st.booleans())
def test_figures_are_those_of_the_reference(documents: list[ScoredDocument], paper: bool) -> None:
    result = tabulated(documents, paper=paper)
    expected = reference(documents, SMALL, paper)
    assert close(result.overall.bpb, expected["overall"])
    assert set(result.subsets) == set(expected["subsets"])
    assert all(close(score.bpb, expected["subsets"][name]) for name, score in result.subsets.items())
    if expected["weighted"] is None:
        assert result.weighted is None
    else:
        assert result.weighted is not None
        assert close(result.weighted.bpb, expected["weighted"])
        assert close(result.weighted.weight, expected["weight"])
        assert set(result.weighted.missing) == expected["missing"]
    assert result.overall.documents == len(documents) == sum(score.documents for score in result.subsets.values())
    json.loads(result_text(result))
    for score in (result.overall, *result.subsets.values()):
        if score.interval is not None:
            assert score.bpb is not None
            assert score.documents > 1
            assert score.interval[0] <= score.interval[1]


@settings(deadline=None, max_examples=10)
@given(scored_documents(), st.randoms(use_true_random=False))
def test_the_order_in_which_documents_were_scored_changes_no_bit(
    documents: list[ScoredDocument], order: random.Random
) -> None:
    again = list(documents)
    order.shuffle(again)
    assert result_text(tabulated(documents)) == result_text(tabulated(again))


def test_a_document_without_bytes_breaks_nothing() -> None:
    documents = [ScoredDocument("x.jsonl", n, n, "A", 0, 0, 0.0) for n in range(3)]
    result = tabulated(documents)
    assert (result.overall.bpb, result.overall.interval, result.weighted) == (None, None, None)
    [score] = result.subsets.values()
    assert (score.documents, score.byte_perplexity, score.nats_per_token, score.tokens_per_byte) == (
        3,
        None,
        None,
        None,
    )
    one = tabulated([*documents, ScoredDocument("x.jsonl", 3, 3, "A", 10, 3, 5.0)]).overall
    assert one.interval == pytest.approx((5 / math.log(2) / 10,) * 2)


def test_bytes_of_which_no_token_is_predicted_have_no_figure() -> None:
    """For example documents of one token, without a prefix."""
    documents = [ScoredDocument("x.jsonl", n, n, "B", 3, 0, 0.0) for n in range(3)]
    result = tabulated(documents)
    for score in (result.overall, result.subsets["B"]):
        assert (score.bytes, score.tokens, score.nll) == (9, 0, 0.0)
        assert (score.bpb, score.byte_perplexity, score.nats_per_token, score.interval) == (None,) * 4
    assert result.weighted is None
    more = tabulated([*documents, ScoredDocument("x.jsonl", 3, 3, "A", 10, 3, 5.0)])
    assert more.subsets["B"].bpb is None
    assert more.overall.bpb == pytest.approx(5 / math.log(2) / 19)
    assert more.weighted is not None
    assert more.weighted.missing == ("B", "C")


def test_one_document_has_no_interval_and_is_held_fixed_in_the_mixture() -> None:
    one = [ScoredDocument("x.jsonl", 0, 0, "B", 10, 3, 5.0)]
    alone = tabulated(one)
    assert alone.overall.interval is None
    assert alone.weighted is not None
    assert (alone.weighted.interval, alone.weighted.held_fixed) == (None, ("B",))
    more = [ScoredDocument("x.jsonl", n, n, "A", 10 + n, 3, 5.0 + n % 7) for n in range(1, 200)]
    both, without = tabulated(one + more), tabulated(more)
    assert both.weighted is not None
    assert without.weighted is not None
    assert both.weighted.held_fixed == ("B",)
    assert both.weighted.approximate
    assert not without.weighted.approximate
    assert both.weighted.interval is not None
    assert without.weighted.interval == without.subsets["A"].interval == both.subsets["A"].interval
    low, high = both.weighted.interval
    a_low, a_high = without.weighted.interval or (0.0, 0.0)
    assert high - low == pytest.approx((a_high - a_low) * 60 / 90)


def test_intervals_narrow_with_the_root_of_the_documents() -> None:
    draw = random.Random(1)
    documents = [
        ScoredDocument("x.jsonl", n, n, "A", 1000, 300, math.log(2) * 1000 * draw.gauss(1, 0.2)) for n in range(6400)
    ]
    widths = []
    for count in (100, 400, 1600, 6400):
        low, high = tabulated(documents[:count]).overall.interval or (0.0, 0.0)
        assert high - low == pytest.approx(2 * 1.96 * 0.2 / math.sqrt(count), rel=0.15)
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)


def test_pooled_and_weighted_answer_different_questions() -> None:
    """A is a tenth of the bytes read, but two thirds of the mixture."""
    ln2 = math.log(2)
    a = [ScoredDocument("x.jsonl", n, n, "A", 10, 3, 10 * ln2) for n in range(10)]
    b = [ScoredDocument("x.jsonl", n, n, "B", 90, 3, 2 * 90 * ln2) for n in range(10, 20)]
    result = tabulated(a + b)
    assert result.overall.bpb == pytest.approx(1.9)
    assert result.weighted is not None
    assert result.weighted.bpb == pytest.approx(4 / 3)
    assert result.weighted.weight == pytest.approx(0.9)
    assert result.weighted.missing == ("C",)


def test_json_has_every_figure_under_its_name() -> None:
    documents = [ScoredDocument("x.jsonl", n, n, "A", 10, 3, 5.0 + n) for n in range(4)]
    told = tabulated(documents).to_dict()
    assert list(told) == [
        *("overall", "weighted", "subsets", "published", "withheld", "warnings", "training_copies", "protocol"),
    ]
    assert told["overall"] == told["subsets"]["A"] | {"interval": told["overall"]["interval"]}
    assert list(told["overall"]) == [
        *("documents", "bytes", "tokens", "bpb", "interval", "approximate", "nll"),
        *("byte_perplexity", "nats_per_token", "tokens_per_byte"),
    ]
    bpb = 26 / math.log(2) / 40
    assert told["overall"]["bpb"] == pytest.approx(bpb)
    assert told["overall"]["byte_perplexity"] == pytest.approx(2**bpb)
    assert told["overall"]["nats_per_token"] == pytest.approx(26 / 12)
    assert told["overall"]["tokens_per_byte"] == pytest.approx(0.3)
    assert told["overall"]["approximate"] is True
    assert told["weighted"]["weight"] == pytest.approx(0.6)
    assert told["protocol"]["intervals"]["replicates"] == 1000


def test_a_huge_loss_has_no_byte_perplexity() -> None:
    documents = [ScoredDocument("x.jsonl", n, n, "A", 1, 3, 1e6) for n in range(3)]
    assert tabulated(documents).overall.byte_perplexity is None
    result_text(tabulated(documents))
