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
from itertools import pairwise
from typing import Any, ClassVar

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible

Stage = Callable[[Iterator[Any]], Iterator[Any]]
"""From an iterator of batches to an iterator of batches."""


class DocumentStage:
    """A stage from documents to documents; `takes` and `gives` let `Pipeline` refuse an order that cannot work."""

    takes: ClassVar[type] = DocumentBatch
    gives: ClassVar[type] = DocumentBatch
    stateful: ClassVar[bool] = False
    """Whether results depend on earlier documents: such a stage needs one process that reads all in order."""


@dataclass(frozen=True)
class Pipeline:
    """`stages` in the order in which a batch passes them; without stages, batches pass unchanged.

    `PilekitError` if this is no list of stages, or if a stage cannot take the type that the stage before it gives.
    """

    stages: Sequence[Stage]

    def __post_init__(self) -> None:
        if not isinstance(self.stages, Iterable):
            raise PilekitError(f"a Pipeline is made of a list of stages: write Pipeline([{_shown(self.stages)}, ...])")
        object.__setattr__(self, "stages", tuple(self.stages))
        for place, stage in enumerate(self.stages, 1):
            if isinstance(stage, type):
                raise PilekitError(
                    f"stage {place} of the pipeline is the class {stage.__name__}: write {stage.__name__}(...)"
                )
            if not callable(stage):
                raise PilekitError(f"stage {place} of the pipeline is no stage but {_shown(stage)}")
        for place, (stage, following) in enumerate(pairwise(self.stages), 1):
            # A user's function declares neither `gives` nor `takes`.
            gives, takes = getattr(stage, "gives", None), getattr(following, "takes", None)
            if gives is not None and takes is not None and gives is not takes:
                raise PilekitError(
                    f"stage {place + 1} of the pipeline, {_shown(following)}, takes a {takes.__name__}, but stage "
                    f"{place}, {_shown(stage)}, gives a {gives.__name__}; put them in another order"
                )

    @property
    def takes(self) -> type | None:
        """The type that the first stage takes; None if it declares none."""
        return getattr(self.stages[0], "takes", None) if self.stages else None

    @property
    def gives(self) -> type | None:
        """The type that the last stage gives; None if it declares none."""
        return getattr(self.stages[-1], "gives", None) if self.stages else None

    @property
    def stateful(self) -> bool:
        """Whether any stage is stateful."""
        return any(getattr(stage, "stateful", False) for stage in self.stages)

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Pass `batches` through all stages; work starts with the first `next()`."""
        out = iter(batches)
        for stage in self.stages:
            try:
                given = stage(out)
            except (AttributeError, TypeError) as error:  # A generator has not begun yet, so the call itself failed.
                raise _no_stage(stage, str(error)) from error
            if not isinstance(given, Iterable):
                raise _no_stage(stage, f"it gave {_shown(given)}")
            out = iter(given)
        return out


def names_in(names: str | Iterable[str]) -> tuple[str, ...]:
    """The names in a list or in a comma-separated text."""
    return tuple(name.strip() for name in (names.split(",") if isinstance(names, str) else names))


def described(stage: Stage) -> str:
    """The stage's settings, as stored with a result: its `identity` if it has one, else its `repr`."""
    return str(getattr(stage, "identity", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(stage)))


def _no_stage(stage: object, why: str) -> PilekitError:
    return PilekitError(
        f"{_shown(stage)} is no stage: a stage maps an iterator of batches to an iterator ({visible(why, 200)}); "
        "mark a function of one document with @document_filter or @document_map"
    )


def _shown(stage: object) -> str:
    return visible(repr(stage), 80)
