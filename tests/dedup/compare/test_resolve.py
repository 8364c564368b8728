"""`Resolver` against the plain definition: the removed documents, their kept documents, and the similarities."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.compare import resolve as module
from pilekit.dedup.compare.jaccard_kernels import needed
from pilekit.dedup.compare.resolve import Counts
from pilekit.dedup.match.population import ranks_of
from pilekit.dedup.sketch.shingles import shared_if_enough, shingle_set
from tests.dedup import reference
from tests.dedup.given import OWN, Edge, all_pairs, resolve_given

Sets = Sequence[set[int]]


def one_at_a_time(
    sets: Sets, ranks: Iterable[int], pairs: Iterable[tuple[int, int]], threshold: float
) -> tuple[list[Edge], Counts]:
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
    return edges, Counts(compared, 0, 0)


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


words = st.lists(st.sampled_from(["a", "b", "c", "B", "ü"]), max_size=14).map(" ".join)


@given(st.lists(words | st.text(max_size=5), min_size=1, max_size=14), st.sampled_from([0.2, 0.5, 0.8, 1]), st.data())
def test_of_all_pairs_of_any_texts_the_removed_have_a_kept_partner_and_the_kept_have_none(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], threshold: float, data: st.DataObject
) -> None:
    texts = list(dict.fromkeys(texts))
    keep, ngram = data.draw(st.sampled_from(["longest", "first"])), data.draw(st.integers(1, 5))
    encoded = [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
    sets = [shingle_set(text, ngram) for text in encoded]
    ranks = ranks_of(np.arange(len(texts)), np.array(list(map(len, encoded))), keep, against=False).tolist()
    resolved = resolve_given(tmp_path_factory.mktemp("resolve"), sets, all_pairs(ranks), threshold=threshold)
    removed = {edge.removed & 0xFFFFFFFF: (edge.kept & 0xFFFFFFFF, edge.similarity) for edge in resolved.edges}

    similar = reference.similar_pairs(texts, threshold, ngram)
    assert not [pair for pair in similar if not {*pair} & {*removed}]
    expected = reference.deduplicate(texts, similar, keep)
    assert removed == {document: (removal.kept, removal.similarity) for document, removal in expected.items()}
    assert not {kept for kept, _ in removed.values()} & {*removed}


def test_memory_and_shards_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 documents in clusters, with ranks in random order; some pairs are too unlike."""
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 2**64, size=(600, 100), dtype=np.uint64)
    sets: list[set[int]] = [set(centres[i % 600][rng.random(100) < 0.93].tolist()) for i in range(3000)]
    ranks = [OWN | place << 32 | i for i, place in enumerate(rng.permutation(3000).tolist())]
    pairs = [pair for cluster in range(600) for pair in all_pairs(ranks[cluster::600])]
    runs = [sorted(random.Random(seed).sample(ranks, 300)) for seed in range(5)]
    expected = resolve_given(tmp_path / "0", sets, pairs, runs)
    assert len(expected.edges) > 1000
    monkeypatch.setattr(module, "_MOST_TOUCHED", 3000)
    assert resolve_given(tmp_path / "1", sets, pairs, runs, shards=7, memory=1) == expected


def test_no_chain_removes_a_document_unlike_its_keeper_and_of_equally_similar_ones_the_first_is_named(
    tmp_path: Path,
) -> None:
    chain = [set(range(10 * i, 10 * i + 100)) for i in range(50)]  # Each resembles its neighbours, but no other.
    edges = resolve_given(tmp_path / "chain", chain, all_pairs(OWN | i for i in range(50))).edges
    assert [edge.removed - OWN for edge in edges] == list(range(1, 50, 2))

    sets = [set(range(100)), set(range(15, 100)), set(range(1, 101)), set(range(2, 100))]
    sets += [set(range(1000, 1100)) - {1000 + i} for i in (0, 1)] + [set(range(1000, 1100)) - {1000, 1001}]
    edges = resolve_given(tmp_path, sets, all_pairs(OWN | i for i in range(7)), threshold=0.98).edges
    expected = [(2, 0, 99 / 101), (3, 0, 98 / 100), (5, 4, 98 / 100), (6, 4, 98 / 99)]
    assert edges == [Edge(OWN | removed, OWN | kept, similarity) for removed, kept, similarity in expected]


def test_needed_is_the_least_number_that_reaches_the_threshold() -> None:
    for threshold in (0.001, 1 / 3, 0.5, 0.8, 0.8000000000000002, 0.95, 1.0):
        for one, other in product(range(1, 60), repeat=2):
            reaching = [shared for shared in range(min(one, other) + 1) if shared / (one + other - shared) >= threshold]
            found = needed(one, other, threshold)
            assert found == reaching[0] if reaching else found > min(one, other)


values = st.lists(st.integers(0, 99) | st.integers(0, 2**64 - 1), unique=True, max_size=100)


@given(values, values)
def test_shared_values_are_counted_unless_they_cannot_be_enough(one: list[int], other: list[int]) -> None:
    shared = len(set(one) & set(other))
    sets = [np.array(sorted(some), dtype=np.uint64) for some in (one, other)]
    for enough in (*range(shared + 1), shared + 1, shared + 2, 1000):
        assert shared_if_enough(*sets, enough) == (shared if enough <= shared else -1)
