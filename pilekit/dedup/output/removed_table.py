"""The removed documents, each with the kept document that it resembles: `Decisions`, then `removed.parquet`.

Decisions are a row for each id, in a file without a name. An exact copy follows the document that stands for its text.
If that document is kept, the copy is recorded as its exact copy. If that document is removed, the copy is recorded as a
near-duplicate of the same kept document, with the same similarity.

`decide` has all candidates compared, and writes both. Each decision depends on the decisions before it, so this step
runs in one process.

`removed.parquet` (removed_format.py) is written in groups of rows, so memory does not depend on how many documents are
removed. The document table turns ids into names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pilekit.artifacts.sort.external_sort import Table
from pilekit.artifacts.sort.scratch_files import Scratch, scratch_array, write_flags
from pilekit.dedup.document_table import REMOVABLE, DocumentTable, Ids, ids_of
from pilekit.dedup.matching import Candidates
from pilekit.dedup.output.removed_format import CORPORA, REASONS, REMOVALS, ROWS_PER_GROUP, SCHEMA, RemovalsHeader
from pilekit.dedup.resolve import ComparisonCounts, resolve
from pilekit.dedup.shingle_store import ShingleStore
from pilekit.dedup.sketch.shingles import Int64
from pilekit.workers import Advance

KEPT, EXACT, NEAR = range(3)

_ROW = np.dtype([("reason", "u1"), ("kept", "<u4"), ("similarity", "<f8")])


class Decisions:
    """The removed documents and the reasons, for this many documents.

    folder      for scratch files
    at_a_time   ids that are searched for removed documents at once
    """

    def __init__(self, documents: int, folder: Path, at_a_time: int = 1 << 20):
        self._rows, self._at_a_time = scratch_array(folder, _ROW, documents), at_a_time

    def add_copies(self, pairs: Table) -> None:
        """Take exact copies: (rank of the document that stands for the text, rank of the copy)."""
        removable = pairs[:, pairs[1] >= REMOVABLE]
        self._set(ids_of(removable[1]), EXACT, ids_of(removable[0]), np.ones(removable.shape[1]))

    def add_near(self, edges: Table) -> None:
        """Take near-duplicates: (rank of a removed document, rank of a kept one, bits of the similarity)."""
        self._set(ids_of(edges[0]), NEAR, ids_of(edges[1]), edges[2].view(np.float64))

    def _set(self, ids: Ids, reason: int, keepers: Ids, similarity: npt.NDArray[np.float64]) -> None:
        rows = np.empty(len(ids), dtype=_ROW)
        rows["reason"], rows["kept"], rows["similarity"] = reason, keepers, similarity
        self._rows[ids] = rows

    def removed(self, begin: int, end: int) -> npt.NDArray[np.bool_]:
        """Whether each of these ids is removed."""
        flags: npt.NDArray[np.bool_] = self._rows["reason"][begin:end] != KEPT
        return flags

    def write(self, folder: Path) -> Path:
        """Write a flag for each id, whether it is removed, for `read_flags`."""
        flags = scratch_array(folder, np.bool_, len(self._rows))
        for begin in range(0, len(flags), self._at_a_time):
            flags[begin : begin + self._at_a_time] = self.removed(begin, begin + self._at_a_time)
        return write_flags(folder, flags)

    def removals(self, size: int) -> Iterator[tuple[Int64, npt.NDArray[Any]]]:
        """(ids, a row for each with reason, kept id and similarity) of all removed documents, `size` at a time."""
        ids = np.empty(0, dtype=np.int64)
        for begin in range(0, len(self._rows), self._at_a_time):
            ids = np.append(ids, begin + np.flatnonzero(self.removed(begin, begin + self._at_a_time)))
            while len(ids) >= size:
                yield ids[:size], self._reasons(ids[:size])
                ids = ids[size:]
        if len(ids):
            yield ids, self._reasons(ids)

    def _reasons(self, ids: Int64) -> npt.NDArray[Any]:
        rows = self._rows[ids]
        copies = np.flatnonzero(rows["reason"] == EXACT)
        keepers = self._rows[rows["kept"][copies]]
        removed_too = keepers["reason"] == NEAR
        rows[copies[removed_too]] = keepers[removed_too]
        if self._rows["reason"][rows["kept"]].any():
            raise ValueError("a document was removed for the sake of a removed one")
        return rows


class RemovedCounts(NamedTuple):
    """Removed documents.

    documents    exact copies and near-duplicates of each label, int64 [2, labels]
    text_bytes   int64 [labels]
    held_out     those whose kept document is of a protected shard, int64 [labels]
    repeated     exact copies that are repeated on purpose
    """

    documents: Int64
    text_bytes: Int64
    held_out: Int64
    repeated: int


@dataclass(frozen=True)
class DecisionSettings:
    """The settings of `decide`.

    sets               the folder of the shingle sets
    threshold          the least similarity of a removed document
    path               of `removed.parquet`
    header             the fields of its `RemovalsHeader`
    repeated_labels    copies with these labels in `repeated_shards` are intended
    """

    sets: Path
    threshold: float
    path: Path
    header: Mapping[str, Any]
    repeated_labels: Collection[str]
    repeated_shards: Collection[str]


def write_removed(document_table: DocumentTable, decisions: Decisions, settings: DecisionSettings) -> RemovedCounts:
    """Write all removals to `settings.path`."""
    shards = [sketch.header.shard for sketch in document_table.sketches]
    codes = {shard: code for code, shard in enumerate(dict.fromkeys(shards))}
    names, name_of = list(codes), np.array([codes[shard] for shard in shards])
    labels = document_table.labels
    label_repeats = np.array([label in settings.repeated_labels for label in labels], dtype=bool)
    shard_repeats = np.array([shard in settings.repeated_shards for shard in shards], dtype=bool)
    counts, (text_bytes, held_out), repeated = *np.zeros((2, 2, len(labels)), np.int64), 0
    with REMOVALS.writing_table(settings.path, SCHEMA, RemovalsHeader(**settings.header)) as writer:
        for ids, rows in decisions.removals(ROWS_PER_GROUP):
            document, keeper = document_table.rows[ids], document_table.rows[rows["kept"]]
            # The shard of an id is the last that begins at it or before it.
            place, kept_place = (
                np.searchsorted(document_table.base, side, "right") - 1 for side in (ids, rows["kept"])
            )
            corpus = np.searchsorted(
                [document_table.first_of_run, document_table.first_removable], rows["kept"], "right"
            )
            columns = [
                _named(name_of[place], names),
                pa.array(document["number"].astype(np.int64)),
                _named(document["label"], labels),
                _named(name_of[kept_place], names),
                pa.array(keeper["number"].astype(np.int64)),
                _named(keeper["label"], labels),
                pa.array(rows["similarity"]),
                _named(rows["reason"] - EXACT, REASONS),
                _named(corpus, CORPORA),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))
            np.add.at(counts, (rows["reason"] - EXACT, document["label"]), 1)
            np.add.at(text_bytes, document["label"], document["text_bytes"])
            np.add.at(held_out, document["label"], corpus == CORPORA.index("held-out"))
            exact = rows["reason"] == EXACT
            repeated += int(np.count_nonzero(exact & shard_repeats[place] & label_repeats[document["label"]]))
    return RemovedCounts(counts, text_bytes, held_out, repeated)


def _named(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string()))


class DecisionResult(NamedTuple):
    """The counts of the removed documents and of the comparison, and the file of flags."""

    removed: RemovedCounts
    compared: ComparisonCounts
    flags: Path


def decide(
    document_table: DocumentTable,
    decisions: Decisions,
    candidates: Candidates,
    scratch: Scratch,
    advance: Advance,
    *,
    settings: DecisionSettings,
) -> DecisionResult:
    """Decide all candidates; `decisions` has the exact copies. A quarter of the memory maps shingle sets."""
    store = ShingleStore(settings.sets, document_table.base, scratch.memory // 4)
    compared = resolve(candidates, store, settings.threshold, scratch.folder, decisions.add_near, advance)
    return DecisionResult(write_removed(document_table, decisions, settings), compared, decisions.write(settings.sets))
