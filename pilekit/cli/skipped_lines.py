"""The bad lines that `--on-error skip` passed over, told on stderr: the first ten, and how many more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pilekit.errors import visible

if TYPE_CHECKING:
    from pilekit.shards.read.damage import SkippedLines

SHOWN_BAD_LINES = 10


def tell_skipped(skipped: SkippedLines) -> None:
    """Tell of these lines; nothing where there are none."""
    for bad in skipped.examples[:SHOWN_BAD_LINES]:
        click.echo(f"skipped: {visible(str(bad), 500)}", err=True)
    if skipped.count > SHOWN_BAD_LINES:
        click.echo(f"skipped: {skipped.count - SHOWN_BAD_LINES:,} lines more", err=True)
