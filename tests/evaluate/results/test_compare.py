"""Paired differences, against dicts, loops and the draws themselves."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.corpus import load_manifest
from pilekit.errors import PilekitError
from pilekit.evaluate.results.compare import Difference, compare
from pilekit.evaluate.results.intervals import REPLICATES, interval, ratios, resampled_sums
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import BitsPerByte, Score
from tests.evaluate.documents import protocol_of

LN2 = math.log(2)
SHARDS = ("a.jsonl", "b.jsonl")
LABELS = ("ArXiv", "Github", "New")


class Text(NamedTuple):
    """A document's identity, from which its label and size follow, as in a corpus."""

    shard: str
    number: int
    text: int

    @property
    def label(self) -> str:
        return LABELS[(self.number + self.text) % 3]

    @property
    def bytes(self) -> int:
        return [0, 1, 40, 3000][(self.number * 3 + self.text) % 4]


def result(scored: Sequence[tuple[Text, float]], shards: Sequence[str] = SHARDS, **changes: Any) -> BitsPerByte:
    documents = [ScoredDocument(one.shard, one.number, one.text, one.label, one.bytes, 1, nll) for one, nll in scored]
    records = Records.of(documents, shards, load_manifest())
    return BitsPerByte(Score(), {}, protocol_of(**changes), records=records)


NATS = st.floats(0, 5000, allow_nan=False)
SCORED = st.dictionaries(
    st.builds(Text, st.sampled_from(SHARDS), st.integers(0, 4), st.just(7)), NATS, max_size=10
).flatmap(
    # Some places hold another text.
    lambda scored: st.lists(st.sampled_from([7, 7, 7, 8]), min_size=len(scored), max_size=len(scored)).map(
        lambda texts: [(one._replace(text=text), nll) for (one, nll), text in zip(scored.items(), texts, strict=True)]
    )
)
ORDERS = st.sampled_from([SHARDS, SHARDS[::-1], ("x", *SHARDS)])


def reference(scored: Sequence[Sequence[tuple[Text, float]]], order: Sequence[str]) -> dict[str | None, list[Any]]:
    """Per subset and (None) over all: [documents, bytes, bpb of each, interval of each minus the first]."""
    of = [dict(one) for one in scored]
    common = [one for one in of[0] if all(one in other for other in of)]
    common.sort(key=lambda one: (list(order).index(one.shard), one.number))
    found: dict[str | None, list[Any]] = {}
    for name in (None, *dict.fromkeys(one.label for one in common)):
        texts = [one for one in common if name in (None, one.label)]
        size = sum(one.bytes for one in texts)
        if not size:
            found[name] = [len(texts), 0, None, [None] * (len(of) - 1)]
            continue
        bpb = [math.fsum(one[text] for text in texts) / LN2 / size for one in of]
        # A column that is 1 for one document counts how often that document was drawn.
        times = resampled_sums(np.eye(len(texts))).tolist()
        intervals: list[tuple[float, float] | None] = []
        for other in of[1:]:
            drawn = []
            for counts in times:
                weighed = list(zip(counts, texts, strict=True))
                drawn_bytes = sum(count * text.bytes for count, text in weighed)
                if drawn_bytes:
                    nats = sum(count * (other[text] - of[0][text]) for count, text in weighed)
                    drawn.append(nats / LN2 / drawn_bytes)
            few = len(texts) < 2 or 2 * len(drawn) < REPLICATES
            intervals.append(None if few else tuple(np.quantile(drawn, [0.025, 0.975]).tolist()))
        found[name] = [len(texts), size, bpb, intervals]
    return found


def assert_same(found: Difference, expected: list[Any], which: int) -> None:
    documents, size, bpb, intervals = expected
    assert (found.documents, found.bytes, found.is_approximate) == (documents, size, documents < 100)
    if bpb is None:
        assert (found.bpb, found.difference, found.interval, found.sign) == (None, None, None, 0)
        return
    close = 1e-9 * max(bpb) + 1e-12
    assert found.bpb == pytest.approx((bpb[0], bpb[which]), abs=close)
    assert found.difference == pytest.approx(bpb[which] - bpb[0], abs=close)
    span = intervals[which - 1]
    scale = 1e-9 * 5000 * 10 / LN2  # cancellation in a sample with a single byte
    assert found.interval == (None if span is None else pytest.approx(span, abs=scale))


@settings(max_examples=20)
@given(st.lists(SCORED, min_size=2, max_size=4), st.data())
def test_differences_are_those_of_the_documents_that_all_have(
    scored: list[list[tuple[Text, float]]], data: st.DataObject
) -> None:
    orders = [data.draw(ORDERS) for _ in scored]
    results = [result(one, order) for one, order in zip(scored, orders, strict=True)]
    expected = reference(scored, orders[0])
    if not expected[None][0]:
        with pytest.raises(PilekitError, match="no document that all results scored"):
            compare(results)
        return
    found = compare(results)
    assert found.left_out == tuple(len(one) - expected[None][0] for one in scored)
    for which, against in enumerate(found.against, 1):
        assert_same(against.overall, expected[None], which)
        assert list(against.subsets) == [name for name in LABELS if name in expected]
        for name, difference in against.subsets.items():
            assert_same(difference, expected[name], which)


def simulated(rng: np.random.Generator, documents: int, gain: float) -> tuple[BitsPerByte, BitsPerByte]:
    """Two models that find the same documents hard; the second needs about `gain` bits per byte less."""
    sizes = np.clip(rng.lognormal(6, 1, documents), 1, 1e4).astype(np.int64)
    hard = rng.uniform(0.5, 1.5, documents)
    made = []
    for less in (0.0, gain):
        nll = LN2 * sizes * (hard - less + rng.normal(0, 0.02, documents))
        scored = [
            ScoredDocument("a.jsonl", number, number, "ArXiv", int(size), 1, float(one))
            for number, (size, one) in enumerate(zip(sizes, nll, strict=True))
        ]
        records = Records.of(scored, ["a.jsonl"], load_manifest())
        made.append(BitsPerByte(Score(), {}, protocol_of(), records=records))
    return made[0], made[1]


def width(span: tuple[float, float] | None) -> float:
    assert span is not None
    return span[1] - span[0]


def test_pairs_show_a_difference_that_two_intervals_hide() -> None:
    first, second = simulated(np.random.default_rng(0), 500, gain=0.01)
    found = compare([first, second]).against[0].overall
    single = []
    for one in (first.records, second.records):
        assert one is not None
        single.append(interval(ratios(resampled_sums(np.column_stack([one.nll / LN2, one.bytes.astype(np.float64)])))))
    unpaired = math.hypot(*map(width, single))
    assert width(found.interval) < unpaired / 5
    assert found.sign == -1
    assert single[0] is not None
    assert single[1] is not None
    assert single[1][1] > single[0][0]  # the two intervals overlap widely


def test_nineteen_of_twenty_intervals_hold_the_difference() -> None:
    rng = np.random.default_rng(1)
    spans = [compare(simulated(rng, 300, gain=0.01)).against[0].overall.interval for _ in range(200)]
    held = sum(span is not None and span[0] <= -0.01 <= span[1] for span in spans)
    assert 0.91 * 200 <= held <= 0.99 * 200


def test_rounding_makes_no_model_better() -> None:
    """Every document of the other model costs a little less or more, so the interval does not hold 0."""
    one, _ = simulated(np.random.default_rng(2), 200, gain=0.0)
    assert one.records is not None
    itself = compare([one, one]).against[0].overall
    assert (itself.difference, itself.interval, itself.sign, itself.is_approximate) == (0, (0, 0), 0, False)
    for less, sign in ((1e-8, 0), (-1e-8, 0), (1e-4, -1), (-1e-4, 1)):
        other = dataclasses.replace(one, records=dataclasses.replace(one.records, nll=one.records.nll * (1 - less)))
        found = compare([one, other]).against[0].overall
        assert found.interval is not None
        assert found.interval[0] * found.interval[1] > 0
        assert found.sign == sign


def texts(*numbers: int) -> list[Text]:
    return [Text("a.jsonl", number, 7) for number in numbers]


def test_json_and_names_of_models(caplog: pytest.LogCaptureFixture) -> None:
    of = [
        result([(one, 10.0) for one in texts(0, 1, 2, 3)], model={"path": "runs/a"}),
        result([(one, 9.0) for one in texts(0, 1, 2)], model={"path": "runs/a"}),
        result([(one, 11.0) for one in texts(0, 1, 2, 4)], model={"path": None}),
    ]
    three = compare(of, ["scores/1024", None, Path("scores/c")]).to_dict()
    assert caplog.messages == ["compared on the 3 documents that all scored; left out: 1 of A, 1 of C"]
    assert set(three) == {"comparisons"}
    overall = [one["overall"] for one in three["comparisons"]]
    models = ["runs/a (scores/1024)", "runs/a", "C (scores/c)"]
    assert [one["models"] for one in overall] == [models[:2], [models[0], models[2]]]
    assert [(one["left_out"], one["documents"]) for one in overall] == [([1, 0], 3), ([1, 1], 3)]
    assert [math.copysign(1, one["difference"]) for one in overall] == [-1, 1]
    two = compare(of[:2])
    told, expected = two.to_dict(), two.against[0].overall
    assert list(told) == ["subsets", "overall"]
    assert set(told["subsets"]) == set(LABELS)
    names = ["difference", "interval", "bpb", "documents", "bytes", "approximate"]
    assert [list(one)[:6] for one in (told["overall"], *told["subsets"].values())] == [names] * 4
    assert expected.interval is not None
    assert told["overall"]["interval"] == list(expected.interval)
    assert told["overall"]["difference"] == expected.difference


MASKED: dict[str, Any] = {
    "kind": "masked",
    "template": {"before": [0], "behind": [2], "mask": 4},
    "mlm_sample": None,
    "prefix": {"given": "none", "id": None, "token": None},
}
OTHER = {"fingerprint": "sha256:2"}


def test_protocols_that_move_figures_are_named(caplog: pytest.LogCaptureFixture) -> None:
    scored = [(one, 10.0) for one in texts(0, 1, 2)]
    no_template = {"template": {"before": [], "behind": [], "mask": 4}, "tokenizer": OTHER}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {"max_length": 1024}, "most 2,048 tokens, B in .* most 1,024 .* --max-length 1024$"),
        ({}, {"context_len": 64}, "with --context-len 1, B with --context-len 64"),
        ({}, {"prefix": {"given": "none", "id": None}}, "the prefix token 0, B with no prefix"),
        ({}, {"prefix": {"given": "5", "id": 5}}, "the prefix token 0, B with the prefix token 5"),
        ({}, {"dtype": "bfloat16"}, "in float32, B in bfloat16, .* the same --dtype"),
        (MASKED, {"mlm_sample": 1000}, "on each token, B on 1,000 tokens of a window, .* the same --mlm-sample"),
        (MASKED, no_template, "with 1 special tokens before and 1 behind a window, B with 0 .* and 0 behind"),
        (MASKED, {"template": {"before": [1], "behind": [2], "mask": 4}}, r"\(ids 0, 2\), B with .* \(ids 1, 2\)"),
    ]
    for kind, changes, told in cases:
        caplog.clear()
        found = compare([result(scored, **kind), result(scored, **{**kind, **changes})])
        assert re.search(told, found.cautions[0])
        assert caplog.messages == [f"not like for like: {found.cautions[0]}"]
    # Other tokenizers have other ids.
    caplog.clear()
    template = {"before": [101], "behind": [102], "mask": 103}
    for kind, changes in (
        ({}, {"tokenizer": OTHER, "prefix": {"given": "auto", "id": 5}}),
        (MASKED, {"tokenizer": OTHER, "template": template}),
    ):
        assert compare([result(scored, **kind), result(scored, **{**kind, **changes})]).cautions == ()
    assert caplog.messages == []


def test_results_that_cannot_be_compared() -> None:
    scored = [(one, 10.0) for one in texts(0, 1, 2)]
    elsewhere = result([(Text("c.jsonl", 0, 9), 1.0)], ["c.jsonl"])
    for results, words in (
        ([result(scored, **MASKED), result(scored)], "B is a causal model and A a masked one"),
        ([result(scored)], "1 results cannot be compared; give 2 to 26"),
        ([result(scored), BitsPerByte(Score(), {}, protocol_of())], "without records"),
        ([result(scored), elsewhere], r"\(A: a\.jsonl, b\.jsonl; B: c\.jsonl\); score all on the same shards"),
    ):
        with pytest.raises(PilekitError, match=words):
            compare(results)


def test_reading_results_and_comparing_them_loads_no_torch() -> None:
    modules = ("results.compare", "show.comparison_table", "show.plot", "results.result_folder")
    program = f"import sys\n{''.join(f'import pilekit.evaluate.{name}{chr(10)}' for name in modules)}"
    program += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)
