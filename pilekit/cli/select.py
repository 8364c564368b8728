"""`pilekit select`: part of a corpus, as a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilekit.cli.display.output import print_result, say
from pilekit.cli.options import Described, corpus_argument, on_error_option, open_subsets, out_option, shard_options
from pilekit.display.progress import byte_progress
from pilekit.errors import counted

CONDITIONS = ("subsets", "sample", "match", "min_bytes", "format")


@click.command()
@corpus_argument
@click.option("--sample", type=float, metavar="SHARE", help="About this share of the documents: 0.01.")
@click.option("--seed", type=int, default=0, help="Seed of --sample.")
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
@on_error_option()
@shard_options
def command(paths: tuple[str, ...], manifest: Described, out: Path, as_json: bool, **options: Any) -> None:
    """Copy part of a corpus: by subset, at random, by a pattern in the text, by length, or in another format.

    Documents that pass all conditions are written to DIR, in shards of the same names. Lines are copied byte for byte,
    so every label stays. Parquet holds text and label alone, and opens in datasets and polars. With the same seed, a
    sample is the same anywhere and at any time. A killed run resumes when run again.

    \b
    Example:
      pilekit select data/ --subsets ArXiv,GitHub --out papers-and-code
      pilekit select data/ --sample 0.01 --min-bytes 1000 --out small
      pilekit select data/ --subsets PMC --match '(?i)randomi[sz]ed' --out trials --format parquet
    """
    if all(options[name] is None for name in CONDITIONS):
        raise click.UsageError("say what to select: --subsets, --sample, --match, --min-bytes, or --format for all")
    from pilekit.pipeline.selecting import select_corpus

    corpus, options["subsets"] = open_subsets(paths, manifest, options["subsets"])
    corpus, part = corpus.without_held_out(), options["part"]
    options["format"] = options["format"] or "zst"
    with byte_progress("selecting", corpus.part(part).size) as advance:
        selected = select_corpus(corpus, out, advance=advance, **options)
    if not print_result(selected, as_json, corpus, part):
        return
    from pilekit.shards.verify.findings import some_names

    empty = selected.summary["empty"]
    say(f"{counted(len(corpus) - len(empty), 'shard')} in {out}")
    if empty:
        say(f"nothing in {some_names(empty)}")
