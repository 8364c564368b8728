"""`Match`: the documents in which a regular expression is found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.pipeline.pipeline import DocumentStage


@dataclass(frozen=True)
class Match(DocumentStage):
    """Keep the documents whose text holds a match of `regex` (Python's `re`; flags are written inside it, as `(?i)`).

    A regular expression that backtracks badly can take very long on a hostile text: `re` has no time limit.
    """

    regex: str
    pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "pattern", re.compile(self.regex))
        except (re.error, TypeError) as error:
            raise PilekitError(
                f"Match: {visible(repr(self.regex), 200)} is no regular expression: {visible(str(error), 200)}"
            ) from error

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents with a match; batches without any are dropped."""
        search = self.pattern.search
        for batch in batches:
            kept = batch.where([search(text) is not None for text in batch.texts])
            if len(kept):
                yield kept
