"""`Memorised`: how many sequences of each subset a model continues word for word, and the file with each sequence.

    sequences.parquet    shard  number  subset  text  place  right  run  near_tie  bits

has a row per sequence in the order of the corpus (`SEQUENCE` in score/continuations.py says what the columns hold; text
is the xxh3_64 of the document's text), and a column for each fact that is known of documents (memorised_groups.py). It
is a sealed table: its header holds the figures and their protocol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.parquet_rows import ROWS_PER_GROUP, in_row_groups
from pilekit.artifacts.sealed import SealedHeader, SealedKind
from pilekit.corpus.sidecar_files import SEQUENCES_FILE
from pilekit.display.fitted_table import DASH, SHORTEN, Column, FittedTable, percentage
from pilekit.display.table_result import Result, TableResult
from pilekit.errors import PilekitError
from pilekit.evaluate.results.memorised_groups import GROUPS, NONE, Facts, shown_class
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result_folder import record_key
from pilekit.evaluate.results.write_items import PLACE, Items, item_rows

COLUMNS = {"place": pa.int32(), "right": pa.int32(), "run": pa.int32(), "near_tie": pa.bool_(), "bits": pa.float64()}
SCHEMA = pa.schema({**PLACE, "text": pa.uint64(), **COLUMNS})
SEQUENCES = SealedKind("a result of pilekit memorised", 1, "remove it, and the same command writes it again")
_COUNTS = ("documents", "too_short", "sequences", "memorised", "right_tokens", "run_tokens", "near_ties")
Z = 1.959964
"""The quantile of a normal distribution that leaves 2.5 % above it."""


@dataclass(frozen=True, slots=True)
class MemorisedShare(Result):
    """Counts of some sequences.

    documents      that were read
    too_short      of these, documents with fewer tokens than a sequence
    sequences      scored
    memorised      sequences whose continuation is right in all tokens
    right_tokens   tokens of all continuations that are right, the arg-max behind the tokens before them
    run_tokens     of these, tokens before the first wrong one of their continuation
    near_ties      sequences of which another size of a batch could say otherwise
    continuation   tokens in a continuation
    """

    FIGURES: ClassVar[tuple[str, ...]] = (
        *("documents", "too_short", "sequences", "memorised", "share", "interval"),
        *("right_share", "mean_run", "near_ties"),
    )

    documents: int = 0
    too_short: int = 0
    sequences: int = 0
    memorised: int = 0
    right_tokens: int = 0
    run_tokens: int = 0
    near_ties: int = 0
    continuation: int = 32

    @property
    def share(self) -> float | None:
        """Memorised sequences, of all; None if there are none."""
        return self.memorised / self.sequences if self.sequences else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval of `share`, as if sequences were independent; None if there are none."""
        if not self.sequences:
            return None
        squared, share = Z * Z / self.sequences, self.memorised / self.sequences
        middle, half = share + squared / 2, math.sqrt(squared * share * (1 - share) + squared * squared / 4)
        low, high = (middle - half) / (1 + squared), (middle + half) / (1 + squared)
        return (0.0 if not self.memorised else low, 1.0 if self.memorised == self.sequences else high)

    @property
    def right_share(self) -> float | None:
        """The mean share of a continuation's tokens that are right; None without sequences."""
        return self.right_tokens / (self.sequences * self.continuation) if self.sequences else None

    @property
    def mean_run(self) -> float | None:
        """The mean number of right tokens before the first wrong one; None without sequences."""
        return self.run_tokens / self.sequences if self.sequences else None


@dataclass(frozen=True, slots=True)
class Memorised(TableResult):
    """The result of `memorised`. `result["ArXiv"]` is the `MemorisedShare` of a subset.

    overall    all sequences together
    subsets    by name, in the manifest's order, then other labels in the order of their first documents
    protocol   all that the figures depend on, as JSON types
    groups     with copies or seen: "copies", "times_seen" and "steps_since_seen", each with the `MemorisedShare` of its
               classes by name, such as "3-4", in increasing order
    """

    FIGURES: ClassVar[tuple[str, ...]] = ("overall", "subsets", "groups", "protocol")

    overall: MemorisedShare
    subsets: dict[str, MemorisedShare]
    protocol: dict[str, Any] = field(repr=False)
    groups: dict[str, dict[str, MemorisedShare]] = field(default_factory=dict, repr=False)

    def _rows(self) -> dict[str, MemorisedShare]:
        """The counts of each subset."""
        return self.subsets

    def __repr__(self) -> str:
        return f"Memorised(memorised={self.overall.memorised:,}, sequences={self.overall.sequences:,})"

    def table(self, by: str = "subset") -> FittedTable[tuple[str, MemorisedShare]]:
        """A row per subset, and the total; or a row per class of a group, such as "copies"."""
        if by == "subset":
            return _table("Subset", self.subsets, self.overall)
        if by not in self.groups:
            raise PilekitError(f"there is no group {by!r}; there are {', '.join(['subset', *self.groups])}")
        return _table(GROUPS[by].title, {shown_class(name): share for name, share in self.groups[by].items()})

    def tables(self) -> list[FittedTable[tuple[str, MemorisedShare]]]:
        """That of subsets, and one for each group."""
        return [self.table(), *map(self.table, self.groups)]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())


def _table(
    names: str, shares: Mapping[str, MemorisedShare], total: MemorisedShare | None = None
) -> FittedTable[tuple[str, MemorisedShare]]:
    """A row for each share, its names under the title `names`, and the total."""

    def count(title: str, name: str) -> Column[tuple[str, MemorisedShare]]:
        return Column(title, lambda row: f"{getattr(row[1], name):,}")

    def interval(row: tuple[str, MemorisedShare]) -> str:
        limits = row[1].interval
        return DASH if limits is None else f"{100 * limits[0]:.2f}–{percentage(limits[1])}"

    def share(value: float | None) -> str:
        return DASH if value is None else percentage(value)

    columns = [
        Column[tuple[str, MemorisedShare]](names, lambda row: row[0]),
        count("Documents", "documents"),
        count("Too short", "too_short"),
        count("Sequences", "sequences"),
        count("Memorised", "memorised"),
        Column("Share %", lambda row: share(row[1].share)),
        Column("95 % interval", interval),
        Column("Right %", lambda row: share(row[1].right_share)),
        Column("Mean\nrun", lambda row: DASH if row[1].mean_run is None else f"{row[1].mean_run:.2f}"),
        count("Near\nties", "near_ties"),
    ]
    priority = [SHORTEN, "Documents", "Near\nties", "Too short", "Mean\nrun", "Right %"]
    return FittedTable(list(shares.items()), columns, [] if total is None else [("Overall", total)], priority)


class StoredMemorised(SealedHeader, frozen=True, kw_only=True):
    """The header of sequences.parquet: `Memorised.to_dict()`."""

    format: int = 1
    overall: dict[str, Any]
    subsets: dict[str, Any]
    groups: dict[str, Any]
    protocol: dict[str, Any]


def tallied(
    documents: Callable[[], Iterable[tuple[ScoredDocument, Items]]],
    records: Records,
    protocol: dict[str, Any],
    facts: Facts,
) -> Memorised:
    """The figures of documents, each with its sequences.

    records    of the same documents, in the same order
    protocol   with the tokens of a continuation in "sequences"
    facts      of the same documents
    """
    continuation = protocol["sequences"]["continuation"]
    counts: dict[tuple[str, str], list[int]] = {}

    def share_of(sums: list[int]) -> MemorisedShare:
        return MemorisedShare(**dict(zip(_COUNTS, sums, strict=True)), continuation=continuation)

    for place, (document, rows) in enumerate(documents()):
        memorised = (rows["run"] == continuation).sum()
        numbers = (1, not len(rows), len(rows), memorised, *(rows[name].sum() for name in ("right", "run", "near_tie")))
        classes = [(name, GROUPS[name].name(int(values[place]))) for name, values in facts.items()]
        for key in [("subset", document.subset), *classes]:
            sums = counts.setdefault(key, [0] * len(numbers))
            sums[:] = [before + int(more) for before, more in zip(sums, numbers, strict=True)]
    shares = {name: share_of(counts["subset", name]) for name in records.subsets if ("subset", name) in counts}
    total = [sum(column) for column in zip(*(sums for (by, _), sums in counts.items() if by == "subset"), strict=True)]
    groups = {
        name: {of_class: share_of(counts[name, of_class]) for of_class in _in_order(counts, name)} for name in facts
    }
    return Memorised(share_of(total), shares, protocol, groups)


def _in_order(counts: Iterable[tuple[str, str]], by: str) -> list[str]:
    """The classes of a group that occur, in increasing order."""
    return sorted((name for group, name in counts if group == by), key=GROUPS[by].place)


def write_sequences(
    out: Path, documents: Callable[[], Iterable[tuple[ScoredDocument, Items]]], result: Memorised, facts: Facts
) -> None:
    """Write sequences.parquet into the folder `out`, the whole file or none."""
    schema = pa.schema([*SCHEMA, *(pa.field(name, pa.int64()) for name in facts)])

    def rows() -> Iterator[pa.RecordBatch]:
        for place, (document, items) in enumerate(documents()):
            text = np.full(len(items), document.text, np.uint64)
            known = [None if values[place] == NONE else int(values[place]) for values in facts.values()]
            of_document = [pa.repeat(pa.scalar(value, pa.int64()), len(items)) for value in known]
            yield item_rows(document, schema, text, *(items[name] for name in COLUMNS), *of_document)

    header = StoredMemorised(**result.to_dict())
    with SEQUENCES.writing_table(out / SEQUENCES_FILE, schema, header) as writer:
        for table in in_row_groups(rows(), ROWS_PER_GROUP):
            writer.write_table(table)


class SequencesFile(NamedTuple):
    """An opened sequences.parquet.

    subsets    the names of the subsets, in their order
    protocol   of its figures
    rows       the file
    """

    subsets: list[str]
    protocol: dict[str, Any]
    rows: pq.ParquetFile

    def tables(self, *columns: str) -> Iterator[pa.Table]:
        """These columns, a row group at a time; names as plain strings."""
        schema = pa.schema([SCHEMA.field(name).with_type(_plain(SCHEMA.field(name).type)) for name in columns])
        for group in range(self.rows.num_row_groups):
            yield self.rows.read_row_group(group, list(columns)).select(columns).cast(schema)


@contextmanager
def opened_sequences(folder: str | Path) -> Iterator[SequencesFile]:
    """The sequences in the folder of a finished `memorised(..., out=folder)`.

    PilekitError if it is missing, of another kind or format, or damaged.
    """
    with SEQUENCES.open_table(Path(folder) / SEQUENCES_FILE, StoredMemorised) as (header, file):
        yield SequencesFile(list(header.subsets), header.protocol, file)


def has_sequences(out: str | Path, key: str) -> bool:
    """Whether `out` holds the finished sequences of the records of `key`."""
    try:
        with opened_sequences(out) as file:
            return record_key(file.protocol) == key
    except (PilekitError, LookupError):
        return False


def _plain(column: pa.DataType) -> pa.DataType:
    return column.value_type if pa.types.is_dictionary(column) else column
