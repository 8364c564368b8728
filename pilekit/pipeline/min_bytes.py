"""`MinBytes`: the documents that are long enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.pipeline.pipeline import DocumentStage


@dataclass(frozen=True)
class MinBytes(DocumentStage):
    """Keep the documents whose text has at least `minimum` UTF-8 bytes."""

    minimum: int

    def __post_init__(self) -> None:
        if not isinstance(self.minimum, int | float):
            raise PilekitError(f"MinBytes: the minimum is a number of bytes, not {visible(repr(self.minimum), 80)}")

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The long enough documents; batches without any are dropped."""
        for batch in batches:
            kept = batch.where(batch.text_bytes() >= self.minimum)
            if len(kept):
                yield kept
