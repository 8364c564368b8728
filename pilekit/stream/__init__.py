"""PileStream: raw shards to packed batches.

pile_stream.py       PileStream, made of arguments.py, topology.py (which rank), resuming.py and explanation.py
loader.py            StreamLoader, a DataLoader that keeps the state
worker_part.py       what a stock DataLoader's worker makes; sharded_twice.py and repeated_epoch.py say what goes wrong
grid.py              who reads which lanes; making.py makes their batches, finite.py those of a pass that ends
lane.py              one lane: documents to windows to rows, from any place on
plan.py              which plan a corpus gets; lane_sources.py opens it
sequence.py          the shared sequence of units, read by random_access.py from selection.py; repeats.py, hashes.py
sequential.py        the other plan: lanes of whole shards
state.py             what was handed out, and what a state fits; seal.py finds what was damaged
window.py            a lane's next documents and their rows, by best_fit.py, concat.py or separate.py
batch.py             Batch, what comes out, written by columns.py and masked by mlm.py; raw_documents.py without tokens
attention_mask.py    document_mask: documents kept apart in attention
pack.py              Pack, the stage from token batches to batches

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
