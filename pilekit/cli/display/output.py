"""Output that several commands share: tables on stdout, skipped lines on stderr, and progress that rank 0 shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from pilekit.cli.standard_streams import wrapped
from pilekit.display.progress import Advance, Scored, byte_progress, score_progress, waiting
from pilekit.errors import AlreadyReported, PilekitError, counted, shortened, visible, visible_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from pilekit.corpus import Corpus, Part
    from pilekit.display.table_result import TableResult
    from pilekit.shards.read.read_errors import SkippedLines

SHOWN_BAD_LINES = 10


def terminal(piped_width: int = 80) -> Console:
    """A rich console on standard output. If that is no terminal, it is $COLUMNS wide, or else `piped_width`."""
    from rich.console import Console  # here, because `--json` and errors need no rich, which takes long to import

    return Console(file=sys.stdout, width=shutil.get_terminal_size((piped_width, 24)).columns, highlight=False)


def print_fitted(table: RenderableType, piped_width: int = 80) -> None:
    """Print a table in the width of the terminal, without blanks at the ends of lines."""
    console = terminal(piped_width)
    with console.capture() as captured:
        console.print(table)
    # Not click.echo, which does not escape characters that the terminal lacks.
    sys.stdout.write(re.sub(" +\n", "\n", captured.get()))


def say(sentence: str, indent: str = "", *, err: bool = False) -> None:
    """Print a sentence with control characters spelt out; a terminal gets it broken at spaces, and indented."""
    sentence = visible(sentence)
    click.echo(sentence if err else wrapped(sentence, sys.stdout, indent), err=err)


def print_text(text: str, *, ending: bool) -> None:
    """Print a text byte for byte. A terminal gets control characters spelt out, and a newline at the end.

    ending   whether a file or a pipe gets the newline, too
    """
    newline = text[-1:] != "\n"
    if sys.stdout.isatty():
        click.echo(visible_lines(text), nl=newline)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode() + b"\n" * (newline and ending))


def printed(result: Any, as_json: bool, corpus: Corpus | None = None, part: Part | None = None) -> bool:
    """Print a result as JSON, or a line for a run with --part; False if the table is wanted."""
    if as_json:
        click.echo(json.dumps(result if part is None else {"part": part, **result}, indent=2))
    elif corpus is not None and part is not None:
        shards = f"{len(corpus.part(part)):,} of {counted(len(corpus), 'shard')} done"
        remedy = "when all parts have ended, run the same command without --part to finish"
        say(f"part {part[0]:,} of {part[1]:,}: {shards}; {remedy}")
    return as_json or part is not None


def print_result(
    result: TableResult, as_json: bool, corpus: Corpus | None = None, part: Part | None = None, *, table: bool = True
) -> bool:
    """List a result's bad lines, and print it as JSON or as its table. Returns False for JSON or a part.

    table   False: the caller prints the table, after other output
    """
    report_skipped(getattr(result, "skipped", None))
    if printed(result.to_dict() if as_json else None, as_json, corpus, part):
        return False
    if table:
        print_fitted(result.table())
    return True


def sum_of(counts: dict[str, Any], *parts: str) -> str:
    """`9 read = 7 kept + 2 dropped`. If documents were skipped or left out, that is added to `parts`."""
    more = [name for name in ("skipped", "left_out") if name not in parts and counts.get(name)]
    summands = (f"{counts[name]:,} {name.replace('_', ' ')}" for name in (*parts, *more))
    return f"{counts['read']:,} read = {' + '.join(summands)}"


def report_protected(held_out: dict[str, Any], lost: str) -> None:
    """Name the held-out shards, of which nothing was taken, and tell what others lost because of them."""
    say(f"protected: {', '.join(held_out['shards'])}, {counted(held_out['documents'])}; {lost}", err=True)


def report_skipped(skipped: SkippedLines | None) -> None:
    """List the first bad lines that `--on-error skip` left out, and the number of the others."""
    if skipped is None:
        return
    for bad in skipped.examples[:SHOWN_BAD_LINES]:
        say(f"skipped: {shortened(bad, 500)}", err=True)
    if skipped.count > SHOWN_BAD_LINES:
        click.echo(f"skipped: {counted(skipped.count - SHOWN_BAD_LINES, 'line')} more", err=True)


def rank() -> int:
    """This process's rank in its job."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() and os.environ.get("WORLD_SIZE", "1") != "1" else 0


def rank_progress(activity: str, total: int | None) -> AbstractContextManager[Advance]:
    """The progress line, shown only by rank 0."""
    return nullcontext(lambda amount: None) if rank() else byte_progress(activity, total)


def rank_score_progress(activity: str, figure: str | None = None) -> AbstractContextManager[Scored | None]:
    """The line of scored bytes and the figure so far, shown only by rank 0 and of its own documents."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    unit = figure and f"{figure} so far{'' if ranks == '1' else ' on rank 0'}"
    return nullcontext() if rank() or not sys.stderr.isatty() else score_progress(activity, unit)


def rank_waiting(activity: str) -> AbstractContextManager[None]:
    """The line of work without progress reports, shown only by rank 0."""
    return nullcontext() if rank() else waiting(activity)


@contextmanager
def report_once() -> Iterator[None]:
    """Let one rank per machine print an error. Errors outside the process group occur on every rank."""
    try:
        yield
    except (PilekitError, click.UsageError) as error:
        if rank() and os.environ.get("LOCAL_RANK", "0") != "0":
            raise AlreadyReported(str(error)) from error
        raise
