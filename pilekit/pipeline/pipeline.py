"""`Pipeline`: stages one after another, itself a stage.

A stage is any callable from an iterator of batches to an iterator of batches: the stages of this package, `Tokenize`,
another `Pipeline`, or a generator function of one's own:

    def first_of_each_batch(batches):
        for batch in batches:
            yield batch.take([0])

Nothing is read ahead: a batch is pulled through all stages when the consumer asks for one. Who stops early closes the
iterator (or drops it), which closes every stage behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pilekit.errors import PilekitError

Stage = Callable[[Iterator[Any]], Iterator[Any]]
"""From an iterator of batches to an iterator of batches."""


@dataclass(frozen=True)
class Pipeline:
    """`stages` in the order in which a batch passes them; no stages pass every batch on as it is."""

    stages: Sequence[Stage]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        for place, stage in enumerate(self.stages, 1):
            if isinstance(stage, type):
                raise PilekitError(
                    f"stage {place} of the pipeline is the class {stage.__name__}: write {stage.__name__}(...)"
                )
            if not callable(stage):
                raise PilekitError(f"stage {place} of the pipeline is no stage but {stage!r}")

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches that come out at the end when `batches` go in; work starts with the first `next()`."""
        out = iter(batches)
        for stage in self.stages:
            out = stage(out)
        return out
