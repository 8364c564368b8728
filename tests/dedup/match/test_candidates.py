"""Candidate pairs, against a dictionary from key to documents for each band."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.match import candidates as candidates_module
from pilekit.dedup.match.candidates import Candidates, find_candidates
from pilekit.dedup.sketch.bands import Bands
from pilekit.errors import PilekitError
from tests.dedup.listed import OWN, ListedPopulation, ranks_of

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
    pairs, lists = [], defaultdict(list)
    for table in candidates.rows.chunks():
        for later, run, earlier in table.T.tolist():
            if run:
                lists[run].append(later)
            else:
                pairs.append((later, earlier))
    lengths = {run: length for table in candidates.runs for run, length in table.T.tolist()}
    assert lengths == {run: len(ranks) for run, ranks in lists.items()}
    candidates.rows.close()
    documents = {rank & 0xFFFFFFFF for some in [*pairs, *lists.values()] for rank in some}
    assert set(np.flatnonzero(candidates.flagged).tolist()) == documents
    assert len({tuple(ranks) for ranks in lists.values()}) == len(lists)
    return pairs, {tuple(ranks) for ranks in lists.values()}


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
    flags = np.zeros(len(ranks), dtype=np.bool_)
    flags[sorted(copies)] = True
    folder.mkdir(exist_ok=True)
    return find_candidates(population, Bands(len(keys), 6), flags, folder, memory, jobs=jobs)  # type: ignore[arg-type]


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


def test_runs_of_every_length_around_the_limit(tmp_path: Path) -> None:
    for length in (1, 2, 63, 64, 65, 66, 128, 129):
        ranks = ranks_of([9] * length)
        keys = [[7] * length, list(range(length)), [7] * length]
        pairs, hot = found(candidates_of(tmp_path, ranks, keys))
        assert (pairs, hot) == reference(ranks, keys, set())
        assert (len(pairs), len(hot)) == ((length * (length - 1) // 2, 0) if length <= 64 else (0, 1))


def test_memory_and_threads_change_nothing(tmp_path: Path) -> None:
    """Two bands have runs of 12,000 documents, a third has a run of 8,000; the sort holds 1,024 rows."""
    random = np.random.default_rng(5)
    count = 20_000
    alike = [document if document % 5 < 2 else 3 for document in range(count)]
    keys = [alike, alike, [5 if document % 5 < 2 else document for document in range(count)]]
    keys += [(random.integers(0, 2**63, count) // random.choice([1, 2**50], count)).tolist() for _ in range(2)]
    ranks = ranks_of(random.integers(0, 100, count).tolist(), against=500)
    expected = reference(ranks, keys, set())
    assert {8000, 12_000} <= set(map(len, expected[1]))
    for memory, jobs in [(1, 1), (1 << 20, 2), (1 << 30, 8)]:
        assert found(candidates_of(tmp_path, ranks, keys, memory=memory, jobs=jobs)) == expected


def test_endless_runs_end_after_a_fixed_number_of_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates_module, "LONGEST_RUN", 1000)
    ranks = ranks_of([9] * 2500)
    for memory in (1, 1 << 20, 1 << 30):
        pairs, hot = found(candidates_of(tmp_path, ranks, [[7] * 2500], memory=memory))
        assert hot == {tuple(ranks[begin : begin + 1000]) for begin in (0, 1000, 2000)}
        assert pairs == []


def test_a_failing_thread_ends_the_others(tmp_path: Path) -> None:
    class Damaged(ListedPopulation):
        def chunks(self, names):  # type: ignore[no-untyped-def]
            yield from super().chunks(names)
            if "key_003" in names:
                raise PilekitError("sketches/x: is damaged")

    columns = {f"key_{band:03d}": list(range(1000)) for band in range(8)}
    population = Damaged(ranks_of([1] * 1000), columns)
    with pytest.raises(PilekitError, match="sketches/x: is damaged"):
        find_candidates(population, Bands(8, 6), np.zeros(1000, dtype=np.bool_), tmp_path, 1 << 30, jobs=2)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_every_key_twice(tmp_path: Path) -> None:
    counted = []
    columns = {f"key_{band:03d}": list(range(1000)) for band in range(3)}
    flags = np.zeros(1000, dtype=np.bool_)
    flags[5] = True
    find_candidates(
        ListedPopulation(ranks_of([1] * 1000), columns), Bands(3, 6), flags, tmp_path, 1 << 30, advance=counted.append
    )
    assert sum(counted) == 2 * 3 * 1000
