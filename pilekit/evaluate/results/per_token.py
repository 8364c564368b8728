"""`tokens.parquet`: the bits of every token that was predicted, a row per token.

    shard: dictionary<string>  number: int64  subset: dictionary<string>  index: int32  token: uint32  bits: float64

Rows are in the order of the corpus. `index` is the token's place in its document, from 0, and `token` its id. A model's
losses are float32 numbers of nats, and `bits` is such a number divided by ln 2, so `float32(bits * ln 2)` is the loss
again, and the exact sum (`math.fsum`) of a document's losses is the `nll` of its record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pilekit.artifacts.parquet_rows import ROWS_PER_GROUP
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.plan import Plan
from pilekit.evaluate.results.attached import Attached, read_attached
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import TOKENS_FILE
from pilekit.evaluate.results.result_folder import records_folder
from pilekit.evaluate.results.write_items import PLACE, Items, write_items
from pilekit.evaluate.score.batching import Float64, TokenizedDocument

_ITEM = np.dtype([("token", "<u4"), ("nats", "<f4")])
SCHEMA = pa.schema({**PLACE, "index": pa.int32(), "token": pa.uint32(), "bits": pa.float64()})


def _made(document: TokenizedDocument, losses: Float64) -> Items:
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

    def rows_of(held: list[Items]) -> tuple[list[int], list[Any]]:
        items = np.concatenate(held)
        indexes = np.concatenate([np.arange(first, first + len(one)) for one in held])
        return list(map(len, held)), [indexes, items["token"], items["nats"].astype(np.float64) / math.log(2)]

    documents = _checked(read_attached(records_folder(out, plan.key), TOKENS, records))
    write_items(path, SCHEMA, documents, ROWS_PER_GROUP, rows_of)
    return path


def _checked(documents: Iterable[tuple[ScoredDocument, Items]]) -> Iterator[tuple[ScoredDocument, Items]]:
    for document, items in documents:
        if math.fsum(items["nats"].tolist()) != document.nll:
            shown = f"{visible(document.shard, 200)}, document {document.number}"
            raise PilekitError(f"{shown}: the losses of its tokens do not fit its record; score it again")
        yield document, items
