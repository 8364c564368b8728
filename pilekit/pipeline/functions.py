"""Stages made from plain functions of one document: `@document_filter` and `@document_map`.

    @document_filter
    def short_enough(document: Document) -> bool:
        return len(document.text) < 100_000

    @document_map
    def without_trailing_space(document: Document) -> str:
        return document.text.rstrip()

The decorated name is the stage. The function's result must depend only on the document: PileStream calls it again, in
other processes, whenever it reads the document again. If it fails, the error names the function and the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import numpy as np

from pilekit.documents import Document, DocumentBatch
from pilekit.errors import PilekitError, shortened
from pilekit.pipeline.pipeline import DocumentStage
from pilekit.pipeline.stages import filtered


@dataclass(frozen=True)
class _FunctionStage(DocumentStage):
    """Calls a function on each document of a batch; an error names the function and the document."""

    function: Callable[[Document], Any]

    def _results(self, batch: DocumentBatch, kinds: tuple[type, ...]) -> list[Any]:
        results = []
        for document in batch:
            try:
                result = self.function(document)
            except Exception as error:
                raise self._error(document, f"raised {type(error).__name__}: {shortened(error, 200)}") from error
            if not isinstance(result, kinds):
                kind = kinds[0].__name__
                raise self._error(document, f"returned {type(result).__name__}; it must return {kind}")
            results.append(result)
        return results

    def _error(self, document: Document, problem: str) -> PilekitError:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return PilekitError(
            f"{document.shard}: document {document.number}: the function {shortened(name, 200)} {problem}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A decorator gives the function's name to the stage, so pickle cannot find the function by that name. So the
        # stage itself is pickled by that name.
        name = f"{getattr(self.function, '__module__', '')}:{getattr(self.function, '__qualname__', '')}"
        try:
            if resolve_name(name) is self:
                return resolve_name, (name,)
        except (ImportError, AttributeError, ValueError):
            pass  # A function inside another function: pickle decides whether it can.
        return type(self), (self.function,)


@dataclass(frozen=True)
class DocumentFilter(_FunctionStage):
    """Keep the documents for which `function` returns True."""

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents that stay."""
        return filtered(batches, lambda batch: self._results(batch, (bool, np.bool_)))


@dataclass(frozen=True)
class DocumentMap(_FunctionStage):
    """Replace each text by the string that `function` returns; identities and labels stay."""

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The same documents with the new texts; empty batches are dropped."""
        return (batch.with_texts(self._results(batch, (str,))) for batch in batches if len(batch))


def document_filter(function: Callable[[Document], bool]) -> DocumentFilter:
    """A stage that keeps the documents for which `function(document)` is True."""
    return DocumentFilter(function)


def document_map(function: Callable[[Document], str]) -> DocumentMap:
    """A stage that replaces each document's text by `function(document)`."""
    return DocumentMap(function)
