"""Candidates: documents that share the key of a band.

For each band: the keys that may occur twice are picked out in two passes over the sketches (repeated.py), sorted with
the ranks of their documents (external_sort.py), and cut into runs of equal keys. In a run of up to 64 documents, every
pair is a candidate. A longer run is hot: its members are noted with the run's hash, and compared with representatives
of the run later. Runs end after 262,144 members.

Similar documents share many bands, so the same run occurs many times. A table of fixed size remembers the hashes of
recent runs. A forgotten run costs only time, because rows are made distinct.

Two documents of earlier dedup runs (bit 63 of the rank clear) are no pair, because neither can be removed.

Each thread has bands of its own, because reading, picking and sorting release the GIL. A thread reads as many bands at
a time as memory allows, because each pass computes the ranks of all documents again. The result is a sorted set, so
neither memory nor threads change it. 20 million documents with 21 bands take about 30 s of CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.external_sort import RowSort, Table
from pilekit.dedup.match.population import Flags, Population, Ranks, ids_of
from pilekit.dedup.match.repeated import may_be_repeated, note_values, repeated_bytes, repeated_table
from pilekit.dedup.scratch_space import scratch_array
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.shingles import UInt64, mixed
from pilekit.dedup.sketch.sketch_format import key_column
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
_SORTED_PER_DOCUMENT = 8
"""Bytes in which a band's keys are mostly sorted in memory; several bands are read at once if each can have so many."""


class Candidates:
    """The documents and pairs to compare.

    flagged   a flag for each document, by id: whether it is in a pair or in a hot run
    rows      (later rank, 0, earlier rank) of pairs and (rank, hash of the run, 0) of members of hot runs; distinct
    runs      (hash, length) of hot runs, uint64 [2, runs]; some occur several times
    """

    def __init__(self, documents: int, folder: Path, memory: int):
        self.flagged: Flags = scratch_array(folder, np.bool_, documents)
        self.rows = RowSort(folder, 3, memory, distinct=True)
        self.runs: list[Table] = []

    def add(self, rows: Table, runs: Table) -> None:
        """Take rows and hot runs; repetitions are allowed."""
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

    copies     a flag for each document, by id: exact copies, which take no part
    memory     bytes to use, beside the flags
    jobs       number of threads; None: the usable CPUs
    advance    receives the number of further keys read, of 2 * documents * bands in all
    """
    # Three eighths for the rows found, a half for bands, an eighth for the runs seen last and tables in flight.
    half = memory // 2
    threads = max(1, min(usable_cpus() if jobs is None else jobs, bands.bands, half // _LEAST_MEMORY))
    candidates = Candidates(population.documents, folder, 3 * memory // 8)
    runs = max(1, min(population.documents, memory // 128))
    seen: UInt64 = np.zeros(1 << (runs.bit_length() - 1), dtype=np.uint64)
    lock, stopped = threading.Lock(), threading.Event()

    share, documents = half // threads, population.documents
    at_once = max(1, min(bands.bands, share // (repeated_bytes(documents) + _SORTED_PER_DOCUMENT * documents + 1)))
    turns = -(-bands.bands // (at_once * threads))
    groups = np.array_split(np.arange(bands.bands), min(bands.bands, turns * threads))

    def find(group: npt.NDArray[np.int64]) -> None:
        columns = [key_column(band) for band in group.tolist()]
        for rows in _sorted_keys(chunks, columns, documents, folder, share // len(columns)):
            for keys, ranks in _whole_runs(rows):
                found = _candidates_in(keys, ranks, seen)
                with lock:
                    candidates.add(*found)

    def chunks(columns: Sequence[str]) -> Iterator[tuple[Ranks, dict[str, UInt64]]]:
        """Ranks and keys of all documents but exact copies."""
        for ranks, keys in population.chunks(columns):
            if stopped.is_set():
                raise _Stopped
            if advance is not None:
                advance(len(ranks) * len(columns))
            own = ~copies[ids_of(ranks)]
            if not own.all():
                ranks, keys = ranks[own], {column: values[own] for column, values in keys.items()}
            yield ranks, keys

    try:
        with ThreadPoolExecutor(threads) as pool:
            try:
                for done in as_completed([pool.submit(find, group) for group in groups]):
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                stopped.set()
                raise
    except BaseException:
        candidates.rows.close()
        raise
    return candidates


class _Stopped(Exception):
    """Another thread has failed, or the run is interrupted."""


def _sorted_keys(
    chunks: Callable[[Sequence[str]], Iterator[tuple[Ranks, dict[str, UInt64]]]],
    columns: Sequence[str],
    documents: int,
    folder: Path,
    memory: int,
) -> Iterator[Iterator[Table]]:
    """For each column, in so much memory: (key, rank) of all documents that may share their key, ascending."""
    size = min(repeated_bytes(documents), memory // 3)
    tables = {column: repeated_table(size) for column in columns}
    for _, keys in chunks(columns):
        for column, table in tables.items():
            note_values(table, keys[column])
    with ExitStack() as stack:
        sorts = {column: stack.enter_context(RowSort(folder, 2, memory - size)) for column in columns}
        for ranks, keys in chunks(columns):
            for column, table in tables.items():
                some = may_be_repeated(table, keys[column])
                sorts[column].add(np.stack([keys[column][some], ranks[some]]))
        tables.clear()
        for rows in sorts.values():
            yield rows.chunks()
            rows.close()


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
    """The rows and hot runs of whole runs, for `Candidates.add`; recently seen runs are left out."""
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
    """(later rank, 0, earlier rank) of all pairs of each run, without pairs of two documents of earlier runs."""
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
