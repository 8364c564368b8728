"""The contract of all that runs work on shards: local processes (local.py) and `Cluster`s (ray.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from pilekit.errors import PilekitError, is_out_of_memory, visible

T = TypeVar("T")
R = TypeVar("R")

Advance = Callable[[int], None]
"""Called with each further number of stored bytes that are done, from any thread."""


class Cluster(Protocol):
    """Several machines that share their files."""

    def cpus(self) -> list[int]:
        """The CPUs of each node."""

    def imap_shards(
        self,
        function: Callable[[T, Advance], R],
        items: list[T],
        labels: Sequence[str],
        jobs: int,
        on_progress: Advance,
        lock: Path | None,
        memory: int = 0,
    ) -> Generator[R, None, None]:
        """`pilekit.workers.imap_shards` on the cluster; a task needs `memory` bytes more than reading a shard takes."""


def raise_first(errors: dict[int, Exception], labels: Sequence[str], places: Mapping[int, str] | None = None) -> None:
    """Raise the error of the first item, if there is one, and name its place, if known, and the other failed items."""
    if not errors:
        return
    first, *later_items = sorted(errors)
    error, label = errors[first], visible(labels[first])
    other_labels = [visible(labels[index]) for index in later_items]
    hidden = f" and {len(other_labels) - 5} more" if len(other_labels) > 5 else ""
    place = (places or {}).get(first)
    more = f" (on {place})" if place else ""
    more += f" (also failed: {', '.join(other_labels[:5])}{hidden})" if other_labels else ""
    if (lacks_memory := is_out_of_memory(error)) or isinstance(error, PilekitError | OSError):
        text = "ran out of memory; use fewer jobs" if lacks_memory else str(error)
        is_named = re.search(rf"(?<!\w){re.escape(label)}(?!\w)", text)
        raise PilekitError(f"{text if is_named else f'{label}: {text}'}{more}") from error
    raise RuntimeError(f"{label}: {type(error).__name__}: {error}{more}") from error
