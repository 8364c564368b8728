"""`pilekit assemble`: a corpus from sources, with epochs, shards and a hold-out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilekit.cli.display.output import print_result, say
from pilekit.cli.options import memory_option, out_option, run_options
from pilekit.display.progress import step_progress


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@out_option
@click.option("--plan", is_flag=True, help="Only read the sources, and print what would be written.")
@memory_option("to sort and to hold lines")
@run_options
def command(manifest: Path, as_json: bool, **options: Any) -> None:
    """Build a corpus: train shards and a hold-out that does not leak, from the sources in MANIFEST.

    The manifest names the files, folders and globs of each subset, its epochs and, if documents share text, the field
    that groups them. A text or group that is held out stands nowhere else. Counts are exact. Every train shard is a
    uniform sample of the whole, in random order. Memory does not grow with the sources. A killed run resumes when run
    again. docs/corpora.md shows a manifest.

    \b
    Example:
      pilekit assemble mine.toml --out mine --plan
      pilekit assemble mine.toml --out mine
      pilekit stats mine --manifest mine.toml --copies
    """
    from pilekit.assemble import assemble_corpus

    with step_progress() as advance:
        assembled = assemble_corpus(manifest, advance=advance, **options)
    if not print_result(assembled, as_json):
        return
    summary = assembled.summary
    say(assembled.sum())
    shards = f"{summary['shards']:,} train shards, shuffled with seed {summary['seed']}"
    folder = assembled.folder
    if assembled.written:
        say(f"{shards}, in {folder}")
    else:
        say(f"planned: {shards}; {folder} keeps the counts; run the same command without --plan to write the shards")
