"""The passages that occur most often: cuts with the same earliest place, counted by a sort of `repeats.parquet`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq

from pilekit.artifacts.external_sort import RowSort, Table
from pilekit.corpus import Manifest, Shard
from pilekit.cutting.windows import Int64, UInt64
from pilekit.kernels import compiled
from pilekit.shards.index.format import find_index
from pilekit.shards.random_access.document_reader import DocumentReader

_PLACE = ["first_shard", "first_number", "first_start"]


@dataclass(frozen=True)
class Passage:
    """A passage: its count, its text at its first cut, and some of its rows in `repeats.parquet`."""

    count: int
    text: str
    rows: list[dict[str, Any]]


def frequent_passages(
    table: Path, paths: Mapping[str, str], manifest: Manifest, *, most: int, rows: int, scratch: Path, memory: int
) -> list[Passage]:
    """The `most` passages that occur most often, each with up to `rows` rows; `paths`: where each shard is."""
    codes: dict[str, int] = {}
    group, counts, best = np.zeros(5, np.uint64), np.empty((1 << 16, 2), np.int64), np.empty((0, 2), np.int64)
    with RowSort(scratch, 4, memory) as sort, pq.ParquetFile(table) as file:
        for batch in file.iter_batches(1 << 14, columns=_PLACE):
            shards = [codes.setdefault(name, len(codes)) for name in batch[0].to_pylist()]
            columns = (shards, batch[1], batch[2], np.arange(sort.count, sort.count + len(batch)))
            sort.add(np.stack([np.asarray(column).astype(np.uint64) for column in columns]))
        for sorted_rows in chain(sort.chunks(), [np.full((4, 1), -1).astype(np.uint64)]):
            best = np.concatenate([best, counts[: _count(sorted_rows, group, counts)]])
            best = best[np.lexsort((best[:, 1], -best[:, 0]))[:most]]
    dataset, held, texts = pyarrow.dataset.dataset(table, format="parquet"), [], dict[tuple[str, int], str]()
    wanted = defaultdict[str, set[int]](set)
    for first in dataset.take(best[:, 1], columns=_PLACE).to_pylist():
        fields = [pc.field(name) == value for name, value in first.items()]
        held.append(dataset.head(rows, filter=fields[0] & fields[1] & fields[2]).to_pylist())
        wanted[held[-1][0]["shard"]].add(held[-1][0]["number"])
    for name, numbers in wanted.items():
        shard = Shard(name, paths[name], None)
        with closing(DocumentReader(shard, find_index(shard, manifest), manifest=manifest)) as reader:
            texts.update(((name, document.number), document.text) for document in reader.read(sorted(numbers)))
    return [
        Passage(count + 1, texts[of[0]["shard"], of[0]["number"]][of[0]["start"] : of[0]["end"]], of)
        for count, of in zip(best[:, 0].tolist(), held, strict=True)
    ]


@compiled()
def _count(rows: Table, group: UInt64, counts: Int64) -> int:
    """Write (rows, the last column of the first) of each group that ended; `group`: its size and first row.

    Rows of a group differ only in the last column.
    """
    written = 0
    for i in range(rows.shape[1]):
        if group[0] and (rows[:-1, i] == group[1:-1]).all():
            group[0] += np.uint64(1)
            continue
        if group[0]:
            counts[written, 0], counts[written, 1] = group[0], group[-1]
            written += 1
        group[0], group[1:] = np.uint64(1), rows[:, i]
    return written
