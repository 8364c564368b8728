"""Find the bytes of each document that an earlier document also has, and turn their runs into cuts of whole words.

    anchors of each shard -> sorted -> anchors in two documents -> windows of each shard with such an anchor
        -> sorted by hash -> windows in an earlier document -> sorted by place -> parts of runs -> cuts of each shard

The shards are read twice, and a sort follows each pass. The anchors in two documents are kept in a filter. A full
filter lets more windows through, and changes no result. A document is named by a number below 2^32 that counts the
lines of all shards.

A cut begins where a word begins and ends where one ends, so the words before and after it stay apart. The cuts are the
rows of `repeats.parquet`.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.parquet_rows import required, write_rows
from pilekit.artifacts.sort.external_sort import RowSort, with_first
from pilekit.artifacts.sort.repeated_values import may_be_repeated, note_values, repeated_bytes, repeated_table
from pilekit.artifacts.sort.scratch_files import Scratch
from pilekit.corpus import Shard
from pilekit.cutting.shards import CutScope, Spans, stored_rows
from pilekit.cutting.windows import anchor_bytes, find_anchors, find_windows, pieces, tables
from pilekit.cutting.words import Int64, UInt64, characters_before
from pilekit.shards.corpus_job import Share
from pilekit.shards.random_access.document_reader import DocumentReader
from pilekit.workers import Advance

ANCHOR, WINDOW, PART = 2, 4, 4
"""Columns of rows. A part of a run: its first window and its last (document's name << 32 | byte), the earliest place
of the first, and the characters before that place."""

_NAME, _ONE = np.uint64(32), np.uint64(1)


@dataclass(frozen=True)
class Scan:
    """Writes the rows of a shard's anchors, or with a `filter`, of its windows; returns counts.

    An anchor's row is the anchor and the document's number.

    bases       the name of each shard's document 0
    at_a_time   see `pieces`
    """

    length: int
    scope: CutScope
    bases: Mapping[str, int] | None = None
    filter: Path | None = None
    at_a_time: int = 1 << 18

    def __call__(
        self, shard: Shard, advance: Advance, /, *, path: Path, share: Share
    ) -> tuple[dict[str, Any], list[Path]]:
        """Write the rows to the file at `path`."""
        length, scope, counts, lines = self.length, self.scope, dict[str, Any](), 0
        most = 2 * self.at_a_time
        rows = np.empty((WINDOW, most), np.uint64)
        values, begins, piece_of = np.empty(most, np.uint64), *np.empty((2, most), np.int64)
        table, part, base = tables(length), anchor_bytes(length), 0 if self.bases is None else self.bases[shard.name]
        repeated = None if self.filter is None else np.load(self.filter, mmap_mode="r").view(np.ndarray)
        with write_atomically(path) as file:
            for read_batch in scope.batches(shard, advance, counts, ahead=share.ahead):
                lines = int(read_batch.numbers[-1]) + 1 if len(read_batch) else lines
                batch = scope.compared(read_batch)
                text, counted = (*batch.utf8(), (batch.numbers + base).astype(np.uint64)), np.full(3, -1)
                for group in pieces(text[1], length, self.at_a_time):
                    count = find_anchors(text[0], group, length, part, table, (values, begins, piece_of))
                    anchors = values[:count], begins[:count], piece_of[:count]
                    if repeated is None:
                        written = np.stack([anchors[0], text[2][group[2][anchors[2]]]])
                    else:
                        chosen = may_be_repeated(repeated, anchors[0])
                        written = rows[:, : find_windows(text, group, length, table, anchors, chosen, counted, rows)]
                    file.write(np.ascontiguousarray(written.T).data)
        return {**counts, "lines": lines}, [path]


def repeated_anchors(paths: Sequence[Path], advance: Advance, bases: Int64, scratch: Scratch) -> UInt64:
    """The filter of the anchors in two documents; `paths`: the anchors of each shard, `bases`: its document 0.

    Sorting brings the documents of an anchor together. A first filter keeps anchors that occur once, which are most,
    out of the sort, and so cuts its time to a third.
    """
    size = min(repeated_bytes(sum(path.stat().st_size for path in paths) // (8 * ANCHOR)), scratch.memory // 4)
    twice, filter = repeated_table(size), repeated_table(size)
    for rows in chain.from_iterable(stored_rows(path, ANCHOR) for path in paths):
        note_values(twice, rows[:, 0])
    with RowSort(scratch.folder, ANCHOR, scratch.memory // 2) as sort:
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
    scratch: Scratch,
    protected: int = 0,
) -> list[int]:
    """Write the parts of all documents' runs in order; returns each shard's first part, and the number of parts.

    In a part, each window and its earliest place follow the window and the place before.

    paths     the windows of each shard
    bases     the name of each shard's document 0, and the end of all names
    protected the number of shards, the first ones, whose documents have no runs
    """
    starts, part = np.zeros(len(bases), np.int64), np.empty((PART, 0), np.uint64)
    with RowSort(scratch.folder, 3, scratch.memory // 3) as places, write_atomically(path) as file:
        with RowSort(scratch.folder, WINDOW, scratch.memory // 2) as windows:
            for rows in chain.from_iterable(stored_rows(path, WINDOW) for path in paths):
                windows.add(rows.T)
            for table, first in with_first(windows.chunks(), 2):
                advance(table.nbytes)
                later = (table[2] >> _NAME != first[2] >> _NAME) & (table[2] >> _NAME >= np.uint64(bases[protected]))
                places.add(np.stack([table[2], first[2], first[3]])[:, later])
        for table in chain(places.chunks(), [np.full((3, 1), -1).astype(np.uint64)]):  # the last ends the last part
            # A window continues a part if it and its earliest place both follow those before.
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


_TEXT, _INT = pa.string(), pa.int64()
ROWS = required(
    **{"shard": _TEXT, "number": _INT, "subset": _TEXT, "start": _INT, "end": _INT},
    **{"first_shard": _TEXT, "first_number": _INT, "first_start": _INT, "bytes": _INT},
)
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_BYTE = 0xFFFFFFFF


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """The part of `text[start:end]` from its first whole word to its last; start equals end if there is none."""
    words = text[start:end]
    if words and start and not (text[start - 1].isspace() or words[0].isspace()):
        words = "".join(words.split(None, 1)[1:])
    words = words.lstrip()
    start = end - len(words)
    if words and end < len(text) and not (text[end].isspace() or words[-1].isspace()):
        words = "".join(words.rsplit(None, 1)[:-1])
    return start, start + len(words.rstrip())


def without(text: str, spans: Spans) -> list[str]:
    """The rest of a text, as one piece; none without letter or digit."""
    borders = [0, *(place for span in spans for place in span), len(text)]
    remainder = "".join(text[begin:end] for begin, end in zip(borders[::2], borders[1::2], strict=True))
    return [remainder] if _LETTER_OR_DIGIT.search(remainder) else []


def cuts_of(text: str, parts: Sequence[Sequence[int]], length: int) -> Iterator[tuple[int, int, int, int]]:
    """(start, end, name of the earliest document, start there) of each run that holds a word, from a document's parts.

    Parts that touch or overlap are a run. Its earliest place is that of its longest part.
    """
    data, runs = np.frombuffer(text.encode(), np.uint8), list[list[Sequence[int]]]()
    for part in parts:
        if not runs or part[0] > runs[-1][-1][1] + length:
            runs.append([])
        runs[-1].append(part)
    longest = [max(run, key=lambda part: part[1] - part[0]) for run in runs]
    # The places in the text: the first and the last byte of each run and the first one of its longest part.
    places = [
        (run[0][0] & _BYTE, (run[-1][1] & _BYTE) + length, part[0] & _BYTE)
        for run, part in zip(runs, longest, strict=True)
    ]
    ascending = np.unique([0, *(place for of_run in places for place in of_run)])
    characters = dict(zip(ascending.tolist(), characters_before(data, ascending).tolist(), strict=True))
    for (begin, end, at), (_, _, first, before) in zip(places, longest, strict=True):
        is_inside = end < len(data) and (data[end] & 0xC0) == 0x80  # a character that the run has only partly
        start, stop = whole_words(text, characters[begin], max(characters[begin], characters[end] - is_inside))
        if start < stop:
            yield start, stop, first >> 32, before + max(0, start - characters[at])


@dataclass(frozen=True)
class LocateCuts:
    """Writes the table of a shard's cuts.

    parts    the file of the parts of all runs
    starts   where the parts of each shard begin in it
    bases    the name of each shard's document 0
    length   the shortest run of bytes
    """

    parts: Path
    starts: Sequence[int]
    bases: Mapping[str, int]
    length: int
    scope: CutScope

    def __call__(
        self, shard: Shard, advance: Advance, /, *, path: Path, share: Share
    ) -> tuple[dict[str, Any], list[Path]]:
        """Write the table to the file at `path`. Few documents are read, so `share` is unused."""
        names, firsts, base = list(self.bases), list(self.bases.values()), self.bases[shard.name]
        begin, end = self.starts[names.index(shard.name) :][:2]
        rows = np.empty((0, PART), np.uint64)
        if begin < end:
            rows = np.memmap(self.parts, np.uint64, "r").reshape(-1, PART)[begin:end]
        numbers, begins = np.unique(rows[:, 0] >> np.uint64(32), return_index=True)

        def cuts(reader: DocumentReader) -> Iterator[tuple[Any, ...]]:
            documents = reader.increasing(numbers.astype(np.int64) - base)
            for document, (first_row, last_row) in zip(documents, pairwise([*begins, len(rows)]), strict=True):
                parts = rows[first_row:last_row].tolist()
                for start, stop, first, first_start in cuts_of(document.text, parts, self.length):
                    earliest, size = bisect(firsts, first) - 1, len(document.text[start:stop].encode())
                    place = names[earliest], first - firsts[earliest], first_start
                    yield shard.name, document.number, document.subset, start, stop, *place, size

        with closing(DocumentReader(shard, None, manifest=self.scope.manifest, advance=advance)) as reader:
            return {}, [write_rows(path, ROWS, cuts(reader))]
