"""`resolve` against the plain definition, and in hot runs: every removal is proven, and the cost is linear."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.artifacts.sort.scratch_files import Scratch
from pilekit.dedup.document_table import ranks_of
from pilekit.dedup.matching import find_candidates
from pilekit.dedup.resolve import MOST_REPRESENTATIVES as MOST
from pilekit.dedup.resolve import ComparisonCounts
from pilekit.dedup.sketch.bands import choose_bands
from pilekit.dedup.sketch.minhash import band_keys, permutations, signatures
from pilekit.dedup.sketch.shingles import shingle_set
from pilekit.dedup.sketch.sketch_format import key_column
from tests.dedup.given import OWN, Edge, ListedDocuments, all_pairs, given_store, resolve, resolve_given

Sets = Sequence[set[int]]


def one_at_a_time(
    sets: Sets, ranks: Iterable[int], pairs: Iterable[tuple[int, int]], threshold: float
) -> tuple[list[Edge], ComparisonCounts]:
    """(the edges of removed documents, how many pairs had to be compared), one document and one pair at a time."""
    removed: set[int] = set()
    edges, compared = [], 0
    earlier_of: dict[int, set[int]] = {}
    for later, earlier in pairs:
        earlier_of.setdefault(later, set()).add(earlier)
    for rank in sorted(ranks):
        found = []
        for earlier in sorted(earlier_of.get(rank, ())):
            one, other = sets[rank & 0xFFFFFFFF], sets[earlier & 0xFFFFFFFF]
            most = min(len(one), len(other)) / max(len(one), len(other))
            if rank < OWN or earlier in removed or most < threshold:
                continue
            compared += 1
            similarity = len(one & other) / len(one | other)
            if similarity >= threshold:
                found.append((-similarity, earlier))
        if found:
            similarity, kept = min(found)
            removed.add(rank)
            edges.append(Edge(rank, kept, -similarity))
    return edges, ComparisonCounts(compared, 0, 0)


@st.composite
def similar_sets(draw: st.DrawFn) -> list[set[int]]:
    """Sets around a few others, of all similarities."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    centres = [set(rng.integers(0, 2**64, size=rng.integers(1, 50), dtype=np.uint64).tolist()) for _ in range(4)]
    sets = []
    for _ in range(draw(st.integers(2, 40))):
        share, more = rng.choice([0.7, 0.9, 0.95, 1]), int(rng.integers(0, 4))
        kept = {value for value in sorted(centres[rng.integers(4)]) if rng.random() < share}
        sets.append(kept | set(rng.integers(0, 2**64, size=more, dtype=np.uint64).tolist()) or {1})
    return sets


@given(st.data(), st.sampled_from([0.3, 0.5, 0.8, 1.0]))
def test_pairs_and_runs_are_decided_as_all_pairs_one_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, threshold: float
) -> None:
    """Ranks are lengths in any order, and some documents are of an earlier run."""
    sets = data.draw(similar_sets())
    earlier = data.draw(st.integers(0, len(sets)))
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=len(sets), max_size=len(sets)))
    ranks = [(OWN if id >= earlier else 0) | length << 32 | id for id, length in enumerate(lengths)]
    groups = data.draw(st.lists(st.sets(st.sampled_from(ranks), min_size=2), max_size=4))
    share = data.draw(st.sampled_from([0, 0.2, 1]))
    chosen = random.Random(data.draw(st.integers(0, 999)))
    pairs = [pair for pair in all_pairs(ranks) if chosen.random() < share]
    of_all = {*pairs, *(pair for run in groups for pair in all_pairs(run))}
    folder, runs = tmp_path_factory.mktemp("resolve"), [sorted(run) for run in groups]
    memory, shards = data.draw(st.sampled_from([1, 1 << 28])), data.draw(st.integers(1, 3))
    resolved = resolve_given(folder, sets, pairs, runs, threshold=threshold, memory=memory, shards=shards)
    assert resolved == one_at_a_time(sets, ranks, of_all, threshold)


def test_memory_and_shards_change_nothing(tmp_path: Path) -> None:
    """3,000 documents in clusters, with ranks in random order; some pairs are too unlike."""
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 2**64, size=(600, 100), dtype=np.uint64)
    sets: list[set[int]] = [set(centres[i % 600][rng.random(100) < 0.93].tolist()) for i in range(3000)]
    ranks = [OWN | place << 32 | i for i, place in enumerate(rng.permutation(3000).tolist())]
    pairs = [pair for cluster in range(600) for pair in all_pairs(ranks[cluster::600])]
    runs = [sorted(random.Random(seed).sample(ranks, 300)) for seed in range(5)]
    expected = resolve_given(tmp_path / "0", sets, pairs, runs)
    assert len(expected.edges) > 1000
    assert resolve_given(tmp_path / "1", sets, pairs, runs, shards=7, memory=1) == expected


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
    return ranks_of(np.arange(len(sizes)), np.array(sizes), "longest", fixed=False)


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


def test_a_run_of_more_clusters_counts_the_documents_that_it_may_keep_too_many(tmp_path: Path) -> None:
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
    document_table = ListedDocuments(longest_ranks(list(map(len, texts))).tolist(), columns)
    flags = np.zeros(len(texts), dtype=np.bool_)
    candidates = find_candidates(document_table, range(bands.bands), flags, Scratch(tmp_path, 1 << 28))  # type: ignore[arg-type]
    assert candidates.runs
    kept = kept_after(resolve(candidates, given_store(tmp_path / "store", sets), THRESHOLD, tmp_path)[0], sets)

    members = [np.flatnonzero(cluster == of).tolist() for of in range(1000)]
    pairs = [pair for some in members for pair in combinations(some, 2)]
    similar = [pair for pair in pairs if similarity(sets[pair[0]], sets[pair[1]]) >= THRESHOLD]
    assert len(similar) > 2000
    assert len([pair for pair in similar if {*pair} <= kept]) <= len(similar) // 100
