"""The output of ranks under torchrun: only rank 0 shows progress, and an error is printed once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import click

from pilekit.errors import PilekitError, ToldElsewhere
from pilekit.progress import Advance, byte_progress, waiting


def progress(what: str, total: int | None) -> AbstractContextManager[Advance]:
    """The progress line, shown only by rank 0."""
    return nullcontext(lambda amount: None) if rank() else byte_progress(what, total)


def waits(what: str) -> AbstractContextManager[None]:
    """The line of work without progress reports, shown only by rank 0."""
    return nullcontext() if rank() else waiting(what)


@contextmanager
def told_once() -> Iterator[None]:
    """Errors outside the process group occur on every rank; one rank per machine prints them."""
    try:
        yield
    except (PilekitError, click.UsageError) as error:
        if rank() and os.environ.get("LOCAL_RANK", "0") != "0":
            raise ToldElsewhere(str(error)) from error
        raise


def rank() -> int:
    """This process's rank in its job."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() and os.environ.get("WORLD_SIZE", "1") != "1" else 0
