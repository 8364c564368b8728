"""`pilekit select`: part of a corpus, as a corpus."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilekit.cli.corpus_arguments import corpus_argument, exact_subsets, open_corpus, out_option
from pilekit.cli.skipped_lines import tell_skipped
from pilekit.errors import visible
from pilekit.progress import byte_progress

if TYPE_CHECKING:
    from rich.table import Table

    from pilekit.pipeline.selecting import Format, Selected, SelectedSubset
    from pilekit.shards.read.reader import OnError

LONGEST_NAME = 40
MOST_ROWS = 200


@click.command()
@corpus_argument
@click.option("--sample", type=float, metavar="SHARE", help="About this share of the documents: 0.01.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which documents --sample takes.")
@click.option(
    "--match", metavar="REGEX", help="Documents in whose text this is found (Python's re; (?i) ignores case)."
)
@click.option("--min-bytes", type=click.IntRange(0, 1 << 30), metavar="N", help="Documents of N bytes of text or more.")
@out_option
@click.option(
    "--format",
    type=click.Choice(["zst", "parquet", "jsonl"]),
    help="How to store them: whole lines as .jsonl.zst (the default) or .jsonl, text and label as .parquet.",
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="At a line that is no document: stop, or skip and count it.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Shards at a time; fewer jobs, less memory.  [default: CPUs]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def command(
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: str | None,
    sample: float | None,
    seed: int,
    match: str | None,
    min_bytes: int | None,
    out: Path,
    format: Format | None,
    on_error: OnError,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Copy part of a corpus: by subset, at random, by what is in the text, by length, or in another format.

    Documents that pass all conditions are written to DIR, one shard for each that was read, of the same name. Lines are
    copied byte for byte, so every label stays; Parquet holds text and label alone, and opens in datasets and polars.
    A sample is the same whenever and wherever it is taken with one seed. Killed, it goes on when run again.

    \b
    Example:
      pilekit select data/ --subsets ArXiv,GitHub --out papers-and-code
      pilekit select data/ --sample 0.01 --min-bytes 1000 --out small
      pilekit select data/ --subsets PMC --match '(?i)randomi[sz]ed' --out trials --format parquet
    """
    if subsets is None and sample is None and match is None and min_bytes is None and format is None:
        raise click.UsageError("say what to select: --subsets, --sample, --match, --min-bytes, or --format for all")
    from pilekit.pipeline.selecting import select_corpus

    corpus = open_corpus(paths, manifest)
    names = exact_subsets(subsets, corpus)
    with byte_progress("selecting", corpus.size) as advance:
        selected = select_corpus(
            corpus,
            out,
            subsets=names,
            sample=sample,
            seed=seed,
            match=match,
            min_bytes=min_bytes,
            format=format or "zst",
            on_error=on_error,
            jobs=jobs,
            advance=advance,
        )
    tell_skipped(selected.skipped)
    if as_json:
        click.echo(json.dumps(selected.to_json(), indent=2))
        return
    from rich.console import Console

    from pilekit.shards.verify.findings import some_names

    Console(file=sys.stdout, highlight=False).print(_table(selected))
    written = len(corpus) - len(selected.empty)
    click.echo(f"{written:,} shard{'s' if written > 1 else ''} in {visible(str(out))}")
    if selected.empty:
        click.echo(f"nothing in {some_names(selected.empty)}")


def _table(selected: Selected) -> Table:
    """A row per subset, the largest first, and the totals; labels may be hostile, so they are rich `Text`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from pilekit.stats.table import rounded_bytes

    def cells(one: SelectedSubset) -> tuple[str, str, str]:
        return f"{one.documents:,}", rounded_bytes(one.bytes), _percent(one.bytes, one.read_bytes)

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False, show_footer=True, header_style="bold")
    # Not no_wrap, which its cells are: where there is no room this column gives way, and no number is cut short.
    table.add_column("Subset", "Total")
    for title, total in zip(("Documents", "Bytes", "Of read %"), cells(selected.total), strict=True):
        table.add_column(title, total, justify="right", no_wrap=True)
    for subset in selected.subsets[:MOST_ROWS]:
        name = Text(visible(subset.name, LONGEST_NAME), no_wrap=True, overflow="ellipsis")
        table.add_row(name, *cells(subset))
    if len(selected.subsets) > MOST_ROWS:
        table.add_row(f"({len(selected.subsets) - MOST_ROWS:,} more)")
    return table


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "–"
