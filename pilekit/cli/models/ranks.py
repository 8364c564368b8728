"""The output of ranks under torchrun: only rank 0 shows progress, and an error is printed once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import click

from pilekit.display.progress import Advance, Scored, byte_progress, score_progress, waiting
from pilekit.errors import AlreadyReported, PilekitError


def progress(what: str, total: int | None) -> AbstractContextManager[Advance]:
    """The progress line, shown only by rank 0."""
    return nullcontext(lambda amount: None) if rank() else byte_progress(what, total)


def scoring(what: str, figure: str | None = None) -> AbstractContextManager[Scored | None]:
    """The line of scored bytes and the figure so far, shown only by rank 0 and of its own documents."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    of = figure and f"{figure} so far{'' if ranks == '1' else ' on rank 0'}"
    return nullcontext() if rank() or not sys.stderr.isatty() else score_progress(what, of)


def waits(what: str) -> AbstractContextManager[None]:
    """The line of work without progress reports, shown only by rank 0."""
    return nullcontext() if rank() else waiting(what)


@contextmanager
def report_once() -> Iterator[None]:
    """Errors outside the process group occur on every rank; one rank per machine prints them."""
    try:
        yield
    except (PilekitError, click.UsageError) as error:
        if rank() and os.environ.get("LOCAL_RANK", "0") != "0":
            raise AlreadyReported(str(error)) from error
        raise


def rank() -> int:
    """This process's rank in its job."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() and os.environ.get("WORLD_SIZE", "1") != "1" else 0
