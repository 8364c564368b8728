"""`tokens.parquet`: the bits of every token that was predicted, a row per token.

    shard: dictionary<string>  number: int64  subset: dictionary<string>  index: int32  token: uint32  bits: float64

Rows are in the order of the corpus. `index` is the token's place in its document, from 0, and `token` its id. A model's
losses are float32 numbers of nats, and `bits` is such a number divided by ln 2, so `float32(bits * ln 2)` is the loss
again, and the exact sum (`math.fsum`) of a document's losses is the `nll` of its record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from pilekit.artifacts.parquet_rows import ROWS_PER_GROUP
from pilekit.evaluate.plan import Plan
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.result import TOKENS_FILE
from pilekit.evaluate.results.result_folder import read_numbers, records_folder
from pilekit.evaluate.results.write_items import PLACE, Items, rows_of, write_items
from pilekit.evaluate.score.batching import Float64, TokenizedDocument

_ITEM = np.dtype([("token", "<u4"), ("nats", "<f4")])
SCHEMA = pa.schema({**PLACE, "index": pa.int32(), "token": pa.uint32(), "bits": pa.float64()})


def token_losses(document: TokenizedDocument, losses: Float64) -> Items:
    """The id and the loss of each predicted token."""
    items = np.empty(len(losses), _ITEM)
    items["token"], items["nats"] = document.ids[len(document.ids) - len(losses) :], losses
    return items


def write_tokens(out: str | Path, plan: Plan, records: Records) -> Path:
    """Write `tokens.parquet` into the folder of a result, whole or not at all; returns its path."""
    path = Path(out) / TOKENS_FILE
    first = 1 if plan.prefix_id is None and plan.template is None else 0

    def batches() -> Iterator[pa.RecordBatch]:
        for document, items in read_numbers(records_folder(out, plan.key), _ITEM, records):
            bits = items["nats"].astype(np.float64) / math.log(2)
            yield rows_of(document, SCHEMA, np.arange(first, first + len(items), dtype=np.int32), items["token"], bits)

    write_items(path, SCHEMA, batches(), ROWS_PER_GROUP)
    return path
