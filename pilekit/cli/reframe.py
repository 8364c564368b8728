"""`pilekit reframe`: shards in frames that can be sought, with checksums and an index."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilekit.cli.byte_size import ByteSize
from pilekit.cli.corpus_arguments import open_corpus, out_option, paths_argument
from pilekit.errors import visible
from pilekit.progress import byte_progress

if TYPE_CHECKING:
    from rich.table import Table

    from pilekit.shards.write.reframe import Reframed

EXPENDABLE = ("Text", "Before", "Documents", "Frames")
SHORTEST_NAME = 16
"""Of a shard's name so much is shown before columns go."""


@click.command()
@paths_argument
@out_option
@click.option(
    "--frame",
    "frame_bytes",
    type=ByteSize(),
    default="1MiB",
    show_default=True,
    metavar="SIZE",
    help="Text in a frame: smaller reads one document faster, larger compresses better.",
)
@click.option("--level", type=click.IntRange(1, 22), default=3, show_default=True, help="zstd compression level.")
@click.option("--jobs", type=click.IntRange(min=1), help="Shards at a time; fewer jobs, less memory.  [default: CPUs]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def command(
    paths: tuple[str, ...],
    manifest: str | None,
    out: Path,
    frame_bytes: int,
    level: int,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Write the same lines as .zst that can be read from anywhere, with checksums and an index.

    The text stays as it is, byte for byte. It is cut at line ends into frames, each with a checksum; every zstd tool
    reads the files. Each is read back from disk and compared before it gets its name. Killed, it goes on when run
    again.

    \b
    Example:
      pilekit reframe 00.jsonl.zst --out seekable
      pilekit reframe data/ --out archive --frame 16MiB --level 19
    """
    from pilekit.shards.write.reframe import FRAME_SIZES, reframe_corpus

    if frame_bytes not in FRAME_SIZES:
        raise click.BadParameter(
            f"is not in the range from {FRAME_SIZES[0]:,} to {FRAME_SIZES[-1]:,}", param_hint="--frame"
        )
    corpus = open_corpus(paths, manifest)
    with byte_progress("reframing", corpus.size) as advance:
        reframed = reframe_corpus(corpus, out, frame_bytes=frame_bytes, level=level, jobs=jobs, advance=advance)
    if as_json:
        click.echo(json.dumps({"shards": [asdict(shard) for shard in reframed]}, indent=2))
        return
    from rich.console import Console

    width = shutil.get_terminal_size().columns
    Console(file=sys.stdout, width=width, highlight=False).print(_table(reframed, width))
    click.echo(f"{len(reframed):,} shard{'s' * (len(reframed) != 1)} in {visible(str(out))}")


def _table(reframed: list[Reframed], width: int) -> Table:
    """A row for each shard, and the totals of several; where that is too wide, columns go, the least telling first."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, padding=0, show_edge=False, show_footer=len(reframed) > 1, header_style="bold")
    table.add_column(Text("Shard"), Text("Total"), overflow="ellipsis", no_wrap=True)
    rows = [_cells(reframed, [shard]) for shard in reframed]
    total = _cells(reframed, reframed)
    widths = {title: max(len(title), *(len(row[title]) for row in [*rows, total])) for title in total}
    names = min(SHORTEST_NAME, max(len(shard.shard) for shard in reframed))
    for title in EXPENDABLE:
        if names + sum(1 + column for column in widths.values()) > width:
            del widths[title]
    for title in widths:
        table.add_column(Text(title), Text(total[title]), justify="right", no_wrap=True, min_width=widths[title])
    for shard, row in zip(reframed, rows, strict=True):
        table.add_row(Text(visible(shard.shard)), *(Text(row[title]) for title in widths))
    return table


def _cells(all_of_them: list[Reframed], some: list[Reframed]) -> dict[str, str]:
    from pilekit.stats.table import rounded_bytes

    def total(field: str, shards: list[Reframed] = some) -> int:
        return sum(getattr(shard, field) for shard in shards)

    before, after = total("stored_before"), total("stored_bytes")
    cells = {
        "Documents": f"{total('documents'):,}",
        "Text": rounded_bytes(total("text_bytes")),
        "Before": rounded_bytes(before),
        "After": rounded_bytes(after),
        "%": f"{100 * (after / before - 1):+.1f}",
        "Frames": f"{total('frames'):,}",
    }
    if total("bad_lines", all_of_them):
        cells["Bad lines"] = f"{total('bad_lines'):,}"
    return cells
