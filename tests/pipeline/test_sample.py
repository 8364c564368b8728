"""The choice belongs to the document: batches, order, other documents have no part in it."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.pipeline import Sample, document_hashes
from tests.pipeline.making import batch, cut, identities

SEEDS = st.integers(-(2**70), 2**70)
SHARDS = st.sampled_from(["00.jsonl", "train/00.jsonl", "train/0.jsonl", "(stdin)", "\udcff.jsonl"])


def numbered(shard: str, numbers: list[int]) -> DocumentBatch:
    return DocumentBatch([str(n) for n in numbers], ["x"] * len(numbers), shard, np.array(numbers, dtype=np.int64))


@given(st.floats(0, 1), SEEDS, SHARDS, st.lists(st.integers(0, 30), max_size=12))
def test_however_batched(fraction: float, seed: int, shard: str, lengths: list[int]) -> None:
    whole = batch([f"text {i}" for i in range(100)], shard=shard, first=7)
    stage = Sample(fraction, seed)
    chosen = identities(stage(cut(whole, lengths)))
    assert chosen == identities(stage(iter([whole])))
    # Each document alone, and each of several ranks with its own batches, decides the same.
    assert chosen == [one for part in cut(whole, [1] * 100) for one in identities(stage(iter([part])))]
    parts = list(cut(whole, lengths))
    by_rank = [identities(stage(iter(parts[rank::3]))) for rank in range(3)]
    assert sorted(chosen) == sorted(one for part in by_rank for one in part)


@given(st.floats(0, 1), st.floats(0, 1), SEEDS)
def test_nested(one: float, other: float, seed: int) -> None:
    whole = numbered("00.jsonl", list(range(200)))
    small, large = (
        {number for _, number, _, _ in identities(Sample(fraction, seed)(iter([whole])))}
        for fraction in sorted([one, other])
    )
    assert small <= large


def test_none_and_all() -> None:
    whole = numbered("00.jsonl", list(range(1000)))
    assert list(Sample(0)(iter([whole]))) == []
    assert list(Sample(1)(iter([whole]))) == [whole]


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.9])
def test_the_share_is_right_for_every_seed_and_shard(fraction: float) -> None:
    count = 20_000
    deviation = math.sqrt(count * fraction * (1 - fraction))
    for seed in range(5):
        for shard in ("train/00.jsonl", "train/01.jsonl"):
            whole = numbered(shard, list(range(count)))
            kept = sum(len(one) for one in Sample(fraction, seed)(iter([whole])))
            assert abs(kept - count * fraction) < 6 * deviation, (seed, shard)


def test_seeds_and_shards_choose_independently() -> None:
    count = 20_000
    chosen = [
        {number for _, number, _, _ in identities(Sample(0.5, seed)(iter([numbered(shard, list(range(count)))])))}
        for seed, shard in [(0, "a"), (1, "a"), (0, "b"), (1, "b"), (10, ""), (1, "0")]
    ]
    for i, one in enumerate(chosen):
        for other in chosen[i + 1 :]:
            assert abs(len(one & other) - count / 4) < 6 * math.sqrt(count * 3 / 16)


def test_hashes_are_uniform_and_their_spelling_is_fixed() -> None:
    hashes = document_hashes("train/00.jsonl", np.arange(64_000), 0)
    assert hashes.dtype == np.uint64
    assert len(set(hashes.tolist())) == 64_000
    buckets = Counter((hashes >> np.uint64(58)).tolist())
    assert len(buckets) == 64
    assert sum((n - 1000) ** 2 / 1000 for n in buckets.values()) < 130  # chi-squared, 63 degrees of freedom
    # A saved run must find the same documents again: these values may never change.
    pinned = [5212983447380300398, 6358292716557915118, 2813167849731756270]
    assert document_hashes("train/00.jsonl", np.array([0, 9, 10**12]), -5).tolist() == pinned


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan, math.inf])
def test_no_fraction(fraction: float) -> None:
    with pytest.raises(PilekitError, match="between 0 and 1"):
        Sample(fraction)
