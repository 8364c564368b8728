"""Candidate pairs: documents that share the key of a band, each pair once.

Per band: the keys that may occur twice are picked out in two passes over the sketches (repeated.py), sorted with the
ranks of their documents (spill.py), and their runs walked (runs.py). What is found in all bands goes into one sort of
pairs, which drops repetitions. The passes read as many bands at a time as memory allows; threads have bands of their
own, because reading, picking, sorting and walking all release the GIL.

The result is a set of pairs in order, and a set of lists in order: neither memory nor threads can change it.

20 million documents with 21 bands take 28 s of processor time, half of it in picking, and cost grows linearly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pilekit.dedup.bits import Bits, get_bits, no_bits, read_bits, set_bits, write_bits
from pilekit.dedup.match.external_sort import RowSort
from pilekit.dedup.match.large_groups import HotLists, HotRuns
from pilekit.dedup.match.population import Population, Ranks, ids_of
from pilekit.dedup.match.repeated import Repeated
from pilekit.dedup.match.rows import Rows, Table, write_rows
from pilekit.dedup.match.runs import seen_runs, walk_runs
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.shingles import UInt64
from pilekit.dedup.sketch.sketch_format import ROWS_PER_GROUP, key_column
from pilekit.engine import Advance, usable_cpus

_LEAST_MEMORY = 64 << 20
"""With less, a thread would do little else than merge."""

_READ_PER_BAND = 3 * 8 * ROWS_PER_GROUP
"""What reading a band's keys takes, from the file to the kernel."""

_SORTED_PER_DOCUMENT = 6
"""Several bands are read at once if each can then have so many bytes per document for sorting: enough for the 12 % of
the documents that are not told from others and a few that share a key."""

_BITS = "candidates.bits"


@dataclass(frozen=True)
class Candidates:
    """What has to be compared, on disk."""

    folder: Path
    documents: int

    @property
    def pairs(self) -> Rows:
        """(later rank, earlier rank) of all candidate pairs, ascending, each once."""
        return Rows(self.folder / "pairs.rows", 2)

    @property
    def hot(self) -> HotRuns:
        """Lists of more than 64 documents that share a band; their pairs are not in `pairs` on that account."""
        return HotRuns.of(self.folder)

    def bits(self) -> Bits:
        """A bit for each document, set for those in a pair or a list; by id."""
        return read_bits(self.folder / _BITS, self.documents)


def find_candidates(
    population: Population,
    bands: Bands,
    copies: Bits,
    folder: Path,
    memory: int,
    *,
    jobs: int | None = None,
    advance: Advance | None = None,
) -> Candidates:
    """Find all pairs of documents that share the key of a band, and write them into `folder`.

    copies     a bit for each document, set for those that take no part; by id
    memory     bytes that may be used, beside two bits for each document
    jobs       how many threads; None: the usable CPUs
    advance    receives the number of further keys read, of 2 * documents * bands in all

    Files of the same population that are complete are taken as they are.
    """
    candidates = Candidates(folder, population.documents)
    if candidates.pairs.path.exists():
        return candidates
    folder.mkdir(parents=True, exist_ok=True)
    # A quarter for pairs, a half for bands, an eighth for lists and runs seen lately, the rest for what is on its way.
    quarter = memory // 4
    threads = max(1, min(usable_cpus() if jobs is None else jobs, bands.bands, 2 * quarter // _LEAST_MEMORY))
    share = 2 * quarter // threads
    with RowSort(folder, 2, quarter, distinct=True) as pairs, HotLists(folder, quarter // 4) as hot:
        search = _Search(
            population, copies, folder, seen_runs(population.documents, quarter // 4), pairs, hot, advance or _ignore
        )
        _in_threads(search, _groups(bands.bands, population.documents, threads, share), threads, share)
        bits = no_bits(population.documents)
        for table in hot.write().members.chunks():
            set_bits(bits, ids_of(table[0]))
        # The pairs get their name last: when they are there, all is.
        write_rows(candidates.pairs.path, 2, _noting(pairs.chunks(), bits, folder / _BITS))
    return candidates


def _noting(pairs: Iterator[Table], bits: Bits, path: Path) -> Iterator[Table]:
    """The same pairs; sets the bits of their documents, and writes them when all have come."""
    for table in pairs:
        set_bits(bits, ids_of(table[0]))
        set_bits(bits, ids_of(table[1]))
        yield table
    write_bits(path, bits)


def _groups(bands: int, documents: int, threads: int, share: int) -> list[list[int]]:
    """The bands in groups that a thread reads at once, of `share` bytes for each thread."""
    most = max(1, share // (Repeated.memory(documents) + _SORTED_PER_DOCUMENT * documents + _READ_PER_BAND))
    turns = -(-bands // (min(most, bands) * threads))
    return [group.tolist() for group in np.array_split(np.arange(bands), min(bands, turns * threads))]


def _in_threads(search: _Search, groups: list[list[int]], threads: int, share: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        try:
            for done in as_completed([pool.submit(search.find, group, share) for group in groups]):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            search.stopped.set()
            raise


class _Stopped(Exception):
    """Another thread has failed, or the whole is interrupted."""


class _Search:
    """What the threads share."""

    def __init__(
        self,
        population: Population,
        copies: Bits,
        folder: Path,
        seen: UInt64,
        pairs: RowSort,
        hot: HotLists,
        advance: Advance,
    ):
        self.population, self.copies, self.folder, self.seen = population, copies, folder, seen
        self.pairs, self.hot, self.advance = pairs, hot, advance
        self.lock, self.stopped = threading.Lock(), threading.Event()

    def find(self, bands: Sequence[int], memory: int) -> None:
        """Find all candidates in these bands."""
        each = memory // len(bands) - _READ_PER_BAND
        with ExitStack() as stack:
            sorts = self._sorts(bands, each, stack)
            for band, rows in zip(bands, sorts, strict=True):
                for found in walk_runs(rows.chunks(), self.seen):
                    self._check()
                    with self.lock:
                        self.pairs.add(found.pairs)
                        self.hot.add(band, found)
                rows.close()

    def _sorts(self, bands: Sequence[int], memory: int, stack: ExitStack) -> list[RowSort]:
        """For each band, with so much memory, the (key, rank) rows of all documents that may share their key."""
        documents, columns = self.population.documents, [key_column(band) for band in bands]
        table = min(Repeated.memory(documents), memory // 3)
        repeated = [Repeated(documents, table) for _ in bands]
        for _, values in self._chunks(columns):
            for column, one in zip(columns, repeated, strict=True):
                one.note(values[column])
        sorts = [stack.enter_context(RowSort(self.folder, 2, memory - table)) for _ in bands]
        for ranks, values in self._chunks(columns):
            for column, one, rows in zip(columns, repeated, sorts, strict=True):
                some = one.among(values[column])
                rows.add(np.stack([values[column][some], ranks[some]]))
        return sorts

    def _chunks(self, columns: Sequence[str]) -> Iterator[tuple[Ranks, dict[str, UInt64]]]:
        """The population without exact copies."""
        for ranks, values in self.population.chunks(columns):
            self._check()
            own = ~get_bits(self.copies, ids_of(ranks))
            if not own.all():
                ranks, values = ranks[own], {name: column[own] for name, column in values.items()}
            yield ranks, values
            self.advance(len(own) * len(columns))

    def _check(self) -> None:
        if self.stopped.is_set():
            raise _Stopped


def _ignore(amount: int) -> None:
    pass
