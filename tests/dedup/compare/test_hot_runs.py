"""Hot runs: every removal is proven, no copy of a representative is kept, and the cost is linear."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pilekit.dedup.compare.jaccard_kernels import MOST_REPRESENTATIVES as MOST
from pilekit.dedup.match.candidates import find_candidates
from pilekit.dedup.match.population import ranks_of
from pilekit.dedup.sketch.bands import choose_bands
from pilekit.dedup.sketch.minhash import band_keys, permutations, signatures
from pilekit.dedup.sketch.shingles import shingle_set
from pilekit.dedup.sketch.sketch_format import key_column
from tests.dedup.given import OWN, Edge, ListedPopulation, given_store, resolve, resolve_given

Values = npt.NDArray[np.uint64]

THRESHOLD = 0.8


def values(rng: np.random.Generator, count: int) -> Values:
    return rng.integers(0, 2**64, size=count, dtype=np.uint64)


def near_copies(rng: np.random.Generator, centres: Sequence[Values], of: npt.NDArray[np.int64]) -> list[Values]:
    """A set for each centre named, with a few values of its own."""
    return [np.concatenate([centres[one], values(rng, 3)]) for one in of]


def first_ranks(documents: int) -> Values:
    return np.arange(documents, dtype=np.uint64) | np.uint64(OWN)


def longest_ranks(sizes: Sequence[int]) -> Values:
    return ranks_of(np.arange(len(sizes)), np.array(sizes), "longest", against=False)


def similarity(one: Values, other: Values) -> float:
    shared = len(np.intersect1d(one, other))
    return shared / (len(one) + len(other) - shared)


def kept_after(edges: Sequence[Edge], sets: Sequence[Values]) -> set[int]:
    """The kept documents; checks that every edge is proven and that its kept document is kept."""
    removed = {edge.removed for edge in edges}
    assert len(removed) == len(edges)
    assert not removed & {edge.kept for edge in edges}
    for edge in edges[:: len(edges) // 1000 + 1]:
        one, other = (sets[rank & 0xFFFFFFFF] for rank in (edge.removed, edge.kept))
        assert similarity(one, other) == edge.similarity >= THRESHOLD
        assert edge.kept < edge.removed
    return {*range(len(sets))} - {rank & 0xFFFFFFFF for rank in removed}


def test_four_thousand_files_with_one_licence_header_are_all_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    header = values(rng, 300)
    sets = [np.concatenate([header, values(rng, length)]) for length in rng.integers(100, 600, size=4000)]
    edges, counts = resolve_given(tmp_path, sets, (), [np.sort(longest_ranks(list(map(len, sets))))])
    assert edges == []
    assert counts.compared <= MOST * len(sets)
    assert (counts.hot_runs, counts.hot_documents) == (1, len(sets) - MOST - 1)


def test_in_overlapping_runs_no_pair_is_compared_twice(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    header = values(rng, 100)
    sets = [np.concatenate([header, values(rng, 100)]) for _ in range(120)]
    ranks = first_ranks(len(sets))
    counts = resolve_given(tmp_path / "unlike", sets, (), [ranks[begin : begin + 100] for begin in range(21)]).counts
    assert counts == (100 * 99 // 2 + 20 * 99, 0, 0)

    sets = near_copies(rng, [values(rng, 60)], np.zeros(20_000, dtype=np.int64))
    ranks = first_ranks(len(sets))
    runs = [ranks] + [ranks[rng.random(len(ranks)) < 0.9] for _ in range(4)]
    edges, counts = resolve_given(tmp_path / "alike", sets, (), runs)
    assert kept_after(edges, sets) == {0}
    assert counts.compared == len(sets) - 1


def test_a_run_of_as_many_clusters_as_it_may_hold_loses_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, MOST, size=5000)
    header = values(rng, 80)
    sets = near_copies(rng, [np.concatenate([header, values(rng, 120)]) for _ in range(MOST)], cluster)
    ranks = longest_ranks(rng.integers(100, 200, size=5000).tolist())
    edges, counts = resolve_given(tmp_path, sets, (), [np.sort(ranks)])
    order = np.argsort(ranks)
    assert kept_after(edges, sets) == {*order[np.unique(cluster[order], return_index=True)[1]].tolist()}
    assert counts.hot_documents == 0


def test_a_run_of_more_clusters_is_told_of_and_loses_only_what_it_tells(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 3 * MOST, size=4000)
    sets = near_copies(rng, [values(rng, 100) for _ in range(3 * MOST)], cluster)
    edges, counts = resolve_given(tmp_path, sets, (), [first_ranks(len(sets))])
    kept = kept_after(edges, sets)
    similar = len(kept) - len(np.unique(cluster[[*kept]]))
    assert 0 < similar <= counts.hot_documents < len(kept)
    assert counts.hot_runs == 1
    assert counts.compared <= MOST * len(sets)


def test_small_clusters_under_one_header_are_found_in_spite_of_hot_runs(tmp_path: Path) -> None:
    """Three thousand files with one licence header, a thousand originals among them, through real signatures."""
    rng = np.random.default_rng(0)
    bands = choose_bands(THRESHOLD, 128)
    header, bodies = rng.integers(0, 10**9, size=200).tolist(), rng.integers(0, 10**9, size=(1000, 150))
    texts, cluster = [], rng.permutation(np.arange(3000) % 1000)
    for of in cluster:
        body = bodies[of].copy()
        body[: rng.integers(0, 30)] = rng.integers(0, 10**9)
        texts.append(" ".join(map(str, [*header, *body.tolist()])).encode())
    data, offsets = np.frombuffer(b"".join(texts), dtype=np.uint8), np.cumsum([0, *map(len, texts)])
    sets = [shingle_set(np.frombuffer(text, dtype=np.uint8)) for text in texts]
    keys = band_keys(signatures(data, offsets, 5, *permutations(bands.num_perm)), bands.bands, bands.rows)
    columns: dict[str, Sequence[int]] = {key_column(band): column.tolist() for band, column in enumerate(keys)}
    population = ListedPopulation(longest_ranks(list(map(len, texts))).tolist(), columns)
    candidates = find_candidates(population, bands, np.zeros(len(texts), dtype=np.bool_), tmp_path, 1 << 28)  # type: ignore[arg-type]
    assert candidates.runs
    kept = kept_after(resolve(candidates, given_store(tmp_path / "store", sets), THRESHOLD, tmp_path, 1 << 28)[0], sets)

    members = [np.flatnonzero(cluster == of).tolist() for of in range(1000)]
    pairs = [pair for some in members for pair in combinations(some, 2)]
    similar = [pair for pair in pairs if similarity(sets[pair[0]], sets[pair[1]]) >= THRESHOLD]
    assert len(similar) > 2000
    assert len([pair for pair in similar if {*pair} <= kept]) <= len(similar) // 100
