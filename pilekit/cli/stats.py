"""`pilekit stats`: the contents of a corpus, as a table, as JSON, as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilekit.cli.display.output import print_result, say
from pilekit.cli.options import Described, corpus_argument, open_corpus, open_subsets, run_options
from pilekit.display.progress import byte_progress
from pilekit.errors import counted


@click.command()
@corpus_argument
@click.option("--tokenizer", metavar="FILE", help="Count tokens too: a tokenizer.json, a folder, or a cached name.")
@click.option(
    "--copies", is_flag=True, help="Count documents whose text occurred before; 10 bytes of memory a document."
)
@click.option("--audit", is_flag=True, help="Compare with the published figures in the manifest.")
@run_options
@click.option("--plot", metavar="FILE", help="Draw shares and document lengths into a .png, .svg or .pdf file.")
def command(
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: Described,
    as_json: bool,
    plot: str | None,
    audit: bool,
    **options: Any,
) -> None:
    """Count documents, bytes and tokens per subset.

    Sizes are UTF-8 bytes of the text, before it was JSON; median and p99 are right within 1 %. Memory does not depend
    on the size of the corpus. `-` reads standard input, compressed or not. A shard with an index (`pilekit index`) is
    not read again, except to count tokens.

    --audit reads all shards, and shows what others have published about the corpus beside what this one has: documents,
    distinct texts, copies of the most frequent, lengths, occurrences of strings, tokens.

    \b
    Example:
      pilekit stats 00.jsonl.zst
      pilekit stats data/ --subsets ArXiv,GitHub --tokenizer 20B_tokenizer.json --copies
      pilekit stats pile/ --audit
      zstd -dc 00.jsonl.zst | pilekit stats --json -
    """
    from pilekit.artifacts.atomic_write import check_target
    from pilekit.stats.plot import draw, figure_format, save_figure
    from pilekit.stats.summary import corpus_stats

    if audit:
        if subsets is not None or plot is not None or options["copies"]:
            raise click.UsageError(
                "--audit takes the whole corpus, copies too: leave out --subsets, --plot and --copies."
            )
        from pilekit.stats.audit import audit_corpus

        del options["copies"]
        corpus = open_corpus(paths, manifest)
        with byte_progress("auditing", corpus.size) as advance:
            print_result(audit_corpus(corpus, advance=advance, **options), as_json)
        return
    if plot is not None:  # Refuse a bad target now, not after the counting.
        figure_format(plot)
        check_target(plot, follow_links=True)
    corpus, names = open_subsets(paths, manifest, subsets)
    with byte_progress("counting", corpus.size) as advance:
        stats = corpus_stats(corpus, subsets=names, advance=advance, **options)
    if print_result(stats, as_json) and stats.skipped.count:
        click.echo(f"{counted(stats.skipped.count, 'bad line')} skipped.")
    if plot is not None:
        save_figure(draw(stats), Path(plot))
        say(f"drawn: {plot}", err=True)
