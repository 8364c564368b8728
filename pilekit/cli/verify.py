"""`pilekit verify`: whether shards are what they should be, as a table of findings or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from pilekit.cli.options import jobs_option, json_option, open_corpus, paths_argument
from pilekit.cli.output import print_fitted
from pilekit.errors import visible
from pilekit.progress import byte_progress

if TYPE_CHECKING:
    from rich.table import Table

    from pilekit.shards.verify.findings import Finding
    from pilekit.shards.verify.verify import Verification


@click.command()
@paths_argument
@click.option(
    "--sums", metavar="FILE", help="SHA-256 sums to compare with (path or URL); SHA256SUMS in the corpus if not given."
)
@click.option("--write-sums", is_flag=True, help="Write SHA256SUMS into the corpus, if nothing is wrong.")
@jobs_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    paths: tuple[str, ...],
    manifest: str | None,
    sums: str | None,
    write_sums: bool,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Check that shards are whole and right.

    Frames must be complete and their checksums right, every line a document, labels those of the manifest. Where there
    are SHA-256 sums (a sums file, or in a manifest that is named) and indexes, the shards must agree with them. Exit
    code 1 if anything is wrong.

    \b
    Example:
      pilekit verify data/
      pilekit verify data/ --sums SHA256SUMS
      pilekit verify data/ --write-sums
    """
    from pilekit.shards.verify.verify import is_whole, verify_corpus

    corpus = open_corpus(paths, manifest)
    with byte_progress("verifying", corpus.size) as advance:
        found = verify_corpus(
            corpus,
            sums=sums,
            write_sums=write_sums,
            use_manifest_sums=manifest is not None,
            whole=is_whole(paths, corpus),
            jobs=jobs,
            advance=advance,
        )
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        _print(found)
    if not found.ok:
        context.exit(1)


def _print(found: Verification) -> None:
    from pilekit.fitted_table import rounded_bytes

    shards = f"{found.shards:,} shard{'s' * (found.shards != 1)}, {rounded_bytes(found.stored_bytes)}"
    if found.ok:
        click.echo(f"{shards}: all right")
        return
    print_fitted(_table(found.findings))
    bad = len({finding.shard for finding in found.findings})
    many = f"{len(found.findings):,} finding{'s' * (len(found.findings) != 1)} in {bad:,} of them"
    click.echo(f"{shards}: {many}")


def _table(findings: tuple[Finding, ...]) -> Table:
    """A row for each finding; of the places only the columns that say something. Long problems take several lines."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column("Shard", overflow="fold", max_width=28)
    places = [
        (title, field)
        for title, field in (("Frame", "frame"), ("Line", "line"), ("Byte", "byte"))
        if any(getattr(finding, field) is not None for finding in findings)
    ]
    for title, _ in places:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("Problem", overflow="fold")
    for finding in findings:
        cells = [getattr(finding, field) for _, field in places]
        table.add_row(
            Text(visible(finding.shard)),
            *("" if cell is None else f"{cell:,}" for cell in cells),
            Text(finding.problem),
        )
    return table
