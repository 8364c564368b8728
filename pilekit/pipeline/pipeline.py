"""`Pipeline`: stages one after another, itself a stage.

A stage is any callable from an iterator of batches to an iterator of batches: the stages of this package, `Tokenize`,
another `Pipeline`, or a generator function of your own:

    def first_of_each_batch(batches):
        for batch in batches:
            yield batch.take([0])

Nothing is read ahead: a batch is pulled through all stages when the consumer asks for one. Closing the iterator (or
dropping it) early closes every stage before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError, shortened

Stage = Callable[[Iterator[Any]], Iterator[Any]]
"""From an iterator of batches to an iterator of batches."""


class DocumentStage(NearestNames):
    """A stage from documents to documents."""

    stateful: ClassVar[bool] = False
    """Whether results depend on earlier documents: such a stage needs one process that reads all in order."""


@dataclass(frozen=True)
class Pipeline(NearestNames):
    """`stages` in the order in which a batch passes them; without stages, batches pass unchanged.

    `PilekitError` if one of them is no stage.
    """

    stages: Sequence[Stage]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        for stage in self.stages:
            if isinstance(stage, type) or not callable(stage):
                raise _no_stage(stage, "it is no function of batches")

    @property
    def stateful(self) -> bool:
        """Whether any stage is stateful."""
        return any(getattr(stage, "stateful", False) for stage in self.stages)

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Pass `batches` through all stages; work starts with the first `next()`."""
        out = iter(batches)
        for stage in self.stages:
            try:
                result = stage(out)
            except (AttributeError, TypeError) as error:  # A generator has not begun yet, so the call itself failed.
                raise _no_stage(stage, str(error)) from error
            if not isinstance(result, Iterable):
                raise _no_stage(stage, f"it gave {shortened(repr(result), 80)}")
            out = iter(result)
        return out


def names_in(names: str | Iterable[str]) -> tuple[str, ...]:
    """The names in a list or in a comma-separated text."""
    return tuple(name.strip() for name in (names.split(",") if isinstance(names, str) else names))


def described(stage: Stage) -> str:
    """The stage's settings, as stored with a result: its `identity` if it has one, else its `repr`."""
    return str(getattr(stage, "identity", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(stage)))


def _no_stage(stage: object, why: str) -> PilekitError:
    return PilekitError(
        f"{shortened(repr(stage), 80)} is no stage: a stage maps an iterator of batches to an iterator "
        f"({shortened(why, 200)}); mark a function of one document with @document_filter or @document_map"
    )
