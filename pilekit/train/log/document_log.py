"""`documents/` of a run: the documents that each step trained on.

    RUN/documents/steps-F-L.rank-R-of-W.parquet    what rank R of W ranks trained on in the steps F to L

A file has a row for each piece, which is a run of one document's tokens in a row of a step. Rows of a step are numbered
over all ranks in the order of the lane grid, as `PileStream.peek` lists them. So the rows of all files, sorted by step
and row, are the same table for any number of ranks, micro-batches and workers.

Each rank writes its own files, whole or not at all, just before a checkpoint is saved, and earlier if many rows wait.
So each step up to a checkpoint is logged before the checkpoint is there. Resuming from checkpoint N cuts off the steps
after N. The log never stops a run: rows that cannot be written wait in memory, and if they become too many they are
dropped. The files' names say which steps are logged, and `pilekit seen` replays the stream for the others.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pilekit.artifacts.parquet_rows import required
from pilekit.artifacts.sealed import SealedHeader, SealedKind
from pilekit.corpus.shuffle import Int64
from pilekit.errors import PilekitError, message_logger
from pilekit.stream.read.lane_documents import NUMBER, SHARD, SUBSET

if TYPE_CHECKING:
    from pilekit.stream.batch.batch import Batch  # imports torch, which takes seconds
    from pilekit.stream.batch.without import Without
    from pilekit.stream.pack.window import Pieces
    from pilekit.stream.pile_stream import PileStream

logger = message_logger(__name__)

MOST_ROWS = 1 << 20
"""Rows that wait in memory, 64 bytes each, before they are written."""

_NAME = re.compile(r"steps-([0-9]+)-([0-9]+)\.rank-([0-9]+)-of-([0-9]+)\.parquet")
_NAMES = pa.dictionary(pa.int32(), pa.string())

SCHEMA = required(
    step=pa.int64(),
    row=pa.int64(),
    shard=_NAMES,
    number=pa.int64(),
    subset=_NAMES,
    first=pa.int64(),
    last=pa.int64(),
    ignored=pa.bool_(),
)
"""A row per piece: the step (from 1) and the row in it (from 0), the document, the piece's first and last token in the
document, from 0 (the last token of a document is its EOD), and whether its labels were ignored (`data.without`)."""


class _Header(SealedHeader, frozen=True, kw_only=True):
    format: int = 1
    part: tuple[int, int, int, int]
    """The four numbers of the file's name."""


LOG = SealedKind("a log of documents", 1, "remove it, and pilekit seen replays its steps")


class LogPart(NamedTuple):
    """A file of the log: the steps `first` to `last` of one rank."""

    first: int
    last: int
    rank: int
    world_size: int

    def path(self, folder: Path) -> Path:
        """Its file in the log's folder."""
        return folder / "steps-{}-{}.rank-{}-of-{}.parquet".format(*self)

    def write(self, folder: Path, table: pa.Table) -> None:
        """Write its rows. Raises PilekitError if they cannot be written."""
        with LOG.writing_table(self.path(folder), SCHEMA, _Header(part=self)) as writer:
            writer.write_table(table)

    def tables(self, folder: Path) -> Iterator[pa.Table]:
        """Its rows, some at a time. Raises PilekitError if a byte of the file has changed."""
        with LOG.open_table(self.path(folder), _Header) as (header, file):
            if header.part != self:
                raise LOG.damaged(self.path(folder), "its name is that of another file")
            for batch in file.iter_batches(MOST_ROWS):
                table = pa.Table.from_batches([batch])
                if "ignored" not in table.column_names:  # logs of before nothing could be ignored
                    table = table.append_column("ignored", pa.array(np.zeros(len(table), bool)))
                yield table.cast(SCHEMA)


def log_parts(folder: Path) -> list[LogPart]:
    """The files of the log in a folder, which need not exist, by their steps."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 (names are all that is needed)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PilekitError(f"{folder}: cannot be read: {error.strerror}") from error
    parts = sorted(LogPart(*map(int, match.groups())) for match in map(_NAME.fullmatch, names) if match)
    # A part that a killed resume had cut, but not removed yet, is the longer one of the same beginning.
    begun = {(part.first, part.rank, part.world_size): part for part in reversed(parts)}
    return sorted(begun.values())


def logged_steps(parts: Sequence[LogPart]) -> list[range]:
    """The steps that all ranks of a start have logged, as ranges in order."""
    changes = sorted((step, part.world_size, sign) for part in parts for step, sign in _ends(part))
    ranks: Counter[int] = Counter()
    ranges: list[range] = []
    begin = None
    for step, at_step in groupby(changes, itemgetter(0)):
        for _, world_size, sign in at_step:
            ranks[world_size] += sign
        is_whole = any(ranks[world_size] == world_size for world_size in ranks)
        if is_whole and begin is None:
            begin = step
        elif begin is not None and not is_whole:
            ranges.append(range(begin, step))
            begin = None
    return ranges


def _ends(part: LogPart) -> tuple[tuple[int, int], tuple[int, int]]:
    return (part.first, 1), (part.last + 1, -1)


def cut_back(folder: Path, step: int) -> None:
    """Remove the steps after `step`, and what killed processes have left. Raises PilekitError if that cannot be."""
    parts = log_parts(folder)
    for part in parts:
        if part.first <= step < part.last:
            rows = pa.concat_tables(table.filter(pc.field("step") <= step) for table in part.tables(folder))
            part._replace(last=step).write(folder, rows)
    try:
        kept = {part.path(folder).name for part in log_parts(folder) if part.last <= step}
        for path in [path for path in folder.glob("steps-*") if path.name not in kept]:
            path.unlink()
    except OSError as error:
        raise PilekitError(f"{folder}: cannot be cut back to step {step:,}: {error.strerror}") from error


def piece_rows(
    steps: Sequence[tuple[int, Pieces]],
    rows: Int64,
    shards: Sequence[str],
    subsets: Sequence[str],
    without: Without | None,
) -> pa.Table:
    """The table of these steps' pieces.

    rows              the number among all ranks' rows of each row of a step, increasing
    shards, subsets   the names of the pieces' shard and subset numbers
    without           the documents whose labels were ignored
    """
    counts = [len(pieces.length) for _, pieces in steps]
    table = np.concatenate([pieces.table for _, pieces in steps])
    first, length = (np.concatenate([getattr(pieces, name) for _, pieces in steps]) for name in ("begin", "length"))
    columns = {
        "step": np.repeat([step for step, _ in steps], counts),
        "row": np.concatenate([np.repeat(rows, pieces.per_row) for _, pieces in steps]),
        "shard": _named(table[:, SHARD], shards),
        "number": table[:, NUMBER],
        "subset": _named(table[:, SUBSET], subsets),
        "first": first,
        "last": first + length - 1,
        "ignored": np.zeros(len(table), bool) if without is None else without.hides(table),
    }
    return pa.table(columns, schema=SCHEMA)


def _named(numbers: Int64, names: Sequence[str]) -> pa.DictionaryArray:
    used, codes = np.unique(numbers, return_inverse=True)
    return pa.DictionaryArray.from_arrays(codes.astype(np.int32), [names[number] for number in used])


class DocumentLog:
    """Logs the batches of this rank of a stream, each a step, into the folder of a run.

    most_rows   rows that wait in memory before they are written, about 64 bytes each
    """

    def __init__(self, folder: Path, stream: PileStream, *, most_rows: int = MOST_ROWS) -> None:
        self._folder, self._most_rows, self._has_warned = folder, most_rows, False
        self._place = stream.rank, stream.world_size
        self._rows = stream.share.row_numbers(0)
        self._shards, self._subsets, self._without = stream.shard_names, stream.subset_names, stream.without
        self._waiting: list[tuple[int, Pieces]] = []
        self._count = 0

    def add(self, step: int, batch: Batch) -> None:
        """Log this rank's batch of a step."""
        pieces = batch.pieces
        self._waiting.append((step, pieces))
        self._count += len(pieces.length)
        if self._count >= self._most_rows:
            self.write()

    def write(self) -> None:
        """Write the rows that wait. If that fails, they wait on, or are dropped if they are too many: a warning."""
        if not self._waiting:
            return
        part = LogPart(self._waiting[0][0], self._waiting[-1][0], *self._place)
        is_dropped = self._count >= self._most_rows
        try:
            rows = piece_rows(self._waiting, self._rows, self._shards, self._subsets, self._without)
            part.write(self._folder, rows)
        except PilekitError as error:
            if is_dropped or not self._has_warned:
                fate = f"the documents of steps {part.first:,} to {part.last:,} " + (
                    "are not logged" if is_dropped else "wait in memory until there is room"
                )
                logger.warning("%s; training continues, %s, and pilekit seen can replay them", error, fate)
            self._has_warned = True
            if not is_dropped:
                return
        else:
            self._has_warned = False
        self._waiting, self._count = [], 0


def in_order(tables: Iterable[pa.Table]) -> pa.Table:
    """The rows of tables that each have whole rows of steps in order, sorted by step and row."""
    table = pa.concat_tables([SCHEMA.empty_table(), *tables]).unify_dictionaries()
    order = np.lexsort((table["row"].to_numpy(), table["step"].to_numpy()))  # stable: keeps the pieces of a row
    return table.take(order)
