"""Twenty million documents in 256 MB, under a limit of the address space; and all of the result is right.

In memory, one band's keys, ranks and their order alone would take 480 MB, and there are 21 bands.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pilekit.dedup.choose import EXACT, NEAR, Decisions
from pilekit.dedup.exact import ExactCopies
from pilekit.dedup.match import Candidates
from pilekit.dedup.population import ranks_of
from pilekit.dedup.rows import Rows, Table
from tests.dedup.generated import BANDS, GROUPS, LICENCE, text_of, values
from tests.dedup.listed import lists_of

DOCUMENTS = 20_000_000
MEMORY = 256 << 20
BESIDE = 32 << 20
"""For a bit per document (three times 2.5 MB), for what is handed from step to step, and for holes in the heap."""

RUN = """
import json, resource, sys
from pathlib import Path
import numpy as np
from pilekit.dedup.bands import Bands
from pilekit.dedup.choose import choose
from pilekit.dedup.exact import find_exact
from pilekit.dedup.match import find_candidates
from tests.dedup.generated import BANDS, generated_population
from tests.dedup.test_memory import edges

def run(folder, documents, memory):
    population = generated_population(documents)
    copies = find_exact(population, folder, memory)
    candidates = find_candidates(population, Bands(BANDS, 6), copies.bits(), folder, memory, jobs=2)
    choose(edges(candidates.pairs.chunks()), copies, folder, memory)

folder, documents, memory, beside = Path(sys.argv[1]), *map(int, sys.argv[2:])
run(folder / "warm", 40_000, 1)  # loads and compiles all there is
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + memory + beside,) * 2)
try:
    one_band = np.empty((3, documents), dtype=np.uint64)
except MemoryError:
    run(folder / "all", documents, memory)
"""


def edges(tables: Iterable[Table]) -> Iterator[Table]:
    """About half of the documents in pairs go, each on account of the first that stays; with some similarity."""
    last = np.uint64(0)
    for pairs in tables:
        goes = (pairs * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(63) == 1
        later, earlier = pairs[:, goes[0] & ~goes[1] & (pairs[0] > last)]
        later, first = np.unique(later, return_index=True)
        if len(later):
            last = later[-1]
            similarity = 0.8 + (later % np.uint64(1000)).astype(np.float64) / 5000
            yield np.stack([later, earlier[first], similarity.view(np.uint64)])


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
    removals = read(Decisions(folder, DOCUMENTS).removals)
    assert np.array_equal(removals, expected_removals(next(edges([pairs])), copies))


def read(rows: Rows) -> Table:
    return np.concatenate(list(rows.chunks()), axis=1)


def rank(documents: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return ranks_of(documents, values("text_bytes", documents, DOCUMENTS), "longest", against=False)


def in_order(table: Table) -> Table:
    return table[:, np.lexsort(table[::-1])]


def documents_of(kinds: range, until: int = DOCUMENTS) -> npt.NDArray[np.int64]:
    return (np.arange(0, until, 1000)[:, None] + np.array(kinds)).ravel()


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
        keys = [[values(f"key_{band:03d}", documents, DOCUMENTS) for band in range(BANDS)] for documents in group]
        for one, other in combinations(range(4), 2):
            share = np.any([keys[one][band] == keys[other][band] for band in range(BANDS)], axis=0)
            two = np.stack([rank(group[one][share]), rank(group[other][share])])
            found.append(np.stack([two.max(axis=0), two.min(axis=0)]))
    return in_order(np.concatenate(found, axis=1))


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
