"""PileStream: raw shards to packed batches.

pile_stream.py      PileStream, made of arguments.py, order/topology.py (which rank), resume.py and explanation.py
recorded_stream.py  iterating, which keeps a record.py; loader.py, a DataLoader that does so for any number of workers
state.py            the record as JSON, and which stream a state fits; worker_part.py, a worker's own state
finite_pass.py      the batches of a pass that ends; sharded_twice.py refuses frameworks that would lose data
order/              which documents, in which order: selection, units, repeats, and the lane grid that ranks share
read/               the documents of a lane from any place on, under one of two plans
pack/               a lane's documents to windows, and windows to rows
batch/              rows to a `Batch`, masks, documents as they are, and `peek`

Public names are imported on first use: what only lays out rows or draws an order needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilekit.stream.batch.attention_mask import document_mask
    from pilekit.stream.batch.batch import Batch
    from pilekit.stream.pack.pack_stage import Pack
    from pilekit.stream.pile_stream import PileStream

_HOME = {
    "Batch": "pilekit.stream.batch.batch",
    "Pack": "pilekit.stream.pack.pack_stage",
    "PileStream": "pilekit.stream.pile_stream",
    "document_mask": "pilekit.stream.batch.attention_mask",
}

__all__ = ["Batch", "Pack", "PileStream", "document_mask"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'pilekit.stream' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
