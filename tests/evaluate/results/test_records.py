"""`Records`: columns in the order of the corpus, whoever scored what and when."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Manifest
from pilekit.errors import PilekitError
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.score.causal_nll import ScoredDocument

SHARDS = ("b.jsonl", "empty.jsonl", "a/0.jsonl")
MANIFEST = msgspec.toml.decode(
    "\n".join(['name = "m"', *(f'[[subsets]]\nname = "{name}"' for name in ("X", "Y", "Z"))]), type=Manifest
)
COLUMNS = ("shard", "number", "text", "subset", "bytes", "tokens", "nll")


def rows(records: Records) -> list[ScoredDocument]:
    return [
        ScoredDocument(
            records.shards[records.shard[i]],
            int(records.number[i]),
            int(records.text[i]),
            records.subsets[records.subset[i]],
            int(records.bytes[i]),
            int(records.tokens[i]),
            float(records.nll[i]),
        )
        for i in range(len(records))
    ]


@st.composite
def documents(draw: Any) -> list[ScoredDocument]:
    identities = draw(st.lists(st.tuples(st.sampled_from(SHARDS), st.integers(0, 1 << 40)), unique=True, max_size=30))
    return [
        ScoredDocument(
            shard,
            number,
            draw(st.integers(0, 2**64 - 1)),
            draw(st.sampled_from(["Y", "(none)", "X", "other", "ä"])),
            draw(st.integers(0, 1 << 40)),
            draw(st.integers(0, 1 << 40)),
            draw(st.floats(0, 1e18, allow_nan=False)),
        )
        for shard, number in identities
    ]


CHANGES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(["text", "bytes", "tokens"]).flatmap(
    lambda name: st.fixed_dictionaries({name: st.integers(0, 1 << 40)})
) | st.sampled_from([{"subset": "Z"}, {"nll": 0.125}])


@given(documents(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_order_is_the_corpus_s_whoever_scored(scored: list[ScoredDocument], parts: int, rng: random.Random) -> None:
    in_order = sorted(scored, key=lambda one: (SHARDS.index(one.shard), one.number))
    met = list(dict.fromkeys(one.subset for one in in_order))
    subsets = tuple([name for name in "XYZ" if name in met] + [name for name in met if name not in "XYZ"])
    shuffled = rng.sample(scored, len(scored))
    whole = Records.of(shuffled, SHARDS, MANIFEST)
    joined = Records.joined([Records.of(shuffled[i::parts], SHARDS, MANIFEST) for i in range(parts)], MANIFEST)
    for records in (whole, joined, pickle.loads(pickle.dumps(joined))):
        assert rows(records) == in_order
        assert (records.shards, records.subsets) == (SHARDS, subsets)
        types = [getattr(records, name).dtype.str[1:] for name in COLUMNS]
        assert types == ["i4", "i8", "u8", "i4", "i8", "i8", "f8"]
    mask = np.array([rng.random() < 0.5 for _ in scored], dtype=np.bool_)
    chosen = whole.where(mask)
    assert rows(chosen) == [one for one, keep in zip(in_order, mask, strict=True) if keep]
    assert (chosen.shards, chosen.subsets) == (SHARDS, subsets)


def test_forty_eight_bytes_a_document() -> None:
    many = (ScoredDocument(SHARDS[i % 3], i, i, "X", 1, 1, 0.5) for i in range(1000))
    records = Records.of(many, SHARDS, MANIFEST)
    assert sum(getattr(records, name).nbytes for name in COLUMNS) == 48 * 1000


def test_what_is_no_record_of_the_corpus() -> None:
    one = ScoredDocument("b.jsonl", 3, 9, "X", 1, 1, 0.5)
    with pytest.raises(PilekitError, match=r"^c\\x1b\.jsonl: is no shard of this corpus$"):
        Records.of([ScoredDocument("c\x1b.jsonl", 3, 9, "X", 1, 1, 0.5)], SHARDS, MANIFEST)
    differing = replace(one, nll=0.25)
    with pytest.raises(PilekitError, match=r"^b\.jsonl, document 3: is recorded twice, and not alike$"):
        Records.of([one, ScoredDocument("a/0.jsonl", 3, 9, "X", 1, 1, 0.5), differing, one], SHARDS, MANIFEST)
    parts = [Records.of([document], SHARDS, MANIFEST) for document in (one, differing)]
    with pytest.raises(PilekitError, match="recorded twice"):
        Records.joined(parts, MANIFEST)


@given(documents(), st.data())
def test_of_copies_one_is_taken(scored: list[ScoredDocument], data: st.DataObject) -> None:
    copies = data.draw(st.lists(st.sampled_from(scored), max_size=5)) if scored else []
    given_all = data.draw(st.permutations([*scored, *copies]))
    in_order = sorted(scored, key=lambda one: (SHARDS.index(one.shard), one.number))
    assert rows(Records.of(given_all, SHARDS, MANIFEST)) == in_order
    whole = Records.of(scored, SHARDS, MANIFEST)
    assert rows(Records.joined([whole, Records.of(copies, SHARDS, MANIFEST)], MANIFEST)) == in_order
    if not scored:
        return
    changed = replace(data.draw(st.sampled_from(scored)), **data.draw(CHANGES))
    if changed not in scored:
        with pytest.raises(PilekitError, match="is recorded twice, and not alike"):
            Records.of([*given_all, changed], SHARDS, MANIFEST)


def test_copies_are_told(caplog: pytest.LogCaptureFixture) -> None:
    one = ScoredDocument("b.jsonl", 3, 9, "X", 1, 1, 0.5)
    assert rows(Records.of([one, one, one], SHARDS, MANIFEST)) == [one]
    assert caplog.messages == ["b.jsonl, document 3: is recorded twice, alike; 2 copies of records are passed over"]
