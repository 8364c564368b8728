"""Candidate pairs, against a dictionary from key to documents for each band; exact copies, against one of texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.artifacts.sort.scratch_files import Scratch
from pilekit.dedup.matching import LONGEST_RUN, Candidates, find_candidates, find_exact
from pilekit.errors import PilekitError
from tests.dedup.given import OWN, ListedDocuments, ranks_of_lengths

Keys = list[list[int]]
Found = tuple[list[tuple[int, int]], set[tuple[int, ...]]]
"""(pairs of (later, earlier), ascending; the lists of members of hot runs)."""


def reference(ranks: list[int], keys: Keys, left_out: Iterable[int] = ()) -> Found:
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


def read(candidates: Candidates) -> Found:
    pairs, lists = [], defaultdict(list)
    for table in candidates.rows.chunks():
        for later, run, earlier in table.T.tolist():
            if run:
                lists[run].append(later)
            else:
                pairs.append((later, earlier))
    candidates.rows.close()
    lengths = {run: length for table in candidates.runs for run, length in table.T.tolist()}
    assert lengths == {run: len(ranks) for run, ranks in lists.items()}
    documents = {rank & 0xFFFFFFFF for some in [*pairs, *lists.values()] for rank in some}
    assert set(np.flatnonzero(candidates.flagged).tolist()) == documents
    assert len({tuple(ranks) for ranks in lists.values()}) == len(lists)
    return pairs, {tuple(ranks) for ranks in lists.values()}


def found(
    folder: Path,
    ranks: list[int],
    keys: Keys,
    *,
    copies: Iterable[int] = (),
    memory: int = 1 << 26,
    jobs: int = 1,
    **options: Any,
) -> Found:
    document_table = ListedDocuments(ranks, {f"key_{band:03d}": values for band, values in enumerate(keys)}, **options)
    flags = np.zeros(len(ranks), dtype=np.bool_)
    flags[[*copies]] = True
    counted: list[int] = []
    how: dict[str, Any] = {"jobs": jobs, "advance": counted.append}
    candidates = find_candidates(document_table, range(len(keys)), flags, Scratch(folder, memory), **how)  # type: ignore[arg-type]
    documents = sum(len(some) for some, _ in document_table.chunks([]))
    assert sum(counted) == 2 * len(keys) * documents
    return read(candidates)


@given(data=st.data(), memory=st.sampled_from([1, 1 << 20, 1 << 28]), jobs=st.integers(1, 3))
def test_every_pair_that_shares_a_key_is_a_candidate(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, memory: int, jobs: int
) -> None:
    count, bands = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 5))
    # Up to 300 documents of few keys: runs around 64, in one band or, alike, in several.
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    different = data.draw(st.sampled_from([1, 2, 4, 50, 2**63]))
    keys = [random.integers(0, different, count).tolist() for _ in range(bands)]
    for band in data.draw(st.lists(st.integers(0, bands - 1))):
        keys[band] = keys[0]
    ranks = ranks_of_lengths(random.integers(0, 3, count).tolist(), against=data.draw(st.integers(0, count)))
    copies, absent = (data.draw(st.sets(st.integers(0, count - 1), max_size=20)) for _ in range(2))
    folder, at_a_time = tmp_path_factory.mktemp("match"), data.draw(st.integers(1, 100))
    pairs = found(folder, ranks, keys, copies=copies, absent=absent, memory=memory, jobs=jobs, at_a_time=at_a_time)
    assert pairs == reference(ranks, keys, copies | absent)


def test_runs_of_every_length_around_the_limit(tmp_path: Path) -> None:
    for length in (1, 2, 63, 64, 65, 66, 128, 129):
        ranks, keys = ranks_of_lengths([9] * length), [[7] * length, list(range(length)), [7] * length]
        pairs, hot = found(tmp_path, ranks, keys)
        assert (pairs, hot) == reference(ranks, keys)
        assert (len(pairs), len(hot)) == ((length * (length - 1) // 2, 0) if length <= 64 else (0, 1))


def test_memory_and_threads_change_nothing(tmp_path: Path) -> None:
    """Two bands have runs of 12,000 documents, a third has a run of 8,000; the sort holds 1,024 rows."""
    random = np.random.default_rng(5)
    count = 20_000
    alike = [document if document % 5 < 2 else 3 for document in range(count)]
    keys = [alike, alike, [5 if document % 5 < 2 else document for document in range(count)]]
    keys += [(random.integers(0, 2**63, count) // random.choice([1, 2**50], count)).tolist() for _ in range(2)]
    ranks = ranks_of_lengths(random.integers(0, 100, count).tolist(), against=500)
    expected = reference(ranks, keys)
    assert {8000, 12_000} <= set(map(len, expected[1]))
    for memory, jobs in [(1, 1), (1 << 20, 2), (1 << 30, 8)]:
        assert found(tmp_path, ranks, keys, memory=memory, jobs=jobs) == expected


def test_a_run_of_more_documents_ends_and_another_begins(tmp_path: Path) -> None:
    ranks = ranks_of_lengths([9] * (LONGEST_RUN + 100))
    hot = found(tmp_path, ranks, [[7] * len(ranks)], memory=1 << 20)
    assert hot == ([], {tuple(ranks[:LONGEST_RUN]), tuple(ranks[LONGEST_RUN:])})


def test_a_failing_thread_ends_the_others(tmp_path: Path) -> None:
    class Damaged(ListedDocuments):
        def chunks(self, names):  # type: ignore[no-untyped-def]
            yield from super().chunks(names)
            if "key_003" in names:
                raise PilekitError("sketches/x: is damaged")

    document_table = Damaged(ranks_of_lengths([1] * 1000), {f"key_{band:03d}": list(range(1000)) for band in range(8)})
    with pytest.raises(PilekitError, match="sketches/x: is damaged"):
        find_candidates(document_table, range(8), np.zeros(1000, dtype=np.bool_), Scratch(tmp_path, 1 << 30), jobs=2)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def check(folder: Path, document_table: ListedDocuments, ranks: list[int], texts: list[tuple[int, int]]) -> int:
    """Of each text, the first rank stands for all others; returns the copies. In any memory and number of parts."""
    first: dict[tuple[int, int], int] = {}
    present = {rank for some, _ in document_table.chunks([]) for rank in some.tolist()}
    expected = [
        (keeper, rank)
        for rank in sorted(present)
        if (keeper := first.setdefault(texts[rank & 0xFFFFFFFF], rank)) != rank
    ]
    for memory, parts in ((1, 1), (1 << 16, 3), (1 << 24, 1), (1 << 24, 2)):
        of_parts = [find_exact(document_table, Scratch(folder, memory), (part, parts)) for part in range(parts)]  # type: ignore[arg-type]
        assert sorted(tuple(pair) for table in chain(*of_parts) for pair in table.T.tolist()) == sorted(expected)
    return len(expected)


@given(data=st.data())
def test_every_copy_names_the_first_of_its_text(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60), label="documents")
    # Two texts are equal only if both halves of their hashes are.
    half = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])
    texts = data.draw(st.lists(st.tuples(half, half), min_size=count, max_size=count))
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    ranks = ranks_of_lengths(lengths, against=data.draw(st.integers(0, count)))
    absent = data.draw(st.sets(st.integers(1, count)))
    columns = {"hash_high": [high for high, _ in texts], "hash_low": [low for _, low in texts]}
    document_table = ListedDocuments(ranks, columns, absent=absent, at_a_time=data.draw(st.integers(1, 20)))
    check(tmp_path_factory.mktemp("exact"), document_table, ranks, texts)


def test_a_text_that_occurs_more_often_than_memory_holds(tmp_path: Path) -> None:
    """5,000 empty documents and 5,000 others; the smallest sort holds 1,024 rows."""
    texts = [0 if document % 2 else document for document in range(10_000)]
    ranks = ranks_of_lengths([document % 5 for document in range(10_000)])
    document_table = ListedDocuments(ranks, {"hash_high": texts, "hash_low": texts})
    assert check(tmp_path, document_table, ranks, [(text, text) for text in texts]) == 5000
