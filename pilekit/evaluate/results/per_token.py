"""`tokens.parquet`: the bits of every token that was predicted, a row per token.

    shard: dictionary<string>  number: int64  subset: dictionary<string>  index: int32  token: uint32  bits: float64

Rows are in the order of the corpus. `index` is the token's place in its document, from 0, and `token` its id. A model's
losses are float32 numbers of nats, and `bits` is such a number divided by ln 2, so `float32(bits * ln 2)` is the loss
again, and the exact sum (`math.fsum`) of a document's losses is the `nll` of its record. Memory holds the tokens of one
row group, or of the longest document.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.parquet_rows import ROWS_PER_GROUP
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.plan import Plan
from pilekit.evaluate.results.attached import Attached, read_attached
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import TOKENS_FILE
from pilekit.evaluate.results.result_folder import records_folder
from pilekit.evaluate.score.batching import Float64, TokenizedDocument

_ITEM = np.dtype([("token", "<u4"), ("nats", "<f4")])
_NAMES = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    {
        "shard": _NAMES,
        "number": pa.int64(),
        "subset": _NAMES,
        "index": pa.int32(),
        "token": pa.uint32(),
        "bits": pa.float64(),
    }
)

_Items = npt.NDArray[np.void]


def _made(document: TokenizedDocument, losses: Float64) -> _Items:
    items = np.empty(len(losses), _ITEM)
    items["token"], items["nats"] = document.ids[len(document.ids) - len(losses) :], losses
    return items


TOKENS = Attached(_ITEM, lambda document: document.tokens, _made)
"""A predicted token's id and loss."""


def write_tokens(out: str | Path, plan: Plan, records: Records) -> Path:
    """Write `tokens.parquet` into the folder of a result, whole or not at all; returns its path.

    PilekitError if the losses of a document do not sum to its record's.
    """
    path = Path(out) / TOKENS_FILE
    first = 1 if plan.prefix_id is None and plan.template is None else 0
    with write_atomically(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for group in _groups(read_attached(records_folder(out, plan.key), TOKENS, records)):
            writer.write_table(_table(group, first))
    return path


def _groups(
    documents: Iterator[tuple[ScoredDocument, _Items]],
) -> Iterator[list[tuple[ScoredDocument, _Items]]]:
    """Documents in groups of about the tokens of a row group."""
    group: list[tuple[ScoredDocument, _Items]] = []
    rows = 0
    for document, items in documents:
        if math.fsum(items["nats"].tolist()) != document.nll:
            shown = f"{visible(document.shard, 200)}, document {document.number}"
            raise PilekitError(f"{shown}: the losses of its tokens are not those of its record; score it again")
        group.append((document, items))
        rows += len(items)
        if rows >= ROWS_PER_GROUP:
            yield group
            group, rows = [], 0
    if group:
        yield group


def _table(group: list[tuple[ScoredDocument, _Items]], first: int) -> pa.Table:
    """The rows of some documents; `first` is the index of a document's first predicted token."""
    counts = [len(items) for _, items in group]
    items = np.concatenate([items for _, items in group])

    places = pa.array(np.repeat(np.arange(len(counts)), counts))

    def repeated(values: list[str]) -> pa.DictionaryArray:
        return pa.array(values).dictionary_encode().take(places)

    columns = [
        repeated([document.shard for document, _ in group]),
        np.repeat(np.array([document.number for document, _ in group], np.int64), counts),
        repeated([document.subset for document, _ in group]),
        np.fromiter(chain(*(range(first, first + count) for count in counts)), np.int32, len(items)),
        items["token"],
        items["nats"].astype(np.float64) / math.log(2),
    ]
    return pa.table(columns, schema=SCHEMA)
