"""`pilekit merge`: several token files as one, or in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilekit.cli.display.output import print_result, say
from pilekit.cli.options import json_option, prefix, token_format_option
from pilekit.display.progress import step_progress


@click.command()
@click.argument("prefixes", nargs=-1, required=True, metavar="PREFIX...")
@click.option("--out", required=True, type=prefix, metavar="PREFIX", help="How the files' names begin: tokens/pile.")
@token_format_option
@click.option(
    "--sequences-are-documents",
    is_flag=True,
    help="Take each sequence for a document: for files whose doc_idx other merges broke.",
)
@json_option
def command(prefixes: tuple[str, ...], out: Path, as_json: bool, **options: Any) -> None:
    """Join token files in the order given, without losing a document; or write one in another format.

    PREFIX is the --out of `pilekit tokenize`, or the path of an .idx of any tool. Ids are copied as they are. The
    tables of documents are joined if every file has one. A killed run resumes when run again.

    \b
    Example:
      pilekit merge tokens/00 tokens/01 --out tokens/pile
      pilekit merge tokens/pile --out olmo/pile --format npy
    """
    from pilekit.tokenize.files.merge import merge_token_files

    with step_progress() as advance:
        merged = merge_token_files(prefixes, out, advance=advance, **options)
    if print_result(merged, as_json):
        say(f"{merged.summary['dtype']} ids in {merged.summary['files'][0]}")
