"""Find runs of bytes of earlier documents: two passes over the shards, and a sort after each.

    anchors of each shard -> sorted -> anchors in two documents -> windows of each shard with such an anchor
        -> sorted by hash -> windows in an earlier document -> sorted by place -> runs

The anchors in two documents are kept in a filter. A full filter lets more windows through, and changes no result. A
document is named by a number below 2^32 that counts the lines of all shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.external_sort import RowSort, Table
from pilekit.corpus import Manifest, Shard
from pilekit.cutting.windows import AT_A_TIME, Int64, UInt64, find_anchors, find_windows, part_of, pieces, tables
from pilekit.dedup.deduplicated import Deduplicated
from pilekit.dedup.match.repeated import may_be_repeated, note_values, repeated_bytes, repeated_table
from pilekit.documents import MAX_SUBSETS, too_many_subsets
from pilekit.engine import Advance
from pilekit.kernels import compiled
from pilekit.shards.keep_mask import KeepMask
from pilekit.shards.read.reader import OnError, ShardReader, read

ANCHOR, WINDOW, RUN = 2, 4, 6
"""Columns of rows. A run: its document's name, its first byte, the byte behind it, and of its longest part the first
byte, the earliest place (document's name << 32 | byte), and the characters before that place."""

_NAME, _ONE = np.uint64(32), np.uint64(1)
_ROWS = 1 << 15


@dataclass(frozen=True)
class Selection:
    """The documents to read.

    subsets   subsets to compare; None: all
    only      leave out the documents of other subsets
    dedup     folder of a finished dedup, whose removed documents are left out
    """

    subsets: list[str] | None
    only: bool
    dedup: Path | None
    manifest: Manifest
    on_error: OnError

    def read(self, shard: Shard, advance: Advance, *, ahead: bool) -> ShardReader:
        """A reader of the shard."""
        chosen = self.subsets if self.only else None
        return read(shard, chosen, self.on_error, manifest=self.manifest, advance=advance, ahead=ahead)

    def mask(self, shard: Shard) -> KeepMask | None:
        """The mask of the shard's documents that the dedup kept; or None."""
        return None if self.dedup is None else Deduplicated(self.dedup).mask(shard.name)


def scan(
    shard: Shard,
    advance: Advance,
    *,
    path: Path,
    length: int,
    selection: Selection,
    ahead: bool,
    bases: Mapping[str, int] | None = None,
    filter: Path | None = None,
) -> dict[str, Any]:
    """Write the rows of a shard's anchors, or with a `filter`, of its windows; returns counts.

    An anchor's row is the anchor and the document's number. `bases`: the name of each shard's document 0.
    """
    counts, left_out, lines, rows = Counter[str](), 0, 0, np.empty((WINDOW, 2 * AT_A_TIME), np.uint64)
    anchors, at, of = np.empty(2 * AT_A_TIME, np.uint64), *np.empty((2, 2 * AT_A_TIME), np.int64)
    table, part, mask = tables(length), part_of(length), selection.mask(shard)
    base = 0 if bases is None else bases[shard.name]
    repeated = None if filter is None else np.load(filter, mmap_mode="r").view(np.ndarray)
    with write_atomically(path) as file, selection.read(shard, advance, ahead=ahead) as reader:
        for read_batch in reader:
            batch = read_batch if mask is None else read_batch.where(mask.keeps(read_batch.numbers))
            left_out += len(read_batch) - len(batch)
            lines = int(read_batch.numbers[-1]) + 1 if len(read_batch) else lines
            counts.update(batch.subsets)
            if len(counts) > MAX_SUBSETS:
                raise too_many_subsets(MAX_SUBSETS)
            if selection.subsets is not None:
                batch = batch.where([name in selection.subsets for name in batch.subsets])
            text, counted = (*batch.utf8(), (batch.numbers + base).astype(np.uint64)), np.full(3, -1)
            for group in pieces(text[1], length):
                count = find_anchors(text[0], group, length, part, table, (anchors, at, of))
                if repeated is None:
                    found = np.stack([anchors[:count], text[2][group[2][of[:count]]]])
                else:
                    chosen = may_be_repeated(repeated, anchors[:count])
                    some = anchors[:count], at[:count], of[:count]
                    found = rows[:, : find_windows(text, group, length, table, some, chosen, counted, rows)]
                for begin in range(0, found.shape[1], _ROWS):
                    file.write(np.ascontiguousarray(found[:, begin : begin + _ROWS].T).data)
    skipped = reader.passed_over()
    return {"read": dict(counts), "lines": lines, **skipped, "others": skipped["others"] + left_out}


def _stored(paths: Sequence[Path], columns: int) -> Iterator[tuple[int, Table]]:
    """The rows of files, some at a time: (index of the file, uint64 [columns, rows])."""
    for index, path in enumerate(paths):
        with path.open("rb") as file:
            while len(rows := np.fromfile(file, np.uint64, columns * _ROWS)):
                yield index, rows.reshape(-1, columns).T


def repeated_anchors(paths: Sequence[Path], advance: Advance, bases: Int64, scratch: Path, memory: int) -> UInt64:
    """The filter of the anchors in two documents; `paths`: the anchors of each shard, `bases`: its document 0.

    Sorting brings the documents of an anchor together. A first filter keeps anchors that occur once, which are most,
    out of the sort, and so cuts its time to a third.
    """
    size = min(repeated_bytes(sum(path.stat().st_size for path in paths) // (8 * ANCHOR)), memory // 4)
    twice, filter = repeated_table(size), repeated_table(size)
    for _, rows in _stored(paths, ANCHOR):
        note_values(twice, rows[0])
    with RowSort(scratch, ANCHOR, memory // 2) as sort:
        for index, rows in _stored(paths, ANCHOR):
            some = rows[:, may_be_repeated(twice, rows[0])]
            sort.add(some + np.array([[0], [bases[index]]], np.uint64))
        last = np.empty((ANCHOR, 0), np.uint64)
        for rows in sort.chunks():
            advance(rows.nbytes)
            rows = np.concatenate([last, rows], axis=1)
            again = (rows[0, 1:] == rows[0, :-1]) & (rows[1, 1:] != rows[1, :-1])
            note_values(filter, np.repeat(rows[0, 1:][again], 2))
            last = rows[:, -1:]
    return filter


def find_runs(
    paths: Sequence[Path], advance: Advance, bases: Int64, path: Path, scratch: Path, length: int, memory: int
) -> list[int]:
    """Write all documents' runs in order; returns where each shard's begin, and their number.

    paths     the windows of each shard
    bases     the name of each shard's document 0, and the end of all names
    scratch   the folder for sorting
    """
    starts = np.zeros(len(bases), np.int64)
    with RowSort(scratch, 3, memory // 3) as places, write_atomically(path) as file:
        with RowSort(scratch, WINDOW, memory // 2) as windows:
            for _, rows in _stored(paths, WINDOW):
                windows.add(rows)
            first, later = np.zeros(5, np.uint64), np.empty((3, _ROWS), np.uint64)
            for rows in windows.chunks():
                advance(rows.nbytes)
                places.add(later[:, : _later_places(rows, first, later)])
        run, runs = np.zeros(11, np.uint64), np.empty((_ROWS, RUN), np.uint64)

        def join(rows: Table) -> None:
            ended = runs[: _join(rows, length, run, runs)]
            file.write(ended.data)
            starts[:] += np.searchsorted(ended[:, 0], bases.astype(np.uint64))

        for rows in places.chunks():
            join(rows)
        join(np.full((3, 1), -1).astype(np.uint64))  # a place of no document, which ends the last run
    return [int(start) for start in starts]


@compiled()
def _later_places(rows: Table, first: UInt64, later: Table) -> int:
    """Write (place, earliest place, its characters) of each window that an earlier document has; returns how many.

    first   [hash, hash, place, characters, there is one] of the window that was met last, at its earliest place
    """
    written = 0
    for i in range(rows.shape[1]):
        if not first[4] or rows[0, i] != first[0] or rows[1, i] != first[1]:
            first[:4], first[4] = rows[:, i], _ONE
        elif rows[2, i] >> _NAME != first[2] >> _NAME:
            later[0, written], later[1, written], later[2, written] = rows[2, i], first[2], first[3]
            written += 1
    return written


@compiled()
def _join(rows: Table, length: int, run: UInt64, runs: UInt64) -> int:
    """Write the runs that these windows end; returns how many. A run is ended by a window that does not touch it.

    run   the open one: [is there one, its first window, its last, that one's earliest place, the first window of the
          part that it ends, earliest place and characters of that, windows of the longest part, and its first window,
          earliest place and characters]
    """
    low, written = np.uint64(0xFFFFFFFF), 0
    for i in range(rows.shape[1]):
        place, earliest = rows[0, i], rows[1, i]
        joins = run[0] and place >> _NAME == run[1] >> _NAME and place <= run[2] + np.uint64(length)
        if not (joins and place == run[2] + _ONE and earliest == run[3] + _ONE):
            if run[0] and run[2] - run[4] + _ONE > run[7]:
                run[7], run[8:11] = run[2] - run[4] + _ONE, run[4:7]
            if not joins:
                if run[0]:
                    runs[written, 0], runs[written, 1] = run[1] >> _NAME, run[1] & low
                    runs[written, 2], runs[written, 3] = (run[2] & low) + np.uint64(length), run[8] & low
                    runs[written, 4:6] = run[9:11]
                    written += 1
                run[0], run[1], run[7] = _ONE, place, np.uint64(0)
            run[4], run[5], run[6] = place, earliest, rows[2, i]
        run[2], run[3] = place, earliest
    return written
