"""`pilekit sample`: random documents of a corpus."""

from __future__ import annotations

from typing import Any

import click

from pilekit.cli.display.output import report_skipped
from pilekit.cli.look.documents import chosen, document_options, print_documents, tell_if_none
from pilekit.cli.options import cluster_option, jobs_option
from pilekit.display.progress import byte_progress


@click.command()
@document_options
@click.option("--seed", type=int, default=0, help="Another seed draws other documents.")
@jobs_option
@cluster_option
def command(paths: tuple[str, ...], as_json: bool, full: bool, **options: Any) -> None:
    """Print documents drawn at random from the whole corpus, in its order.

    Every document that passes all conditions is equally likely. The same seed draws the same documents, and a larger
    sample holds a smaller one. All shards are read. To write a share of a corpus as shards, use `select --sample`. A
    terminal gets the first 2,000 characters of each text, unless --full is given.

    \b
    Example:
      pilekit sample 00.jsonl.zst -n 3
      pilekit sample data/ --subsets GitHub --min-bytes 1000 --seed 7
      pilekit sample data/ -n 1000 --json > sample.jsonl
    """
    from pilekit.pipeline.sample_documents import sample_documents

    corpus, names, stages = chosen(paths, options)
    with byte_progress("drawing", corpus.size) as advance:
        documents, skipped = sample_documents(corpus, subsets=names, stages=stages, advance=advance, **options)
    for document in documents:
        print_documents(document, as_json=as_json, full=full)
    tell_if_none({name for document in documents for name in document.subsets}, corpus, names)
    report_skipped(skipped)
