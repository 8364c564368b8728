"""`removed.parquet`: every removed document, the kept one that it resembles, and how much: the proof of each removal.

Decisions are ids; here they become names. Both documents of a removal are looked up in the sketches, which are gone
through twice in the order of ids, the kept documents' side sorted in between. So memory does not depend on how many
documents there are or are removed; rows come in the order of (shard, number), in groups of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit import __version__
from pilekit.artifacts.atomic_write import write_atomically
from pilekit.dedup.match.external_sort import RowSort
from pilekit.dedup.match.population import Population
from pilekit.dedup.match.rows import AT_A_TIME, Table
from pilekit.dedup.output.merge_removals import EXACT, Decisions

FORMAT = 1
REASONS = ("exact", "near")
CORPORA = ("this", "against")

_NAMES = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        pa.field(name, type, nullable=False)
        for name, type in {
            "shard": _NAMES,
            "number": pa.int64(),
            "subset": _NAMES,
            "kept_shard": _NAMES,
            "kept_number": pa.int64(),
            "kept_subset": _NAMES,
            "similarity": pa.float64(),
            "reason": _NAMES,
            "kept_corpus": _NAMES,
        }.items()
    ]
)

_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)


@dataclass
class RemovedCounts:
    """How many documents were removed, and how many bytes of text: by subset, of exact copies and of near-duplicates.

    repeated    exact copies that are repeated on purpose: those for which `is_repeated` was true
    """

    documents: dict[str, tuple[int, int]] = field(default_factory=dict)
    bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    repeated: int = 0


def write_removed(
    path: Path,
    population: Population,
    decisions: Decisions,
    scratch: Path,
    memory: int,
    *,
    header: Mapping[str, Any],
    is_repeated: Callable[[str, str], bool],
) -> RemovedCounts:
    """Write all removals to `path`.

    scratch       folder for what memory does not hold
    header        what the file is to say that it was made of
    is_repeated   whether copies in this shard (its name) and this subset are there on purpose
    """
    shards = [sketch.header.shard for sketch in population.sketches]
    earlier = int(np.searchsorted(population.base, population.first_own, side="left"))
    names = list(dict.fromkeys(shards))
    name_of = np.array([names.index(shard) for shard in shards] if len(names) < len(shards) else range(len(shards)))
    labels = sorted({label for sketch in population.sketches for label in sketch.subset_names})
    counts = np.zeros((2, 2, len(labels)), dtype=np.int64)  # documents or bytes, reason, label
    repeated = 0

    def columns(tables: Iterable[Table]) -> Iterator[pa.Table]:
        """Rows (removed id, kept id, number and label of the kept, similarity, reason, number and label) as Arrow."""
        for removed, kept, kept_document, similarity, reason, document in tables:
            kept_place = np.searchsorted(population.base, kept.astype(np.int64), side="right") - 1
            place = np.searchsorted(population.base, removed.astype(np.int64), side="right") - 1
            against = (kept.astype(np.int64) < population.first_own).astype(np.int32)
            yield pa.Table.from_arrays(
                [
                    _named(name_of[place], names),
                    pa.array((document & _LOW).astype(np.int64)),
                    _named(document >> _HIGH, labels),
                    _named(name_of[kept_place], names),
                    pa.array((kept_document & _LOW).astype(np.int64)),
                    _named(kept_document >> _HIGH, labels),
                    pa.array(similarity.view(np.float64)),
                    _named(reason, REASONS),
                    _named(against, CORPORA),
                ],
                schema=SCHEMA,
            )

    def kept_known(by_kept: RowSort) -> Iterator[Table]:
        for _, rows, found in _looked_up(population, by_kept.chunks(), labels, ["number", "subset"]):
            kept, removed, similarity, reason = rows
            yield np.stack([removed, kept, _document(found), similarity, reason])

    def both_known(by_removed: RowSort) -> Iterator[Table]:
        nonlocal repeated
        wanted = ["number", "subset", "text_bytes"]
        for place, rows, found in _looked_up(population, by_removed.chunks(), labels, wanted):
            reason, label = rows[4].astype(np.int64), found["subset"]
            np.add.at(counts[0], (reason, label), 1)
            np.add.at(counts[1], (reason, label), found["text_bytes"])
            for one, copies in enumerate(np.bincount(label[reason == EXACT]).tolist()):
                if copies and is_repeated(shards[place], labels[one]):
                    repeated += copies
            yield np.concatenate([rows, _document(found)[None]])

    assert earlier <= len(shards)
    with RowSort(scratch, 4, memory // 4) as by_kept, RowSort(scratch, 5, memory // 4) as by_removed:
        for removed, kept, similarity, reason in decisions.removals.chunks():
            by_kept.add(np.stack([kept, removed, similarity, reason]))
        for table in kept_known(by_kept):
            by_removed.add(table)
        by_kept.close()
        with write_atomically(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
            for rows in columns(_of_size(both_known(by_removed), AT_A_TIME)):
                writer.write_table(rows)
            text = msgspec.json.encode(
                {"format": FORMAT, "pilekit": __version__, "kind": "removed documents", **header}
            )
            writer.add_key_value_metadata({b"pilekit": text})
    of_label = {
        kind: {label: (int(exact), int(near)) for label, exact, near in zip(labels, *counts[kind], strict=True)}
        for kind in (0, 1)
    }
    return RemovedCounts(of_label[0], of_label[1], repeated)


def _looked_up(
    population: Population, tables: Iterator[Table], labels: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[int, Table, dict[str, npt.NDArray[Any]]]]:
    """Rows whose first column is an id, ascending, with columns of those documents' sketches, `subset` as in `labels`.

    Yields (which sketch, some of the rows, the columns of their documents), a part for each part of a sketch.
    """
    code_of = {label: code for code, label in enumerate(labels)}
    held = next(tables, None)
    for place, sketch in enumerate(population.sketches):
        first, end = population.base[place : place + 2].tolist()
        if held is None:
            return
        if held[0, 0] >= end:
            continue
        codes = np.array([code_of[label] for label in sketch.subset_names], dtype=np.int64)
        for chunk in sketch.chunks(columns):
            count = len(chunk[columns[0]])
            while held is not None and (ready := int(np.searchsorted(held[0], first + count))):
                rows = held[0, :ready].astype(np.int64) - first
                found = {name: codes[chunk[name][rows]] if name == "subset" else chunk[name][rows] for name in columns}
                yield place, held[:, :ready], found
                held = held[:, ready:] if ready < held.shape[1] else next(tables, None)
            first += count


def _document(found: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint64]:
    """The number of each document in the low half, its label in the high half."""
    return found["number"].astype(np.uint64) | found["subset"].astype(np.uint64) << _HIGH


def _of_size(tables: Iterable[Table], rows: int) -> Iterator[Table]:
    """The same rows in tables of so many, the last of fewer."""
    held: list[Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.shape[1]
        if count >= rows:
            joined = np.concatenate(held, axis=1)
            whole = count // rows * rows
            for begin in range(0, whole, rows):
                yield joined[:, begin : begin + rows]
            held, count = [joined[:, whole:]], count - whole
    if count:
        yield np.concatenate(held, axis=1)


def _named(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string()))
