"""`Write`: the documents that pass also go into a shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pilekit.documents import DocumentBatch
from pilekit.pipeline.pipeline import DocumentStage
from pilekit.shards.write.shard_writer import ShardWriter


@dataclass(frozen=True)
class Write(DocumentStage):
    """Write every document to the shard `path` (kind by suffix, as `ShardWriter`) and pass it on.

    Lines are copied byte for byte; only a text that a stage changed is encoded anew. The shard appears under its name
    when the last batch has passed, and not at all when the iterator is left early or anything fails: a shard is whole
    or absent. (`for _ in pipeline(batches): pass` runs a pipeline for its output alone.)
    """

    path: str | Path

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The same batches, each written before it is passed on; empty ones are dropped."""
        with ShardWriter(self.path) as writer:
            for batch in batches:
                if len(batch):
                    writer.write(batch)
                    yield batch
