"""PileStream: raw shards to packed batches.

pile_stream.py   PileStream: passes, state, workers
state.py         the place where a stream stands, and what it fits
pack.py          Pack, the stage from token batches to batches
concat.py        the packing itself, compiled
batch.py         Batch, what comes out
"""

from __future__ import annotations

from pilekit.stream.batch import Batch
from pilekit.stream.pack import Pack
from pilekit.stream.pile_stream import PileStream

__all__ = ["Batch", "Pack", "PileStream"]
