"""Hot runs: every removal is proven, no copy of a representative is kept, and the cost is linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pilekit.dedup.compare.jaccard_kernels import MOST_REPRESENTATIVES as MOST
from pilekit.dedup.match.candidates import find_candidates
from pilekit.dedup.match.population import ranks_of
from pilekit.dedup.sketch.bands import choose_bands
from pilekit.dedup.sketch.minhash import band_keys, permutations, signatures
from pilekit.dedup.sketch.shingles import shingle_set
from pilekit.dedup.sketch.sketch_format import key_column
from tests.dedup.given import Edge, given_store, resolve, resolve_given
from tests.dedup.listed import OWN, ListedPopulation

Values = npt.NDArray[np.uint64]

THRESHOLD = 0.8


def drawn(seed: int) -> Callable[[int], Values]:
    rng = np.random.default_rng(seed)
    return lambda count: rng.integers(0, 2**64, size=count, dtype=np.uint64)


def first_ranks(documents: int) -> Values:
    return np.arange(documents, dtype=np.uint64) | np.uint64(OWN)


def longest_ranks(sets: Sequence[Values]) -> Values:
    sizes = np.array([6 * len(some) for some in sets])
    return ranks_of(np.arange(len(sets)), sizes, "longest", against=False)


def similarity(one: Values, other: Values) -> float:
    shared = len(np.intersect1d(one, other))
    return shared / (len(set(one.tolist())) + len(set(other.tolist())) - shared)


def check_edges(edges: Sequence[Edge], sets: Sequence[Values]) -> None:
    """Check that every edge is proven and that its kept document is kept."""
    removed = {edge.removed for edge in edges}
    assert len(removed) == len(edges)
    assert not removed & {edge.kept for edge in edges}
    for edge in edges[:: len(edges) // 1000 + 1]:
        one, other = (sets[rank & 0xFFFFFFFF] for rank in (edge.removed, edge.kept))
        assert similarity(one, other) == edge.similarity >= THRESHOLD
        assert edge.kept < edge.removed


def test_ten_thousand_files_with_one_licence_header_are_all_kept(tmp_path: Path) -> None:
    values = drawn(0)
    header = values(300)
    lengths = np.random.default_rng(1).integers(100, 600, size=10_000)
    sets = [np.concatenate([header, values(length)]) for length in lengths]
    resolved = resolve_given(tmp_path, sets, (), [np.sort(longest_ranks(sets))])
    assert resolved.edges == []
    counts = resolved.counts
    assert counts.compared <= MOST * len(sets)
    assert (counts.hot_runs, counts.hot_documents) == (1, len(sets) - MOST - 1)


def test_in_overlapping_runs_no_pair_is_compared_twice(tmp_path: Path) -> None:
    values = drawn(0)
    header = values(100)
    sets = [np.concatenate([header, values(100)]) for _ in range(120)]
    ranks = first_ranks(len(sets))
    runs = [ranks[begin : begin + 100] for begin in range(21)]
    counts = resolve_given(tmp_path, sets, (), runs).counts
    assert counts.compared == 100 * 99 // 2 + 20 * 99
    assert (counts.hot_runs, counts.hot_documents) == (0, 0)


def test_of_a_hundred_thousand_near_copies_one_is_kept(tmp_path: Path) -> None:
    values, rng = drawn(0), np.random.default_rng(1)
    text = values(60)
    sets = [np.concatenate([text, values(2)]) for _ in range(100_000)]
    ranks = first_ranks(len(sets))
    some = [ranks] + [ranks[rng.random(len(ranks)) < 0.9] for _ in range(4)]
    resolved = resolve_given(tmp_path, sets, (), some)
    edges = resolved.edges
    assert [edge.removed for edge in edges] == ranks[1:].tolist()
    assert {edge.kept for edge in edges} == {OWN}
    assert resolved.counts.compared == len(sets) - 1
    check_edges(edges, sets)


@pytest.mark.parametrize("keep", ["longest", "first"])
def test_a_run_of_as_many_clusters_as_it_may_hold_loses_nothing(tmp_path: Path, keep: str) -> None:
    values, rng = drawn(0), np.random.default_rng(1)
    header = values(80)
    centres = [np.concatenate([header, values(120)]) for _ in range(MOST)]
    cluster = rng.integers(0, MOST, size=5000)
    sets = [np.concatenate([centres[of], values(5)]) for of in cluster]
    ranks = first_ranks(len(sets)) if keep == "first" else longest_ranks(sets)
    resolved = resolve_given(tmp_path, sets, (), [np.sort(ranks)])
    edges = resolved.edges
    check_edges(edges, sets)
    order = np.argsort(ranks)
    firsts = order[np.unique(cluster[order], return_index=True)[1]]
    kept = {*range(len(sets))} - {edge.removed & 0xFFFFFFFF for edge in edges}
    assert kept == set(firsts.tolist())
    assert resolved.counts.hot_documents == 0


def test_a_run_of_more_clusters_is_told_of_and_loses_only_what_it_tells(tmp_path: Path) -> None:
    values, rng = drawn(0), np.random.default_rng(1)
    centres = [values(100) for _ in range(3 * MOST)]
    cluster = rng.integers(0, len(centres), size=4000)
    sets = [np.concatenate([centres[of], values(3)]) for of in cluster]
    resolved = resolve_given(tmp_path, sets, (), [first_ranks(len(sets))])
    edges = resolved.edges
    check_edges(edges, sets)
    kept = np.setdiff1d(np.arange(len(sets)), [edge.removed & 0xFFFFFFFF for edge in edges])
    similar = len(kept) - len(np.unique(cluster[kept]))
    assert 0 < similar <= resolved.counts.hot_documents < len(kept)
    assert resolved.counts.hot_runs == 1
    assert resolved.counts.compared <= MOST * len(sets)


def test_documents_of_an_earlier_run_stand_for_theirs_and_stay(tmp_path: Path) -> None:
    values = drawn(0)
    text = values(100)
    sets = [np.concatenate([text, values(2)]) for _ in range(200)]
    ranks = np.arange(200, dtype=np.uint64) | np.where(np.arange(200) < 3, 0, OWN).astype(np.uint64)
    resolved = resolve_given(tmp_path, sets, (), [np.sort(ranks)])
    edges = resolved.edges
    check_edges(edges, sets)
    assert [edge.removed for edge in edges] == ranks[3:].tolist()
    assert {edge.kept for edge in edges} <= {0, 1, 2}
    assert resolved.counts.compared == 3 * 197


def test_small_clusters_under_one_header_are_found_in_spite_of_hot_runs(tmp_path: Path) -> None:
    """Three thousand files with one licence header, a thousand originals among them, through real signatures."""
    rng = np.random.default_rng(0)
    bands = choose_bands(THRESHOLD, 128)
    header = rng.integers(0, 10**9, size=200).tolist()
    texts, cluster = [], rng.permutation(np.arange(3000) % 1000)
    bodies = rng.integers(0, 10**9, size=(1000, 150))
    for of in cluster:
        body = bodies[of].copy()
        body[: rng.integers(0, 30)] = rng.integers(0, 10**9)
        texts.append(" ".join(map(str, [*header, *body.tolist()])).encode())
    data, offsets = np.frombuffer(b"".join(texts), dtype=np.uint8), np.cumsum([0, *map(len, texts)])
    sets = [shingle_set(np.frombuffer(text, dtype=np.uint8)) for text in texts]
    keys = band_keys(signatures(data, offsets, 5, *permutations(bands.num_perm)), bands.bands, bands.rows)
    ranks = ranks_of(np.arange(len(texts)), np.array(list(map(len, texts))), "longest", against=False)
    population = ListedPopulation(
        ranks.tolist(), {key_column(band): column.tolist() for band, column in enumerate(keys)}, at_a_time=1000
    )
    candidates = find_candidates(population, bands, np.zeros(len(texts), dtype=np.bool_), tmp_path, 1 << 28)  # type: ignore[arg-type]
    assert candidates.runs
    resolved = resolve(candidates, given_store(tmp_path / "store", sets), THRESHOLD, tmp_path, 1 << 28)
    edges = resolved.edges
    check_edges(edges, sets)

    removed = {edge.removed & 0xFFFFFFFF for edge in edges}
    members = [np.flatnonzero(cluster == of).tolist() for of in range(1000)]
    similar = [
        pair for some in members for pair in combinations(some, 2) if similarity(sets[pair[0]], sets[pair[1]]) >= 0.8
    ]
    missed = [pair for pair in similar if not {*pair} & removed]
    assert len(similar) > 2000
    assert len(missed) <= len(similar) // 100
