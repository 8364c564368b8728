"""Matching: documents of equal text (exact copies), and documents that share the key of a band (candidates).

Both pick the values that may occur twice in two passes over the sketches (artifacts/sort/repeated_values.py) and sort
these with the ranks of their documents (document_table.py defines ranks).

Exact copies are found by the 128-bit hashes of their texts. Of each text, the first document in keeper order stands for
all its copies, and only this document is matched further. A text that occurs a million times costs a million rows here
and one document afterwards. With 210 million documents, two different texts share a hash with probability 10^-22.

A sketch has one key per band for each document. Sorted, equal keys form a run. In a run of up to 64 documents, every
pair is a candidate. A longer run is hot: its members are noted with the run's hash, and later compared with
representatives of the run (resolve.py). A run ends after 262,144 members.

Similar documents share many bands, so the same run occurs many times. A table of fixed size remembers the hashes of
recent runs. A forgotten run costs only time, because rows are made distinct.

Two fixed documents, of earlier runs or protected shards (bit 63 of the rank is clear), are not a pair: neither can be
removed.

Each thread has bands of its own, because reading, picking and sorting release the GIL. A thread reads as many bands at
a time as memory allows, because each pass computes the ranks of all documents again. The result is a sorted set, so
neither memory nor threads change it. 20 million documents with 21 bands take about 30 s of CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from pilekit.artifacts.sort.external_sort import RowSort, Table, whole_runs, with_first
from pilekit.artifacts.sort.repeated_values import repeated_bytes, repeated_rows
from pilekit.artifacts.sort.scratch_files import Scratch, scratch_array
from pilekit.dedup.document_table import REMOVABLE, DocumentTable, Flags, Ranks, ids_of
from pilekit.dedup.sketch.shingles import Int64, UInt64, mixed
from pilekit.dedup.sketch.sketch_format import key_column
from pilekit.workers import Advance, usable_cpus
from pilekit.workers.kernels import compiled

HOT = 64
"""Runs of more documents than this are hot."""
LONGEST_RUN = 1 << 18
"""A run ends after this many members; the next member begins another."""

_LEAST_MEMORY = 64 << 20
"""With less memory for each thread, more threads would only merge more."""
_SORTED_PER_DOCUMENT = 8
"""Bytes that mostly suffice to sort a band's keys in memory; several bands are read at once if each gets this many."""


class Candidates:
    """The documents and pairs to compare.

    flagged   a flag for each document, by id: whether it is in a pair or in a hot run
    count     rows taken, repetitions included
    rows      (later rank, 0, earlier rank) of pairs and (rank, hash of the run, length) of members of hot runs,
              distinct; only the row of a run's first member has the length, the others have 0
    runs      (hash, length) of hot runs, uint64 [2, runs]; some occur several times
    """

    def __init__(self, documents: int, folder: Path, memory: int):
        self.flagged: Flags = scratch_array(folder, np.bool_, documents)
        self.rows, self.count = RowSort(folder, 3, memory, distinct=True), 0
        self.runs: list[Table] = []

    def flag(self, rows: Table) -> None:
        """Flag the documents of rows, and count the rows."""
        self.count += rows.shape[1]
        self.flagged[ids_of(rows[0])] = True
        self.flagged[ids_of(rows[2, rows[1] == 0])] = True

    def add(self, rows: Table) -> None:
        """Take rows; repetitions are allowed."""
        self.flag(rows)
        self.rows.add(rows)
        is_pair = rows[1] == 0
        if not is_pair.all():
            self.runs.append(rows[1:, ~is_pair & (rows[2] > 0)])


def find_candidates(
    document_table: DocumentTable,
    bands: Sequence[int],
    copies: Flags,
    scratch: Scratch,
    *,
    jobs: int | None = None,
    advance: Advance = lambda amount: None,
) -> Candidates:
    """Find all documents that share a key of one of `bands` with another. Close `rows` of the result when done.

    copies     a flag for each document, by id: exact copies, which take no part
    scratch    flags are in addition to its memory
    jobs       number of threads; None: the usable CPUs
    advance    receives the number of further keys read, of 2 * documents * bands in all
    """
    # Three eighths for the rows found, a half for bands, an eighth for the runs seen last and tables in flight.
    documents, (folder, memory) = document_table.documents, scratch
    for_bands = memory // 2
    threads = max(1, min(usable_cpus() if jobs is None else jobs, len(bands), for_bands // _LEAST_MEMORY))
    candidates = Candidates(documents, folder, 3 * memory // 8)
    remembered = max(1, min(documents, memory // 128))
    # The size is a power of two, because `_candidates_in` takes the low bits of a hash as its place.
    last_runs: UInt64 = np.zeros(1 << (remembered.bit_length() - 1), dtype=np.uint64)
    lock, stopped = threading.Lock(), threading.Event()

    per_thread, per_band = for_bands // threads, repeated_bytes(documents) + _SORTED_PER_DOCUMENT * documents + 1
    bands_at_once = max(1, min(len(bands), per_thread // per_band))
    turns = -(-len(bands) // (bands_at_once * threads))
    groups = np.array_split(bands, min(len(bands), turns * threads))

    def find(group: Int64) -> None:
        columns = [[key_column(band)] for band in group.tolist()]
        for rows in repeated_rows(chunks, columns, documents, Scratch(folder, per_thread // len(columns))):
            for keys, ranks in whole_runs(rows, LONGEST_RUN):
                new_rows = _candidates_in(keys, ranks, last_runs)
                with lock:
                    candidates.add(new_rows)

    def chunks(columns: Sequence[str]) -> Iterator[tuple[Ranks, dict[str, UInt64]]]:
        """Ranks and keys of all documents except exact copies."""
        for ranks, keys in document_table.chunks(columns):
            if stopped.is_set():
                raise _OtherThreadFailed
            advance(len(ranks) * len(columns))
            distinct = ~copies[ids_of(ranks)]
            if not distinct.all():
                ranks, keys = ranks[distinct], {column: values[distinct] for column, values in keys.items()}
            yield ranks, keys

    try:
        with ThreadPoolExecutor(threads) as pool:
            try:
                for search in as_completed([pool.submit(find, group) for group in groups]):
                    search.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                stopped.set()
                raise
    except BaseException:
        candidates.rows.close()  # after the pool has ended: no thread adds rows any more
        raise
    return candidates


class _OtherThreadFailed(Exception):
    """Another thread has failed, or the run is interrupted."""


def _candidates_in(keys: UInt64, ranks: Ranks, last_runs: UInt64) -> Table:
    """The rows of whole runs, for `Candidates.add`; recently seen runs are left out."""
    begins, lengths = _runs_in(keys)
    has_removable = ranks[begins + lengths - 1] >= REMOVABLE  # The last member has the highest rank.
    begins, lengths = begins[has_removable], lengths[has_removable]
    hashes = _hashes(ranks, begins, lengths)
    places = hashes & np.uint64(len(last_runs) - 1)
    new = last_runs[places] != hashes
    last_runs[places] = hashes
    begins, lengths, hashes = begins[new], lengths[new], hashes[new]

    hot = lengths > HOT
    rows = [_pairs(ranks, begins[~hot], lengths[~hot])]
    if hot.any():
        sizes = lengths[hot]
        ends = np.cumsum(sizes)
        members = np.repeat(begins[hot] - (ends - sizes), sizes) + np.arange(ends[-1])
        length_at_first = np.zeros(len(members), dtype=np.uint64)
        length_at_first[ends - sizes] = sizes
        rows.append(np.stack([ranks[members], np.repeat(hashes[hot], sizes), length_at_first]))
    return np.concatenate(rows, axis=1)


def _runs_in(keys: UInt64) -> tuple[Int64, Int64]:
    """(begins, lengths) of the runs of at least two equal keys."""
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    lengths = np.diff(np.append(begins, len(keys)))
    return begins[lengths > 1], lengths[lengths > 1]


@compiled()
def _hashes(ranks: UInt64, begins: Int64, lengths: Int64) -> UInt64:
    """A hash of each run, made of all its members."""
    hashes = np.empty(len(begins), dtype=np.uint64)
    for i in range(len(begins)):
        value = np.uint64(lengths[i])
        for rank in ranks[begins[i] : begins[i] + lengths[i]]:
            value = mixed(value ^ rank)
        hashes[i] = value
    return hashes


@compiled()
def _pairs(ranks: UInt64, begins: Int64, lengths: Int64) -> Table:
    """(later rank, 0, earlier rank) of all pairs of each run, except pairs of fixed documents."""
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


def find_exact(document_table: DocumentTable, scratch: Scratch, part: tuple[int, int] = (0, 1)) -> Iterator[Table]:
    """All copies, as tables of (rank of the document that stands for the text, rank of the copy).

    Copies among fixed documents are included: they take no part in matching, but are not removed.

    part   (i, n): only texts whose hash is in the i-th of n equal ranges, counted from 0
    """

    def chunks(columns: Sequence[str]) -> Iterator[tuple[Ranks, dict[str, UInt64]]]:
        for ranks, values in document_table.chunks(columns):
            # The high half of the hash, as a fraction of all, falls in one of n equal ranges.
            in_range = (values["hash_low"] >> np.uint64(32)) * np.uint64(part[1]) >> np.uint64(32) == part[0]
            yield ranks[in_range], {name: column[in_range] for name, column in values.items()}

    columns, sorting = [["hash_low", "hash_high"]], Scratch(scratch.folder, 3 * scratch.memory // 4)
    read, documents = document_table.chunks if part[1] == 1 else chunks, -(-document_table.documents // part[1])
    for tables in repeated_rows(read, columns, documents, sorting):
        for rows, first in with_first(tables, 2):
            yield np.stack([first[2], rows[2]])[:, first[2] != rows[2]]
