"""Candidate pairs, against a dictionary from key to documents for each band."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.bits import no_bits, set_bits
from pilekit.dedup.match.candidates import Candidates, find_candidates
from pilekit.dedup.sketch.bands import Bands
from pilekit.errors import PilekitError
from tests.dedup.listed import OWN, ListedPopulation, lists_of, ranks_of

Pairs = list[tuple[int, int]]
Lists = set[tuple[int, ...]]


def reference(ranks: list[int], keys: list[list[int]], left_out: set[int]) -> tuple[Pairs, Lists]:
    """((later, earlier) ascending, the lists of members of hot runs)."""
    pairs, hot = set(), set()
    for band in keys:
        runs = defaultdict(list)
        for rank in sorted(ranks):
            if rank & 0xFFFFFFFF not in left_out:
                runs[band[rank & 0xFFFFFFFF]].append(rank)
        for run in runs.values():
            if run[-1] < OWN:
                continue
            if len(run) > 64:
                hot.add(tuple(run))
            else:
                pairs |= {(later, earlier) for earlier, later in combinations(run, 2) if later >= OWN}
    return sorted(pairs), hot


def found(candidates: Candidates) -> tuple[Pairs, Lists]:
    pairs = [(later, earlier) for table in candidates.pairs.chunks() for later, earlier in table.T.tolist()]
    lists = [tuple(run) for run in lists_of(candidates)]
    assert len(lists) == len(set(lists))
    bits = np.unpackbits(candidates.bits(), count=candidates.documents, bitorder="little")
    documents = {rank & 0xFFFFFFFF for some in [*pairs, *lists] for rank in some}
    assert set(np.flatnonzero(bits).tolist()) == documents
    return pairs, set(lists)


def candidates_of(
    folder: Path,
    ranks: list[int],
    keys: list[list[int]],
    *,
    copies: set[int] = frozenset(),  # type: ignore[assignment]
    absent: set[int] = frozenset(),  # type: ignore[assignment]
    memory: int = 1 << 26,
    jobs: int = 1,
    at_a_time: int = 1000,
) -> Candidates:
    columns = {f"key_{band:03d}": values for band, values in enumerate(keys)}
    population = ListedPopulation(ranks, columns, absent=frozenset(absent), at_a_time=at_a_time)
    bits = no_bits(len(ranks))
    set_bits(bits, np.array(sorted(copies), dtype=np.uint32))
    return find_candidates(population, Bands(len(keys), 6), bits, folder, memory, jobs=jobs)


@given(data=st.data(), memory=st.sampled_from([1, 1 << 20, 1 << 28]), jobs=st.integers(1, 3))
def test_every_pair_that_shares_a_key_is_a_candidate(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, memory: int, jobs: int
) -> None:
    count, bands = data.draw(st.integers(0, 300)), data.draw(st.integers(1, 5))
    # Up to 300 documents of few keys: runs around 64, in one band or, alike, in several.
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    different = data.draw(st.sampled_from([1, 2, 4, 50, 2**63]))
    keys = [random.integers(0, different, count).tolist() for _ in range(bands)]
    for band in data.draw(st.lists(st.integers(0, bands - 1))):
        keys[band] = keys[0]
    ranks = ranks_of(random.integers(0, 3, count).tolist(), against=data.draw(st.integers(0, count)))
    some = st.sets(st.integers(0, max(0, count - 1)), max_size=20)
    copies, absent = data.draw(some), data.draw(some)
    candidates = candidates_of(
        tmp_path_factory.mktemp("match"),
        ranks,
        keys,
        copies={document for document in copies if document < count},
        absent=absent,
        memory=memory,
        jobs=jobs,
        at_a_time=data.draw(st.integers(1, 100)),
    )
    assert found(candidates) == reference(ranks, keys, copies | absent)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 66, 128, 129])
def test_runs_of_every_length_around_the_limit(tmp_path: Path, length: int) -> None:
    ranks = ranks_of([9] * length)
    keys = [[7] * length, list(range(length)), [7] * length]
    pairs, hot = found(candidates_of(tmp_path, ranks, keys))
    assert (pairs, hot) == reference(ranks, keys, set())
    assert (len(pairs), len(hot)) == ((length * (length - 1) // 2, 0) if length <= 64 else (0, 1))


@pytest.mark.parametrize("memory", [1, 1 << 28])
def test_long_runs_that_no_chunk_holds(tmp_path: Path, memory: int) -> None:
    """A run of 12,000 documents in two bands, of the other 8,000 in a third, and a sort that holds 1,024."""
    count = 20_000
    alike = [document if document % 5 < 2 else 3 for document in range(count)]
    keys = [alike, alike, [5 if document % 5 < 2 else document for document in range(count)]]
    ranks = ranks_of([document % 1000 for document in range(count)])
    candidates = candidates_of(tmp_path, ranks, keys, memory=memory)
    pairs, hot = found(candidates)
    assert (pairs, hot) == reference(ranks, keys, set())
    assert sorted(map(len, hot)) == [8000, 12_000]
    assert pairs == []


def test_bytes_are_the_same_whatever_memory_and_threads(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    count = 30_000
    keys = [(random.integers(0, 2**63, count) // random.choice([1, 2**50, 2**56], count)).tolist() for _ in range(6)]
    keys[4] = keys[1]
    ranks = ranks_of(random.integers(0, 100, count).tolist(), against=500)
    files = []
    for number, (memory, jobs) in enumerate([(1, 1), (1 << 20, 2), (1 << 28, 1), (1 << 30, 2), (1 << 30, 8)]):
        candidates_of(tmp_path / str(number), ranks, keys, memory=memory, jobs=jobs)
        files.append({path.name: path.read_bytes() for path in (tmp_path / str(number)).iterdir()})
    assert all(contents == files[0] for contents in files[1:])
    assert sorted(files[0]) == ["candidates.bits", "hot.lengths", "hot.members", "pairs.rows"]
    assert all(files[0].values())


def test_a_failing_thread_ends_the_others(tmp_path: Path) -> None:
    class Damaged(ListedPopulation):
        def chunks(self, names):  # type: ignore[no-untyped-def]
            yield from super().chunks(names)
            if "key_003" in names:
                raise PilekitError("sketches/x: is damaged")

    columns = {f"key_{band:03d}": list(range(1000)) for band in range(8)}
    population = Damaged(ranks_of([1] * 1000), columns)
    with pytest.raises(PilekitError, match="sketches/x: is damaged"):
        find_candidates(population, Bands(8, 6), no_bits(1000), tmp_path, 1 << 30, jobs=2)
    assert list(tmp_path.iterdir()) == []


def test_what_is_complete_is_not_done_again(tmp_path: Path) -> None:
    ranks, keys = ranks_of([1, 2, 3]), [[1, 1, 2]]
    first = found(candidates_of(tmp_path, ranks, keys))
    again = find_candidates(ListedPopulation(ranks, {}), Bands(1, 6), no_bits(3), tmp_path, 1 << 20)
    assert found(again) == first == ([(ranks[0], ranks[1])], set())


def test_progress_counts_every_key_twice(tmp_path: Path) -> None:
    counted = []
    columns = {f"key_{band:03d}": list(range(1000)) for band in range(3)}
    bits = no_bits(1000)
    set_bits(bits, np.array([5], dtype=np.uint32))
    find_candidates(
        ListedPopulation(ranks_of([1] * 1000), columns), Bands(3, 6), bits, tmp_path, 1 << 30, advance=counted.append
    )
    assert sum(counted) == 2 * 3 * 1000
