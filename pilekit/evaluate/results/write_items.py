"""A Parquet file of documents and their items: the bits of their tokens, or their vectors.

    shard: dictionary<string>  number: int64  subset: dictionary<string>  ...

Rows are in the order of the documents. Memory holds the items of a row group, or of the longest document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.evaluate.results.records import ScoredDocument

Items = npt.NDArray[Any]
_NAMES = pa.dictionary(pa.int32(), pa.string())
PLACE = {"shard": _NAMES, "number": pa.int64(), "subset": _NAMES}
"""The columns that begin each file."""


def write_items(
    path: Path,
    schema: pa.Schema,
    documents: Iterable[tuple[ScoredDocument, Items]],
    most: int,
    rows_of: Callable[[list[Items]], tuple[Sequence[int], list[Any]]],
    *,
    follow_links: bool = False,
) -> None:
    """Write documents and their items into a Parquet file, the whole file or none.

    schema         `PLACE`, then other columns
    most           about the items in a row group
    rows_of        the items of some documents -> the number of rows of each, and the other columns
    follow_links   see `write_atomically`
    """
    file = write_atomically(path, follow_links=follow_links)
    with file as opened, pq.ParquetWriter(opened, schema, compression="zstd") as writer:
        for group in _groups(documents, most):
            counts, columns = rows_of([items for _, items in group])
            places = np.repeat(np.arange(len(group)), counts)
            shards, numbers, subsets = zip(*((of.shard, of.number, of.subset) for of, _ in group), strict=True)
            shards, subsets = (
                pa.array(names).dictionary_encode().take(pa.array(places)) for names in (shards, subsets)
            )
            writer.write_table(pa.table([shards, np.array(numbers)[places], subsets, *columns], schema=schema))


def _groups(
    documents: Iterable[tuple[ScoredDocument, Items]], most: int
) -> Iterator[list[tuple[ScoredDocument, Items]]]:
    group: list[tuple[ScoredDocument, Items]] = []
    size = 0
    for document, items in documents:
        group.append((document, items))
        size += len(items)
        if size >= most:
            yield group
            group, size = [], 0
    if group:
        yield group
