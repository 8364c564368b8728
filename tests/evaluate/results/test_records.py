"""`Records`: columns in the order of the corpus, whatever the order of scoring and the ranks."""

from __future__ import annotations

import pickle
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.evaluate.results.records import Records, ScoredDocument
from tests.evaluate.documents import manifest_of

SHARDS = ("b.jsonl", "empty.jsonl", "a/0.jsonl")
MANIFEST = manifest_of("X", "Y", "Z")
COLUMNS = ("shard", "number", "text", "subset", "bytes", "tokens", "nll")


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


@settings(max_examples=30)
@given(documents(), st.randoms(use_true_random=False))
def test_records_are_in_the_order_of_the_corpus(scored: list[ScoredDocument], rng: random.Random) -> None:
    in_order = sorted(scored, key=lambda one: (SHARDS.index(one.shard), one.number))
    met = list(dict.fromkeys(one.subset for one in in_order))
    subsets = tuple([name for name in "XYZ" if name in met] + [name for name in met if name not in "XYZ"])
    whole = Records.of(rng.sample(scored, len(scored)), SHARDS, MANIFEST)
    for records in (whole, pickle.loads(pickle.dumps(whole)), Records.of(whole.documents(), SHARDS, MANIFEST)):
        assert records.documents() == in_order
        assert (records.shards, records.subsets) == (SHARDS, subsets)
        types = [getattr(records, name).dtype.str[1:] for name in COLUMNS]
        assert types == ["i4", "i8", "u8", "i4", "i8", "i8", "f8"]
    mask = np.array([rng.random() < 0.5 for _ in scored], dtype=np.bool_)
    chosen = whole.where(mask)
    assert chosen.documents() == [one for one, keep in zip(in_order, mask, strict=True) if keep]
    assert (chosen.shards, chosen.subsets) == (SHARDS, subsets)


def test_a_document_twice_or_of_another_shard_is_refused() -> None:
    one = ScoredDocument("b.jsonl", 3, 9, "X", 1, 1, 0.5)
    with pytest.raises(PilekitError, match=r"^b\.jsonl, document 3: is recorded twice$"):
        Records.of([one, msgspec.structs.replace(one, nll=0.25)], SHARDS, MANIFEST)
    with pytest.raises(PilekitError, match=r"^c\.jsonl: is no shard of this corpus$"):
        Records.of([msgspec.structs.replace(one, shard="c.jsonl")], SHARDS, MANIFEST)
