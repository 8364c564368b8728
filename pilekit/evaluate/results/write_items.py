"""A Parquet file of documents and their items: the bits of their tokens, or their vectors.

    shard: dictionary<string>  number: int64  subset: dictionary<string>  ...

Rows are in the order of the documents. Memory holds the items of a row group, or of the longest document.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.parquet_rows import in_row_groups
from pilekit.evaluate.results.records import ScoredDocument

Items = npt.NDArray[Any]
_NAMES = pa.dictionary(pa.int32(), pa.string())
PLACE = {"shard": _NAMES, "number": pa.int64(), "subset": _NAMES}
"""The columns that begin each file."""


def rows_of(document: ScoredDocument, schema: pa.Schema, *columns: Any) -> pa.RecordBatch:
    """The rows of one document: `PLACE`, then these columns of its items."""
    count = len(columns[0])
    shard, subset = (
        pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [name]) for name in (document.shard, document.subset)
    )
    return pa.record_batch([shard, np.full(count, document.number), subset, *columns], schema=schema)


def write_items(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], rows: int, *, follow_links: bool = False
) -> None:
    """Write the rows of documents into a Parquet file in groups of `rows` rows, the whole file or none."""
    file = write_atomically(path, follow_links=follow_links)
    with file as opened, pq.ParquetWriter(opened, schema, compression="zstd") as writer:
        for table in in_row_groups(batches, rows):
            writer.write_table(table)
