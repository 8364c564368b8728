"""The removed documents, each with the kept document that it resembles: `Decisions`, then `removed.parquet`.

Decisions are a row for each id, in a file without a name. An exact copy follows the document that stands for its text.
If that document is kept, the copy is recorded as its exact copy. If that document is removed, the copy is recorded as a
near-duplicate of the same kept document, with the same similarity.

`removed.parquet` is the proof of each removal. The population's table turns ids into names. Rows are in the order of
(shard, number), in groups of 65,536, so memory does not depend on how many documents are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit import __version__
from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.external_sort import Table
from pilekit.dedup.match.population import Ids, Population, ids_of
from pilekit.dedup.scratch_space import scratch_array
from pilekit.dedup.sketch.shingles import Int64

KEPT, EXACT, NEAR = range(3)

_ROW = np.dtype([("reason", "u1"), ("kept", "<u4"), ("similarity", "<f8")])
_OWN = np.uint64(1 << 63)
_AT_A_TIME = 1 << 20

FORMAT = 1
REASONS = ("exact", "near")
CORPORA = ("this", "against")
ROWS_PER_GROUP = 1 << 16

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


class Removals(NamedTuple):
    """Some removed documents.

    removed, kept   ids
    similarity      float64, 1 for exact copies
    reason          `EXACT` or `NEAR`
    """

    removed: Int64
    kept: Ids
    similarity: npt.NDArray[np.float64]
    reason: npt.NDArray[np.uint8]


class Decisions:
    """The removed documents and the reasons, for this many documents; `folder` is for scratch files."""

    def __init__(self, documents: int, folder: Path):
        self._rows = scratch_array(folder, _ROW, documents)

    def add_copies(self, pairs: Table) -> None:
        """Take exact copies: (rank of the document that stands for the text, rank of the copy)."""
        own = pairs[1] >= _OWN  # Nothing of an earlier run is removed.
        self._set(ids_of(pairs[1, own]), EXACT, ids_of(pairs[0, own]), np.ones(int(own.sum())))

    def add_near(self, edges: Table) -> None:
        """Take near-duplicates: (rank of a removed document, rank of a kept one, bits of the similarity)."""
        self._set(ids_of(edges[0]), NEAR, ids_of(edges[1]), edges[2].view(np.float64))

    def _set(self, ids: Ids, reason: int, kept: Ids, similarity: npt.NDArray[np.float64]) -> None:
        rows = np.empty(len(ids), dtype=_ROW)
        rows["reason"], rows["kept"], rows["similarity"] = reason, kept, similarity
        self._rows[ids] = rows

    def removed(self, begin: int, end: int) -> npt.NDArray[np.bool_]:
        """Whether each of these ids is removed."""
        found: npt.NDArray[np.bool_] = self._rows["reason"][begin:end] != KEPT
        return found

    def removals(self, size: int) -> Iterator[Removals]:
        """All removed documents by id, `size` at a time."""
        ids = np.empty(0, dtype=np.int64)
        for begin in range(0, len(self._rows), _AT_A_TIME):
            ids = np.append(ids, begin + np.flatnonzero(self.removed(begin, begin + _AT_A_TIME)))
            while len(ids) >= size:
                yield self._removals(ids[:size])
                ids = ids[size:]
        if len(ids):
            yield self._removals(ids)

    def _removals(self, ids: Int64) -> Removals:
        rows = self._rows[ids]
        copies = np.flatnonzero(rows["reason"] == EXACT)
        keepers = self._rows[rows["kept"][copies]]
        removed_too = keepers["reason"] == NEAR
        rows[copies[removed_too]] = keepers[removed_too]
        if self._rows["reason"][rows["kept"]].any():
            raise ValueError("a document was removed for the sake of a removed one")
        return Removals(ids, rows["kept"], rows["similarity"], rows["reason"])


@dataclass
class RemovedCounts:
    """Removed documents and their bytes of text, by subset: (exact copies, near-duplicates).

    repeated    exact copies that are repeated on purpose, by `is_repeated`
    """

    documents: dict[str, tuple[int, int]] = field(default_factory=dict)
    bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    repeated: int = 0


def write_removed(
    path: Path,
    population: Population,
    decisions: Decisions,
    *,
    header: Mapping[str, Any],
    is_repeated: Callable[[str, str], bool],
) -> RemovedCounts:
    """Write all removals to `path`.

    header        how the file was made, stored in it
    is_repeated   whether copies in this shard (its name) and this subset are intended
    """
    shards = [sketch.header.shard for sketch in population.sketches]
    names = list(dict.fromkeys(shards))
    name_of = np.array([names.index(shard) for shard in shards] if len(names) < len(shards) else range(len(shards)))
    labels = population.labels
    counts = np.zeros((2, 2, len(labels)), dtype=np.int64)  # documents or bytes, reason, label
    repeated = 0

    def place_of(ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.searchsorted(population.base, ids.astype(np.int64), side="right") - 1

    def table(some: Removals) -> pa.Table:
        document, kept = population.table[some.removed], population.table[some.kept]
        return pa.Table.from_arrays(
            [
                _named(name_of[place_of(some.removed)], names),
                pa.array(document["number"].astype(np.int64)),
                _named(document["label"], labels),
                _named(name_of[place_of(some.kept)], names),
                pa.array(kept["number"].astype(np.int64)),
                _named(kept["label"], labels),
                pa.array(some.similarity),
                _named(some.reason - EXACT, REASONS),
                _named(some.kept < population.first_own, CORPORA),
            ],
            schema=SCHEMA,
        )

    with write_atomically(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for some in decisions.removals(ROWS_PER_GROUP):
            writer.write_table(table(some))
            documents = population.table[some.removed]
            label = documents["label"].astype(np.int64)
            np.add.at(counts[0], (some.reason - EXACT, label), 1)
            np.add.at(counts[1], (some.reason - EXACT, label), documents["text_bytes"])
            exact = some.reason == EXACT
            where, copies = np.unique(place_of(some.removed)[exact] * len(labels) + label[exact], return_counts=True)
            for one, count in zip(where.tolist(), copies.tolist(), strict=True):
                repeated += count * is_repeated(shards[one // len(labels)], labels[one % len(labels)])
        text = msgspec.json.encode({"format": FORMAT, "pilekit": __version__, "kind": "removed documents", **header})
        writer.add_key_value_metadata({b"pilekit": text})
    of_label = [
        {label: (int(exact), int(near)) for label, exact, near in zip(labels, *kind, strict=True)} for kind in counts
    ]
    return RemovedCounts(of_label[0], of_label[1], repeated)


def _named(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string()))
