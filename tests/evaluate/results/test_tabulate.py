"""Figures against a reference in fractions; the paper's variant against the paper's own tables."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.corpus import Manifest, PublishedTable, Subset, Totals, load_manifest
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import BitsPerByte
from tests.evaluate.documents import protocol_of

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


def tabulated(documents: list[ScoredDocument], **protocol: Any) -> BitsPerByte:
    return BitsPerByte.of(Records.of(documents, ["x.jsonl"], SMALL), protocol_of(**protocol), SMALL)


def reference(documents: list[ScoredDocument], paper: bool) -> dict[str, Any]:
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

    constants = {subset.name: subset.tokens_per_byte for subset in SMALL.subsets}
    subsets = {name: bits(some, constants.get(name)) for name, some in of.items()}
    whole = set(of) == set(constants)
    weights = {subset.name: Fraction(subset.weight_percent) for subset in SMALL.subsets if subset.weight_percent}
    figures = {name: figure for name, figure in subsets.items() if figure is not None and name in weights}
    all_there = sum((weights[name] for name in figures), Fraction(0))
    mean = sum((weights[name] * figure for name, figure in figures.items()), Fraction(0))
    return {
        "overall": bits(documents, SMALL.totals.tokens_per_byte if whole else None),
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


@settings(max_examples=30)
@given(scored_documents(), st.booleans(), st.randoms(use_true_random=False))
def test_figures_are_those_of_the_reference(documents: list[ScoredDocument], paper: bool, order: random.Random) -> None:
    """To the last bit, whatever the order in which documents were scored."""
    result = tabulated(documents, paper=paper)
    again = tabulated(order.sample(documents, len(documents)), paper=paper)
    assert result.to_dict() == again.to_dict()
    expected = reference(documents, paper)
    assert close(result.overall.bpb, expected["overall"])
    assert set(result.subsets) == set(expected["subsets"])
    assert all(close(score.bpb, expected["subsets"][name]) for name, score in result.subsets.items())
    if expected["weighted"] is None:
        assert result.weighted is None
    else:
        assert close(result.weighted.bpb, expected["weighted"])
        assert close(result.weighted.weight, expected["weight"])
        assert set(result.weighted.missing) == expected["missing"]
    assert result.overall.documents == len(documents) == sum(score.documents for score in result.subsets.values())
    for score in (result.overall, *result.subsets.values()):
        if score.interval is not None:
            assert score.bpb is not None
            assert score.documents >= 10
            assert score.interval[0] <= score.interval[1]


def test_intervals_of_the_mixture() -> None:
    """Ten documents with text make an interval. One document of a subset counts with its subset's weight."""
    one = [ScoredDocument("x.jsonl", 0, 0, "B", 10, 3, 5.0)]
    more = [ScoredDocument("x.jsonl", n, n, "A", 10 + n, 3, 5.0 + n % 7) for n in range(1, 200)]
    empty = [ScoredDocument("x.jsonl", n, n, "A", 0, 0, 0.0) for n in range(200, 220)]
    for few in (one + more[:8], one + more[:8] + empty):
        alone = tabulated(few)
        assert alone.overall.interval is alone.subsets["A"].interval is alone.weighted.interval is None
    both, without = tabulated(one + more), tabulated(more)
    assert both.weighted.is_approximate
    assert not without.weighted.is_approximate
    assert both.weighted.weights == pytest.approx({"A": 2 / 3, "B": 1 / 3})
    assert both.subsets["A"].interval == without.subsets["A"].interval == without.overall.interval
    assert without.weighted.interval == pytest.approx(without.overall.interval)
    low, high = both.weighted.interval or (0.0, 0.0)
    a_low, a_high = without.weighted.interval or (0.0, 0.0)
    assert low < both.weighted.bpb < high
    assert high - low > a_high - a_low


def test_json_has_every_figure_under_its_name() -> None:
    documents = [ScoredDocument("x.jsonl", n, n, "A", 10, 3, 5.0 + n) for n in range(12)]
    told = tabulated(documents).to_dict()
    names = ["overall", "weighted", "subsets", "published", "warnings", "training_copies", "protocol"]
    assert list(told) == names
    bpb = 126 / math.log(2) / 120
    figures = {"bpb": bpb, "byte_perplexity": 2**bpb, "nats_per_token": 126 / 36, "tokens_per_byte": 0.3, "nll": 126.0}
    assert {name: told["overall"][name] for name in figures} == pytest.approx(figures)
    assert told["subsets"]["A"] | {"interval": told["overall"]["interval"]} == told["overall"]
    assert [told["overall"][name] for name in ("documents", "bytes", "tokens", "approximate")] == [12, 120, 36, True]
    assert told["weighted"]["weight"] == pytest.approx(0.6)
    assert told["protocol"]["intervals"]["splits"] == 10_000
    huge = tabulated([ScoredDocument("x.jsonl", n, n, "A", 1, 3, 1e6) for n in range(3)])
    nothing = tabulated([ScoredDocument("x.jsonl", n, n, "A", 0, 0, 0.0) for n in range(3)])
    assert huge.overall.byte_perplexity is nothing.overall.byte_perplexity is None
    assert (nothing.overall.bpb, nothing.overall.interval, nothing.weighted) == (None, None, None)


PILE = load_manifest()
TABLES: dict[str, PublishedTable] = {table.title: table for table in PILE.tables}
BPB, PERPLEXITY = TABLES["Table 2"], TABLES["Table 8"]


def in_paper(documents: list[ScoredDocument]) -> BitsPerByte:
    return BitsPerByte.of(Records.of(documents, ["test.jsonl"], PILE), protocol_of(paper=True), PILE)


def test_perplexities_of_table_8_give_table_2() -> None:
    """Each subset has a document with 1,000 tokens at the perplexity of Table 8, and an arbitrary number of bytes."""
    for model in range(len(BPB.models)):
        nats = [1000 * math.log(of[model]) for of in PERPLEXITY.subsets.values()]
        documents = [
            ScoredDocument("test.jsonl", n, n, name, 17 + n, 1000, nats[n]) for n, name in enumerate(PERPLEXITY.subsets)
        ]
        result = in_paper(documents)
        for name, score in result.subsets.items():
            assert score.bpb == pytest.approx(BPB.subsets[name][model], abs=0.0003)
        per_token = result.overall.nll / result.overall.tokens
        assert result.overall.bpb == pytest.approx(0.29335 * per_token / math.log(2))


def test_intervals_are_of_tokens() -> None:
    """Bytes affect neither the figures nor the intervals of the paper's variant."""
    documents = [ScoredDocument("test.jsonl", n, n, "ArXiv", 1 + n, 100, 100.0 + n) for n in range(50)]
    others = [ScoredDocument("test.jsonl", n, n, "ArXiv", 5000 - n * n, 100, 100.0 + n) for n in range(50)]
    found, same = (in_paper(some).subsets["ArXiv"] for some in (documents, others))
    assert found.interval == same.interval
    assert found.interval[0] < found.bpb < found.interval[1]
