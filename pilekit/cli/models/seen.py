"""`pilekit seen`: in which steps a training run has seen documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilekit.cli.display.output import print_result
from pilekit.cli.options import cluster_option, folder, folder_option, jobs_option, json_option


@click.command()
@click.argument("run", type=folder, metavar="RUN")
@click.option("--documents", type=Path, metavar="FILE", help="Documents: lines of grep, or .jsonl or .parquet of them.")
@click.option("--text", metavar="TEXT", help="The documents that hold this text, character for character.")
@click.option("--trace", type=Path, metavar="FILE", help="The documents that a result of `pilekit trace` names.")
@click.option("--subset", metavar="NAME", help="All documents of this subset that were in a step.")
@folder_option("--copies", "A finished dedup of the run's data: also exact and near copies.")
@jobs_option
@cluster_option
@json_option
def command(run: Path, as_json: bool, **options: Any) -> None:
    """Tell in which steps a training run has seen documents, how often, and how many tokens of them.

    RUN is the folder that `pilekit train` wrote, which logs the documents of each step. Steps that it has not logged
    are replayed from its data; run this command where you ran `pilekit train`. "In no step" is said of a document only
    after all pieces of all steps were looked at, and of a text after all shards were read.

    \b
    Example:
      pilekit grep 'Riemann hypothesis' data/ > found.txt; pilekit seen runs/run --documents found.txt
      pilekit seen runs/run --text 'It was the best of times' --copies unique/
      pilekit seen runs/run --subset ArXiv --json
    """
    from pilekit.exposure.seen_documents import seen

    print_result(seen(run, **options), as_json)
