"""A Parquet file of documents and their items: the bits of their tokens, or their vectors.

    shard: dictionary<string>  number: int64  subset: dictionary<string>  ...

Rows are in the order of the documents. Memory holds the items of a row group, or of the longest document.

`tokens.parquet` has a row for every token that was predicted:

    ...  index: int32  token: uint32  bits: float64

`index` is the token's place in its document, from 0, and `token` its id. A model's losses are float32 numbers of nats,
and `bits` is such a number divided by ln 2, so `float32(bits * ln 2)` is the loss again, and the exact sum
(`math.fsum`) of a document's losses is the `nll` of its record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.parquet_rows import ROWS_PER_GROUP, in_row_groups
from pilekit.corpus.sidecar_files import TOKENS_FILE
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result_folder import read_numbers, records_folder

if TYPE_CHECKING:
    from pilekit.evaluate.score.batching import TokenizedDocument
    from pilekit.evaluate.score_plan import Plan  # imports torch

Items = npt.NDArray[Any]
_NAMES = pa.dictionary(pa.int32(), pa.string())
PLACE = {"shard": _NAMES, "number": pa.int64(), "subset": _NAMES}
"""The columns that begin each file."""

_TOKEN = np.dtype([("token", "<u4"), ("nats", "<f4")])
TOKENS = pa.schema({**PLACE, "index": pa.int32(), "token": pa.uint32(), "bits": pa.float64()})


def item_rows(document: ScoredDocument, schema: pa.Schema, *columns: Any) -> pa.RecordBatch:
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


def token_losses(document: TokenizedDocument) -> bytes:
    """The id and the loss of each predicted token."""
    losses = document.numbers()
    items = np.empty(len(losses), _TOKEN)
    items["token"], items["nats"] = document.ids[len(document.ids) - len(losses) :], losses
    return items.tobytes()


def write_tokens(out: str | Path, plan: Plan, records: Records) -> None:
    """Write `tokens.parquet` into the folder of a result, whole or not at all."""
    first = 1 if plan.prefix_id is None and plan.template is None else 0

    def batches() -> Iterator[pa.RecordBatch]:
        for document, items in read_numbers(records_folder(out, plan.key), _TOKEN, records):
            bits = items["nats"].astype(np.float64) / math.log(2)
            yield item_rows(
                document, TOKENS, np.arange(first, first + len(items), dtype=np.int32), items["token"], bits
            )

    write_items(Path(out) / TOKENS_FILE, TOKENS, batches(), ROWS_PER_GROUP)
