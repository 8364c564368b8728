"""`FinishedRunStage`: the base of stages that drop documents by the result of a finished run over the same shards.

A result finds a document by shard name and number. A shard that the run did not read, and another shard of the same
name (a selection, whose documents have other numbers), are an error, because the stage would drop the wrong documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pilekit.artifacts.header import Header, finished_header
from pilekit.errors import PilekitError
from pilekit.pipeline.pipeline import DocumentStage


@dataclass(frozen=True)
class FinishedRunStage(DocumentStage):
    """A stage over the output `folder` of a run; `PilekitError` if the run is not finished."""

    folder: str | Path

    kind: ClassVar[str]
    """The kind in the folder's header."""
    command: ClassVar[str]
    """The command that makes such a folder."""
    verb: ClassVar[str]
    """The command's work on a shard: "searched"."""

    def __post_init__(self) -> None:
        self._header()

    @property
    def identity(self) -> str:
        """A hash of all that the run's result depends on."""
        return self._header().identity

    def is_of(self, parameters: dict[str, Any], inputs: dict[str, Any]) -> bool:
        """Whether the run has these settings and inputs."""
        header = self._header()
        return (header.parameters, header.inputs) == (parameters, inputs)

    def _header(self) -> Header:
        return finished_header(self.folder, self.kind, self.command)

    def _check_shard(self, shard: str) -> None:
        """Raise PilekitError if the run did not read a shard of this name."""
        names = list(self._header().inputs)
        if shard not in names:
            listed = ", ".join(name for name in names[:3]) + (", ..." if len(names) > 3 else "")
            raise PilekitError(
                f"{shard}: was not {self.verb} in {self.folder}, which has {listed}; names are relative to the corpus: "
                f"read it from the same folder, or run `{self.command}` on it"
            )

    def _another_shard(self, shard: str, number: int) -> PilekitError:
        """The error for a document that is not the one which the run read under this number."""
        return PilekitError(
            f"{shard}: document {number:,} is not the one that was {self.verb} in {self.folder}: this is another "
            f"shard of the same name; run `{self.command}` on it"
        )
