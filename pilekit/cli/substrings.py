"""`pilekit substrings`: a corpus without the passages of earlier documents."""

from __future__ import annotations

from typing import Any

import click

from pilekit.cli.display.output import print_result, report_protected, say, sum_of
from pilekit.cli.options import Described, corpus_and_only, folder_option, held_out_option, open_subsets, sort_options
from pilekit.display.progress import step_progress
from pilekit.errors import visible


@click.command()
@corpus_and_only
@click.option(
    "--min-bytes", type=click.IntRange(8, 1 << 16), default=100, help="The shortest run that counts, in bytes of UTF-8."
)
@folder_option("--dedup", "Leave out the documents that this `pilekit dedup` removed.")
@held_out_option
@folder_option("--out", "New folder for the clean shards, the proofs and the summary.", default="substrings")
@click.option("--no-write", is_flag=True, help="No clean shards; proofs and summary only.")
@sort_options
def command(paths: tuple[str, ...], manifest: Described, no_write: bool, as_json: bool, **options: Any) -> None:
    """Cut out of each document the passages that an earlier document has.

    A repeat is a run of 100 bytes or more that also occurs in an earlier document. Repeats that touch are joined. The
    cut begins and ends with whole words. All other text stays byte for byte, and so does the first occurrence. A
    document with no letter or digit left is dropped. A passage that only its own document repeats stays.
    repeats.parquet in DIR names each cut and the earliest place of its text. Val and test shards among others are
    left out, or with --held-out protect they stay whole and count as earlier than the others. Memory does not grow with
    the corpus. A killed run resumes when run again.

    \b
    Example:
      pilekit dedup data/ --no-write
      pilekit substrings data/ --dedup dedup
      pilekit duplicates substrings
    """
    from pilekit.cutting.substrings import substrings_corpus

    corpus, options["subsets"] = open_subsets(paths, manifest, options["subsets"], only=options["only"])
    if options["dedup"] is None:
        click.echo(
            "warning: without --dedup, whole copies of a document are emptied, those that the Pile repeats on purpose "
            "too; run `pilekit dedup --no-write` first, then give its folder: --dedup dedup",
            err=True,
        )
    with step_progress() as advance:
        result = substrings_corpus(corpus, write=not no_write, advance=advance, **options)
    if not print_result(result, as_json):
        return
    summary = result.summary
    say(f"{sum_of(summary, 'untouched', 'cut', 'dropped')}; {summary['bytes_removed']:,} bytes removed")
    if "held_out" in summary:
        report_protected(summary["held_out"], f"{summary['held_out']['spans']:,} of the spans are text of these")
    for passage in summary["passages"][:3]:
        click.echo(f"{passage['count']:,} times: {visible(' '.join(passage['text'].split()), 60)}")
    written = "" if no_write else "clean shards and "
    say(f"{written}repeats.parquet in {result.folder}")
