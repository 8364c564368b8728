"""Twenty million documents in 256 MB, under a limit of the memory of its own; and all of the result is right.

From the sketches to what is removed: exact copies, 3 million candidate pairs, the comparison of their shingle sets and
of 400,000 documents with a licence header, and the choice. In memory, one band's keys, ranks and their order alone
would take 480 MB, and there are 21 bands; the shingle sets take 600 MB.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pilekit.dedup.compare.resolve import Resolved
from pilekit.dedup.match.candidates import Candidates
from pilekit.dedup.match.exact import ExactCopies
from pilekit.dedup.match.population import ranks_of
from pilekit.dedup.match.rows import Rows, Table
from pilekit.dedup.output.merge_removals import EXACT, NEAR, Decisions
from tests.dedup.generated import BANDS, GROUPS, LICENCE, THRESHOLD, shingles, text_of, values
from tests.dedup.listed import lists_of

DOCUMENTS = 20_000_000
MEMORY = 256 << 20
BESIDE = 96 << 20
"""For a bit per document (three times 2.5 MB), for arrays that steps hand to each other, and for holes in the heap."""

RUN = """
import json, resource, sys
from pathlib import Path
import numpy as np
from tests.dedup.generated import decide_generated

folder, documents, memory, beside = Path(sys.argv[1]), *map(int, sys.argv[2:])
decide_generated(folder / "warm", 40_000, 1)  # loads and compiles all there is
taken = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (taken + memory + beside,) * 2)  # mapped sets are not counted: they are files
try:
    one_band = np.empty((3, documents), dtype=np.uint64)
except MemoryError:
    decide_generated(folder / "all", documents, memory)
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_million_documents(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path), *map(str, (DOCUMENTS, MEMORY, BESIDE))]
    subprocess.run(command, check=True)
    folder = tmp_path / "all"

    copies = read(ExactCopies(folder, DOCUMENTS).pairs)
    assert np.array_equal(copies, expected_copies())
    candidates = Candidates(folder, DOCUMENTS)
    pairs = read(candidates.pairs)
    assert np.array_equal(pairs, expected_pairs())
    assert sorted(lists_of(candidates)) == sorted(expected_lists())
    edges = read(Resolved(folder).edges)
    assert np.array_equal(edges, expected_edges())
    assert edges.shape[1] > 1_000_000
    # Those with the licence header are not alike, and far too many to be compared with each other.
    counts = Resolved(folder).counts
    assert counts.hot_runs == BANDS
    assert 0 < counts.hot_documents <= len(documents_of(LICENCE))
    removals = read(Decisions(folder, DOCUMENTS).removals)
    assert np.array_equal(removals, expected_removals(edges, copies))


def read(rows: Rows) -> Table:
    return np.concatenate(list(rows.chunks()), axis=1)


def rank(documents: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return ranks_of(documents, values("text_bytes", documents, DOCUMENTS), "longest", against=False)


def in_order(table: Table) -> Table:
    return table[:, np.lexsort(table[::-1])]


def documents_of(kinds: range, until: int = DOCUMENTS) -> npt.NDArray[np.int64]:
    documents: npt.NDArray[np.int64] = (np.arange(0, until, 1000)[:, None] + np.array(kinds)).ravel()
    return documents


def expected_copies() -> Table:
    """(rank of the first document with the text, rank of the copy)."""
    documents = documents_of(range(100))
    first = np.array([text_of(document, DOCUMENTS) for document in documents.tolist()])
    copy = documents != first
    return in_order(np.stack([rank(first[copy]), rank(documents[copy])]))


def expected_pairs() -> Table:
    found = []
    for begin in range(0, DOCUMENTS // 4, 1_000_000):
        first = documents_of(GROUPS, 1_000_000) + begin
        group = [first + quarter * DOCUMENTS // 4 for quarter in range(4)]
        for one, other in combinations(group, 2):
            share = share_a_band(one, other)
            two = np.stack([rank(one[share]), rank(other[share])])
            found.append(np.stack([two.max(axis=0), two.min(axis=0)]))
    return in_order(np.concatenate(found, axis=1))


def expected_edges() -> Table:
    """In each group, one member after the other in keeper order; with whom it shares a band, it is compared."""
    found = []
    for begin in range(0, DOCUMENTS // 4, 1_000_000):
        first = documents_of(GROUPS, 1_000_000) + begin
        group = np.stack([first + quarter * DOCUMENTS // 4 for quarter in range(4)])
        ranks = np.stack([rank(documents) for documents in group])
        order = np.argsort(ranks, axis=0)
        group, ranks = np.take_along_axis(group, order, axis=0), np.take_along_axis(ranks, order, axis=0)
        sets, sizes = zip(*(shingles(documents, DOCUMENTS) for documents in group), strict=True)
        removed = np.zeros(group.shape, dtype=np.bool_)
        for later in range(1, 4):
            best, partner = np.zeros(len(first)), np.zeros(len(first), dtype=np.uint64)
            for earlier in range(later):
                shared = ((sets[later] == sets[earlier]) & (sets[later] != 0)).sum(axis=1)
                similarity = shared / (sizes[later] + sizes[earlier] - shared)
                better = share_a_band(group[later], group[earlier]) & ~removed[earlier] & (similarity > best)
                better &= similarity >= THRESHOLD
                best[better], partner[better] = similarity[better], ranks[earlier, better]
            gone = removed[later] = best > 0
            found.append(np.stack([ranks[later, gone], partner[gone], best[gone].view(np.uint64)]))
    return in_order(np.concatenate(found, axis=1))


def share_a_band(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    share = np.zeros(len(one), dtype=np.bool_)
    for band in range(BANDS):
        keys = [values(f"key_{band:03d}", documents, DOCUMENTS) for documents in (one, other)]
        share |= keys[0] == keys[1]
    return share


def expected_lists() -> list[list[int]]:
    """Of each band those with the key of the licence header, which is the one that most of these documents have."""
    documents = documents_of(LICENCE)
    lists = []
    for band in range(BANDS):
        keys = values(f"key_{band:03d}", documents, DOCUMENTS)
        different, counts = np.unique(keys, return_counts=True)
        lists.append(np.sort(rank(documents[keys == different[counts.argmax()]])).tolist())
    return lists


def expected_removals(near: Table, copies: Table) -> Table:
    similarities = near[2].view(np.float64).tolist()
    removed = {
        later: (earlier, value, NEAR)
        for later, earlier, value in zip(near[0].tolist(), near[1].tolist(), similarities, strict=True)
    }
    for keeper, copy in copies.T.tolist():
        removed[copy] = removed.get(keeper, (keeper, 1.0, EXACT))
    columns = list(zip(*((document, *why) for document, why in removed.items()), strict=True))
    ranks, kept = (np.array(column, dtype=np.uint64) & np.uint64(0xFFFFFFFF) for column in columns[:2])
    return in_order(
        np.stack([ranks, kept, np.array(columns[2]).view(np.uint64), np.array(columns[3], dtype=np.uint64)])
    )
