"""PileStream: raw shards to packed batches.

pile_stream.py   PileStream: passes, state, workers
state.py         the place where a stream stands, and what it fits
window.py        a lane's next documents and their rows, by best_fit.py, concat.py or separate.py
batch.py         Batch, what comes out, written by columns.py and masked by mlm.py
attention_mask.py   document_mask: documents kept apart in attention
pack.py          Pack, the stage from token batches to batches

Public names are imported on first use: what only lays out rows or draws an order needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilekit.stream.attention_mask import document_mask
    from pilekit.stream.batch import Batch
    from pilekit.stream.pack import Pack
    from pilekit.stream.pile_stream import PileStream

_HOME = {
    "Batch": "pilekit.stream.batch",
    "Pack": "pilekit.stream.pack",
    "PileStream": "pilekit.stream.pile_stream",
    "document_mask": "pilekit.stream.attention_mask",
}

__all__ = ["Batch", "Pack", "PileStream", "document_mask"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'pilekit.stream' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
