"""PileStream: raw shards to packed batches.

Data passes through the folders in this order:

order/   decides the order: the shared sequence of units, repeats, the lane grid
read/    selects the documents, and reads those of a lane, from any place in it, under one of two plans
pack/    turns a lane's documents into tokens, windows and rows
batch/   turns rows of several lanes into a `Batch`; also masks, untokenized documents, and `peek`

`pile_stream.py` puts them together and iterates, `finite_pass.py` makes the batches of a pass that ends, and
`loader.py` is a DataLoader. `record.py` records which batches were handed out, and `state.py` writes the record as JSON
and checks whether a state fits a stream. Public names are imported on first use: packing rows needs no torch.
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
