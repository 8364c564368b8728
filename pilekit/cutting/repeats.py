"""Find the bytes of each document that an earlier document also has: two passes over the shards, a sort after each.

    anchors of each shard -> sorted -> anchors in two documents -> windows of each shard with such an anchor
        -> sorted by hash -> windows in an earlier document -> sorted by place -> parts of runs

The anchors in two documents are kept in a filter. A full filter lets more windows through, and changes no result. A
document is named by a number below 2^32 that counts the lines of all shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.external_sort import RowSort, with_first
from pilekit.corpus import Shard
from pilekit.cutting.shards import Selection, stored_rows
from pilekit.cutting.windows import AT_A_TIME, anchor_bytes, find_anchors, find_windows, pieces, tables
from pilekit.cutting.words import Int64, UInt64
from pilekit.dedup.match.repeated import may_be_repeated, note_values, repeated_bytes, repeated_table
from pilekit.shards.corpus_job import Share
from pilekit.workers import Advance

ANCHOR, WINDOW, PART = 2, 4, 4
"""Columns of rows. A part of a run: its first window and its last (document's name << 32 | byte), the earliest place
of the first, and the characters before that place."""

_NAME, _ONE = np.uint64(32), np.uint64(1)


def scan(
    shard: Shard,
    advance: Advance,
    *,
    path: Path,
    length: int,
    selection: Selection,
    share: Share,
    bases: Mapping[str, int] | None = None,
    filter: Path | None = None,
) -> tuple[dict[str, Any], list[Path]]:
    """Write the rows of a shard's anchors, or with a `filter`, of its windows; returns counts.

    An anchor's row is the anchor and the document's number. `bases`: the name of each shard's document 0.
    """
    counts, lines, rows = dict[str, Any](), 0, np.empty((WINDOW, 2 * AT_A_TIME), np.uint64)
    anchors, at, of = np.empty(2 * AT_A_TIME, np.uint64), *np.empty((2, 2 * AT_A_TIME), np.int64)
    table, part, base = tables(length), anchor_bytes(length), 0 if bases is None else bases[shard.name]
    repeated = None if filter is None else np.load(filter, mmap_mode="r").view(np.ndarray)
    with write_atomically(path) as file:
        for read_batch in selection.batches(shard, advance, counts, ahead=share.ahead):
            lines = int(read_batch.numbers[-1]) + 1 if len(read_batch) else lines
            batch = selection.compared(read_batch)
            text, counted = (*batch.utf8(), (batch.numbers + base).astype(np.uint64)), np.full(3, -1)
            for group in pieces(text[1], length):
                count = find_anchors(text[0], group, length, part, table, (anchors, at, of))
                if repeated is None:
                    found = np.stack([anchors[:count], text[2][group[2][of[:count]]]])
                else:
                    chosen = may_be_repeated(repeated, anchors[:count])
                    some = anchors[:count], at[:count], of[:count]
                    found = rows[:, : find_windows(text, group, length, table, some, chosen, counted, rows)]
                file.write(np.ascontiguousarray(found.T).data)
    return {**counts, "lines": lines}, [path]


def repeated_anchors(paths: Sequence[Path], advance: Advance, bases: Int64, scratch: Path, memory: int) -> UInt64:
    """The filter of the anchors in two documents; `paths`: the anchors of each shard, `bases`: its document 0.

    Sorting brings the documents of an anchor together. A first filter keeps anchors that occur once, which are most,
    out of the sort, and so cuts its time to a third.
    """
    size = min(repeated_bytes(sum(path.stat().st_size for path in paths) // (8 * ANCHOR)), memory // 4)
    twice, filter = repeated_table(size), repeated_table(size)
    for rows in chain.from_iterable(stored_rows(path, ANCHOR) for path in paths):
        note_values(twice, rows[:, 0])
    with RowSort(scratch, ANCHOR, memory // 2) as sort:
        for path, base in zip(paths, bases.astype(np.uint64), strict=False):
            for rows in stored_rows(path, ANCHOR):
                sort.add(rows[may_be_repeated(twice, rows[:, 0])].T + np.array([[0], [base]], np.uint64))
        for table, first in with_first(sort.chunks(), 1):
            advance(table.nbytes)
            note_values(filter, np.repeat(table[0, table[1] != first[1]], 2))
    return filter


def find_runs(
    paths: Sequence[Path],
    advance: Advance,
    bases: Int64,
    path: Path,
    scratch: Path,
    length: int,
    memory: int,
    protected: int = 0,
) -> list[int]:
    """Write the parts of all documents' runs in order; returns each shard's first part, and the number of parts.

    In a part, each window and its earliest place follow the window and the place before.

    paths     the windows of each shard
    bases     the name of each shard's document 0, and the end of all names
    scratch   the folder for sorting
    protected the number of shards, the first ones, whose documents have no runs
    """
    starts, part = np.zeros(len(bases), np.int64), np.empty((PART, 0), np.uint64)
    with RowSort(scratch, 3, memory // 3) as places, write_atomically(path) as file:
        with RowSort(scratch, WINDOW, memory // 2) as windows:
            for rows in chain.from_iterable(stored_rows(path, WINDOW) for path in paths):
                windows.add(rows.T)
            for table, first in with_first(windows.chunks(), 2):
                advance(table.nbytes)
                later = (table[2] >> _NAME != first[2] >> _NAME) & (table[2] >> _NAME >= np.uint64(bases[protected]))
                places.add(np.stack([table[2], first[2], first[3]])[:, later])
        for table in chain(places.chunks(), [np.full((3, 1), -1).astype(np.uint64)]):  # the last ends the last part
            joins = (np.diff(table[:2]) == _ONE).all(axis=0)
            begin = np.flatnonzero(np.append(True, ~joins))
            parts = np.stack([table[0, begin], table[0, np.append(begin[1:] - 1, -1)], *table[1:, begin]])
            if part.size and (parts[[0, 2], 0] - part[[0, 2], -1] == part[1] - part[0] + _ONE).all():
                parts[:, 0] = part[0, 0], parts[1, 0], *part[2:, 0]
            else:
                parts = np.concatenate([part, parts], axis=1)
            part, ended = parts[:, -1:], parts[:, :-1]
            file.write(np.ascontiguousarray(ended.T).data)
            starts += np.searchsorted(ended[0] >> _NAME, bases.astype(np.uint64))
    return [int(start) for start in starts]
