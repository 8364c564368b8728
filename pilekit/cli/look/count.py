"""`pilekit count`: how often many phrases occur in a corpus, and in how many documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilekit.cli.display.output import print_result, say
from pilekit.cli.options import Described, corpus_argument, on_error_option, open_subsets, shard_options
from pilekit.display.progress import byte_progress


@click.command()
@click.argument("phrases", metavar="PHRASES", required=False)
@corpus_argument
@click.option("--phrase", "texts", multiple=True, metavar="TEXT", help="A phrase; takes the place of the file PHRASES.")
@click.option("--field", metavar="NAME", help="The phrase's field in records of PHRASES.  [default: text]")
@click.option("--words", is_flag=True, help="Compare words: case, punctuation and line breaks do not matter.")
@click.option(
    "--sort",
    type=click.Choice(["count", "given"]),
    default="count",
    help="The most frequent phrase first, or the order in which they are given.",
)
@click.option("--out", type=Path, metavar="FILE", help="Write all counts into this .parquet file.")
@on_error_option()
@shard_options
def command(
    phrases: str | None,
    paths: tuple[str, ...],
    manifest: Described,
    texts: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Count how often each phrase occurs, and in how many documents, overall and per subset.

    PHRASES is a text file with a phrase a line, or a .jsonl or .parquet file with a phrase in a field of each record;
    millions of phrases take one pass. Phrases are compared byte for byte, and occurrences may overlap. With --words,
    words are lower-cased and have no punctuation. With --out, a killed run resumes when run again.

    \b
    Example:
      pilekit count phrases.txt data/ --out counts.parquet
      pilekit count --phrase 'Riemann hypothesis' --phrase 'prime number' data/ --subsets ArXiv
      pilekit count questions.jsonl --field question --words data/
    """
    if texts and phrases is not None:
        paths, phrases = (phrases, *paths), None
    if not texts and phrases is None:
        raise click.UsageError("name a file of phrases, or give --phrase TEXT")
    if options["part"] is not None and out is None:
        raise click.UsageError("--part needs --out, where the counts of all parts are kept")
    from pilekit.trace.count_phrases import count_phrases

    corpus, options["subsets"] = open_subsets(paths, manifest, options["subsets"])
    part = options["part"]
    with byte_progress("counting", corpus.part(part).size) as advance:
        counts = count_phrases(corpus, texts or phrases or (), out, advance=advance, **options)
    if print_result(counts, as_json, corpus, part) and out is not None:
        say(f"all counts in {out}")
