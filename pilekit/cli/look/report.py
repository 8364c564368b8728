"""`pilekit report`: one HTML page that shows corpora and the artefacts made from them."""

from __future__ import annotations

import click

from pilekit.cli.display.output import say
from pilekit.cli.options import Described, manifest_option
from pilekit.display.progress import step_progress


@click.command()
@click.argument("paths", metavar="DIR...", nargs=-1, required=True)
@manifest_option
@click.option("--tokenizer", metavar="FILE", help="Count the tokens of corpora: a tokenizer.json, a folder, or a name.")
@click.option("--title", default="pilekit report", help="The head of the page.")
@click.option("--date", metavar="TEXT", help="The date on the page.  [default: now, or that of $SOURCE_DATE_EPOCH]")
@click.option("--out", default="report.html", metavar="FILE", help="The page; an older one is replaced.")
def command(
    paths: tuple[str, ...], manifest: Described, tokenizer: str | None, title: str, date: str | None, out: str
) -> None:
    """Show corpora, and results made from them, on one HTML page.

    DIR is a folder that `dedup`, `clean`, `decontaminate`, `substrings`, `train` or `bpb --out` wrote, a file of
    `count --out` or `trace --out`, a saved output of `stats --json` or `verify --json`, or a folder that holds some of
    these. Anything else is a corpus, which is counted. The page is one file. It needs no network and opens from disk.

    \b
    Example:
      pilekit report demo --manifest demo
      pilekit stats data/ --copies --json > stats.json
      pilekit report stats.json unique runs/run runs/run/bpb --out report.html
    """
    with step_progress() as advance:
        from pilekit.report.page import write_report

        sections = write_report(
            paths, out, manifest=manifest, tokenizer=tokenizer, title=title, date=date, advance=advance
        )
    say(f"{out}: {', '.join(sections)}")
