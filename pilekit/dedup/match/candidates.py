"""Candidates: documents that share the key of a band.

For each band: the keys that may occur twice are picked out in two passes over the sketches (repeated.py), sorted with
the ranks of their documents (external_sort.py), and cut into runs of equal keys. Of a run of up to 64 documents, every
pair is a candidate. A longer run is hot: its members are noted with the run's hash, and compared with representatives
of the run later. Runs end after 262,144 members.

Similar documents share many bands, so the same run comes again and again. A table of fixed size remembers the hashes of
the runs seen last; a run that it has forgotten costs time only, because rows are made distinct.

Two documents of earlier runs (bit 63 of the rank clear) are no pair: neither can be removed.

As many bands are read at a time as memory allows. Threads have bands of their own, because reading, picking and sorting
release the GIL. The result is a sorted set, so neither memory nor threads change it. 20 million documents with 21 bands
take about 30 s of CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pilekit.dedup.match.external_sort import RowSort, Table
from pilekit.dedup.match.population import Flags, Population, Ranks, ids_of
from pilekit.dedup.match.repeated import may_be_repeated, note_values, repeated_bytes, repeated_table
from pilekit.dedup.scratch_space import scratch_array
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.shingles import UInt64, mixed
from pilekit.dedup.sketch.sketch_format import ROWS_PER_GROUP, key_column
from pilekit.engine import Advance, usable_cpus
from pilekit.kernels import compiled

Int64 = npt.NDArray[np.int64]

HOT = 64
"""Runs of more documents than this are hot."""
LONGEST_RUN = 1 << 18
"""A run ends after this many members; the next member begins another."""

_OWN = np.uint64(1 << 63)
_LEAST_MEMORY = 64 << 20
"""With less for each thread, more threads would only merge more."""
_READ_PER_BAND = 3 * 8 * ROWS_PER_GROUP
"""Bytes that reading a band's keys takes."""
_SORTED_PER_DOCUMENT = 6
"""Several bands are read at once if each then has this many bytes for each document to sort."""


class Candidates:
    """What has to be compared.

    flagged   a flag for each document, by id: whether it is in a pair or in a hot run
    rows      (later rank, 0, earlier rank) of pairs and (rank, hash of the run, 0) of members of hot runs; distinct
    runs      (hash, length) of hot runs, uint64 [2, runs]; some come several times
    """

    def __init__(self, documents: int, folder: Path, memory: int):
        self.flagged: Flags = scratch_array(folder, np.bool_, documents)
        self.rows = RowSort(folder, 3, memory, distinct=True)
        self.runs: list[Table] = []

    def add(self, rows: Table, runs: Table) -> None:
        """Take rows and hot runs; they may have come before."""
        self.flagged[ids_of(rows[0])] = True
        self.flagged[ids_of(rows[2, rows[1] == 0])] = True
        self.rows.add(rows)
        if runs.shape[1]:
            self.runs.append(runs)


def find_candidates(
    population: Population,
    bands: Bands,
    copies: Flags,
    folder: Path,
    memory: int,
    *,
    jobs: int | None = None,
    advance: Advance | None = None,
) -> Candidates:
    """Find all documents that share the key of a band with another one. Close `rows` of the result when done.

    copies     a flag for each document, by id: those that take no part
    memory     bytes to use, beside the flags
    jobs       number of threads; None: the usable CPUs
    advance    receives the number of further keys read, of 2 * documents * bands in all
    """
    # Three eighths for pairs and members, a half for bands, an eighth for the runs seen last and tables in flight.
    half = memory // 2
    threads = max(1, min(usable_cpus() if jobs is None else jobs, bands.bands, half // _LEAST_MEMORY))
    share = half // threads
    candidates = Candidates(population.documents, folder, 3 * memory // 8)
    search = _Search(population, copies, folder, memory // 16, candidates, advance)
    try:
        with ThreadPoolExecutor(threads) as pool:
            groups = _groups(bands.bands, population.documents, threads, share)
            try:
                for done in as_completed([pool.submit(search.find, group, share) for group in groups]):
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                search.stopped.set()
                raise
    except BaseException:
        candidates.rows.close()
        raise
    return candidates


def _groups(bands: int, documents: int, threads: int, share: int) -> list[list[int]]:
    """The bands in groups that a thread reads at once, in `share` bytes for each thread."""
    most = max(1, share // (repeated_bytes(documents) + _SORTED_PER_DOCUMENT * documents + _READ_PER_BAND))
    turns = -(-bands // (min(most, bands) * threads))
    return [group.tolist() for group in np.array_split(np.arange(bands), min(bands, turns * threads))]


class _Stopped(Exception):
    """Another thread has failed, or the run is interrupted."""


class _Search:
    """What the threads share."""

    def __init__(
        self,
        population: Population,
        copies: Flags,
        folder: Path,
        memory: int,
        candidates: Candidates,
        advance: Advance | None,
    ):
        self.population, self.copies, self.folder, self.advance = population, copies, folder, advance
        self.candidates, self.lock, self.stopped = candidates, threading.Lock(), threading.Event()
        runs = max(1, min(population.documents, memory // 8))
        self.seen: UInt64 = np.zeros(1 << (runs.bit_length() - 1), dtype=np.uint64)

    def find(self, bands: Sequence[int], memory: int) -> None:
        """Find all candidates in these bands."""
        with ExitStack() as stack:
            for rows in self._sorts(bands, memory // len(bands) - _READ_PER_BAND, stack):
                for keys, ranks in _whole_runs(rows.chunks()):
                    self._check()
                    found = _candidates_in(keys, ranks, self.seen)
                    with self.lock:
                        self.candidates.add(*found)
                rows.close()

    def _sorts(self, bands: Sequence[int], memory: int, stack: ExitStack) -> list[RowSort]:
        """For each band the (key, rank) rows of all documents that may share their key."""
        columns = [key_column(band) for band in bands]
        size = min(repeated_bytes(self.population.documents), memory // 3)
        tables = [repeated_table(size) for _ in bands]
        for _, values in self._chunks(columns):
            for column, table in zip(columns, tables, strict=True):
                note_values(table, values[column])
        sorts = [stack.enter_context(RowSort(self.folder, 2, memory - size)) for _ in bands]
        for ranks, values in self._chunks(columns):
            for column, table, rows in zip(columns, tables, sorts, strict=True):
                some = may_be_repeated(table, values[column])
                rows.add(np.stack([values[column][some], ranks[some]]))
        return sorts

    def _chunks(self, columns: Sequence[str]) -> Iterator[tuple[Ranks, dict[str, UInt64]]]:
        """The population without exact copies."""
        for ranks, values in self.population.chunks(columns):
            self._check()
            own = ~self.copies[ids_of(ranks)]
            if not own.all():
                ranks, values = ranks[own], {name: column[own] for name, column in values.items()}
            yield ranks, values
            if self.advance is not None:
                self.advance(len(own) * len(columns))

    def _check(self) -> None:
        if self.stopped.is_set():
            raise _Stopped


def _whole_runs(tables: Iterable[Table]) -> Iterator[Table]:
    """The same rows, in tables that end where a run ends, or at a multiple of `LONGEST_RUN` of its members."""
    held = np.empty((2, 0), dtype=np.uint64)
    for table in tables:
        held = np.concatenate([held, table], axis=1)
        while cut := int(np.searchsorted(held[0], held[0, -1])) or held.shape[1] // (LONGEST_RUN + 1) * LONGEST_RUN:
            yield held[:, :cut]
            held = held[:, cut:]
    yield held


def _candidates_in(keys: UInt64, ranks: Ranks, seen: UInt64) -> tuple[Table, Table]:
    """What `Candidates.add` takes, of whole runs; runs that were seen lately are left out."""
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    lengths = np.diff(np.append(begins, len(keys)))
    for i in np.flatnonzero(lengths > LONGEST_RUN)[::-1].tolist():
        begins = np.insert(begins, i + 1, np.arange(begins[i] + LONGEST_RUN, begins[i] + lengths[i], LONGEST_RUN))
    lengths = np.diff(np.append(begins, len(keys)))
    wanted = lengths > 1
    begins, lengths = begins[wanted], lengths[wanted]
    wanted = ranks[begins + lengths - 1] >= _OWN
    begins, lengths = begins[wanted], lengths[wanted]
    hashes = _hashes(ranks, begins, lengths)
    places = hashes & np.uint64(len(seen) - 1)
    new = seen[places] != hashes
    seen[places] = hashes
    begins, lengths, hashes = begins[new], lengths[new], hashes[new]

    hot = lengths > HOT
    rows = [_pairs(ranks, begins[~hot], lengths[~hot])]
    if hot.any():
        sizes = lengths[hot]
        ends = np.cumsum(sizes)
        at = np.repeat(begins[hot] - (ends - sizes), sizes) + np.arange(ends[-1])
        rows.append(np.stack([ranks[at], np.repeat(hashes[hot], sizes), np.zeros(len(at), dtype=np.uint64)]))
    return np.concatenate(rows, axis=1), np.stack([hashes[hot], lengths[hot].astype(np.uint64)])


@compiled()
def _hashes(ranks: UInt64, begins: Int64, lengths: Int64) -> UInt64:
    """The hash of each run, of all its members."""
    found = np.empty(len(begins), dtype=np.uint64)
    for i in range(len(begins)):
        value = np.uint64(lengths[i])
        for rank in ranks[begins[i] : begins[i] + lengths[i]]:
            value = mixed(value ^ rank)
        found[i] = value
    return found


@compiled()
def _pairs(ranks: UInt64, begins: Int64, lengths: Int64) -> Table:
    """(later rank, 0, earlier rank) of all pairs of each run, but for those of two documents of earlier runs."""
    count = 0
    for length in lengths:
        count += length * (length - 1) // 2
    out = np.zeros((3, count), dtype=np.uint64)
    count = 0
    for i in range(len(begins)):
        run = ranks[begins[i] : begins[i] + lengths[i]]
        for later in range(1, len(run)):
            if run[later] >= np.uint64(1 << 63):
                for earlier in range(later):
                    out[0, count], out[2, count] = run[later], run[earlier]
                    count += 1
    return out[:, :count]
