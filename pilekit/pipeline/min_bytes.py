"""`MinBytes`: the documents that are long enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pilekit.documents import DocumentBatch


@dataclass(frozen=True)
class MinBytes:
    """Keep the documents whose text has at least `minimum` UTF-8 bytes."""

    minimum: int

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The long enough documents; batches without any are dropped."""
        for batch in batches:
            kept = batch.where(batch.text_bytes() >= self.minimum)
            if len(kept):
                yield kept
