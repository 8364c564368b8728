"""`pilekit seen`: in which steps a training run has seen documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilekit.cli.display.output import print_result, printed, say
from pilekit.cli.options import cluster_option, folder, folder_option, jobs_option, json_option
from pilekit.display.progress import step_progress


@click.command()
@click.argument("run", type=folder, metavar="[RUN]", required=False)
@click.option("--documents", type=Path, metavar="FILE", help="Documents: lines of grep, or .jsonl or .parquet of them.")
@click.option("--text", metavar="TEXT", help="The documents that hold this text, character for character.")
@click.option("--trace", type=Path, metavar="FILE", help="The documents that a result of `pilekit trace` names.")
@click.option("--subset", metavar="NAME", help="All documents of this subset that were in a step.")
@click.option("--against", metavar="PATH", help="Exact and near copies of other documents: a shard of an opt-out list.")
@folder_option("--copies", "A finished dedup of the run's data: also exact and near copies.")
@click.option("--receipt", type=Path, metavar="FILE", help="A new file for question, answer and sums, to be checked.")
@click.option("--check", type=Path, metavar="FILE", help="Compute the answer of a receipt again, without RUN.")
@jobs_option
@cluster_option
@json_option
@click.pass_context
def command(context: click.Context, /, run: Path | None, check: Path | None, as_json: bool, **options: Any) -> None:
    """Tell in which steps a training run has seen documents, how often, and how many tokens of them.

    RUN is the folder that `pilekit train` wrote, which logs the documents of each step. Steps that it has not logged
    are replayed from its data; run this command where you ran `pilekit train`. "In no step" is said of a document only
    after all pieces of all steps were looked at, and of a text or copies after all shards were read. Near copies are as
    similar as `pilekit dedup` asks by default. --check says whether a receipt holds, with exit code 1 and a line for
    each difference if not.

    \b
    Example:
      pilekit grep 'Riemann hypothesis' data/ > found.txt; pilekit seen runs/run --documents found.txt
      pilekit seen runs/run --text 'It was the best of times' --copies unique/ --receipt receipt.json
      pilekit seen --check receipt.json
      pilekit seen runs/run --against opt-out.jsonl.zst
      pilekit seen runs/run --subset ArXiv --json
    """
    if check is not None:
        work = {name: options.pop(name) for name in ("jobs", "cluster")}
        if run is not None or any(value is not None for value in options.values()):
            raise click.UsageError("--check takes all from the receipt: leave out RUN and the other options.")
        _check(context, check, as_json, **work)
        return
    if run is None:
        raise click.UsageError("name the folder of a run, or a receipt with --check.")
    from pilekit.exposure.seen import seen

    with step_progress() as advance:
        result = seen(run, advance=advance, **options)
    print_result(result, as_json)
    if options["receipt"] is not None:
        say(f"receipt in {options['receipt']}", err=as_json)


def _check(context: click.Context, receipt: Path, as_json: bool, **work: Any) -> None:
    from pilekit.exposure.check_receipt import check_receipt

    with step_progress() as advance:
        result = check_receipt(receipt, advance=advance, **work)
    if not printed(result.to_dict(), as_json):
        for line in str(result).splitlines():
            say(line)
    if not result.holds:
        context.exit(1)
