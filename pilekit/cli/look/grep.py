"""`pilekit grep`: the documents in which a pattern is found, or their number per subset."""

from __future__ import annotations

import shutil
import sys
from contextlib import closing, nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from pilekit.cli.display.output import print_fitted, printed, report_skipped
from pilekit.cli.display.tables import grep_table
from pilekit.cli.look.head_sample import min_bytes_option
from pilekit.cli.options import Described, cluster_option, corpus_argument, jobs_option, on_error_option, open_subsets
from pilekit.display.progress import byte_progress
from pilekit.errors import counted, visible

if TYPE_CHECKING:
    from pilekit.pipeline.find_text import FoundText


@click.command()
@click.argument("regex", metavar="REGEX")
@corpus_argument
@click.option("-n", "most", type=click.IntRange(min=1), metavar="N", help="Stop after N documents.")
@click.option("-i", "--ignore-case", is_flag=True, help="Find capital and small letters alike.")
@min_bytes_option
@click.option("--count", "counting", is_flag=True, help="Only count the documents, per subset.")
@on_error_option()
@jobs_option
@cluster_option
@click.option("--json", "as_json", is_flag=True, help="A line of JSON per document; with --count, one object.")
def command(
    regex: str,
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: Described,
    most: int | None,
    ignore_case: bool,
    counting: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Print each document in whose text REGEX is found: shard, number, subset, and the line of its first match.

    REGEX is a regular expression of Python's re, searched in the decoded text. `pilekit show SHARD NUMBER` prints the
    whole document. Exit code 1 if nothing is found, as grep does.

    \b
    Example:
      pilekit grep 'Riemann hypothesis' data/ --subsets ArXiv
      pilekit grep -i 'lorem ipsum' 00.jsonl.zst -n 5
      pilekit grep 'BEGIN (RSA )?PRIVATE KEY' data/ --count
    """
    from pilekit.pipeline.find_text import Counts, find_text
    from pilekit.shards.read.absent_label import check_label

    if counting and most is not None:
        raise click.UsageError("--count counts all documents; leave out -n.")
    corpus, names = open_subsets(paths, manifest, subsets)
    pattern = f"(?i){regex}" if ignore_case else regex
    counts, labels = Counts(), set[str]()
    lines_on_terminal = sys.stdout.isatty() and not counting
    progress = nullcontext(None) if lines_on_terminal else byte_progress("searching", corpus.size)
    with (
        progress as advance,
        closing(find_text(corpus, pattern, counts, subsets=names, advance=advance, **options)) as matches,
    ):
        for document in islice(matches, most):
            labels.add(document.subset)
            if not counting:
                click.echo(msgspec.json.encode(document) if as_json else _line(document))
    report_skipped(counts.skipped)
    if counting:
        result: dict[str, Any] = {
            "found": counts.matched.total(),
            "documents": counts.read.total(),
            "skipped": counts.skipped.count,
        }
        result["subsets"] = {name: {"found": counts.matched[name], "documents": n} for name, n in counts.read.items()}
        with suppress(SystemExit):  # A reader that has gone does not make anything found.
            if not printed(result, as_json):
                print_fitted(grep_table(result))
    check_label(corpus, {*labels, *counts.read}, names, stopped=most is not None)
    if not counts.matched.total():
        click.echo(f"not found in {counted(counts.read.total())}", err=True)
        sys.exit(1)


def _line(document: FoundText) -> str:
    """The place of the document, and the line of the match. A terminal shows the middle of a long line."""
    place = f"{visible(document.shard)} {document.number} {visible(document.subset, 40)}: "
    before, match, after = visible(document.before), visible(document.match), visible(document.after)
    if not sys.stdout.isatty():
        return place + before + match + after
    room = max(40, shutil.get_terminal_size().columns - len(place) - 1)
    match = match[:room]
    before = before[max(0, len(before) - (room - len(match)) // 2) :]
    return place + before + click.style(match, bold=True) + after[: room - len(before) - len(match)]
