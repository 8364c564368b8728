"""`pilekit memorised`: how many sequences a model continues word for word, as a table, as JSON, as a figure.

With --compare: the sequences that one of two models has memorised and the other has not.

Under torchrun every rank runs this, and only rank 0 prints.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pilekit.cli.display.output import (
    print_fitted,
    rank,
    rank_score_progress,
    rank_waiting,
    report_once,
    say,
    terminal,
)
from pilekit.cli.options import (
    ByteSize,
    Described,
    adapter_option,
    corpus_argument,
    exact_subsets,
    folder,
    on_error_option,
    open_corpus,
)

_COUNT = click.IntRange(min=1)


@click.command()
@click.argument("model_dir")
@corpus_argument
@adapter_option
@click.option("--prompt", type=_COUNT, default=32, metavar="K", help="Tokens of a sequence that the model is given.")
@click.option("--continuation", type=_COUNT, default=32, metavar="N", help="Tokens of it that the model must give.")
@click.option(
    "--every", default="first", metavar="first|S", help="A sequence at each document's start, or each S tokens."
)
@click.option("--limit", type=_COUNT, metavar="N", help="Only the first N documents of each subset.")
@click.option("--limit-bytes", type=ByteSize(), metavar="SIZE", help="Only so many bytes of text of each subset.")
@click.option("--sample", type=float, metavar="SHARE", help="Only about this share of the documents: 0.01.")
@click.option("--seed", type=int, default=0, help="Seed of --sample.")
@click.option("--dtype", type=click.Choice(["auto", "fp32", "bf16", "fp16"]), default="auto", help="Precision.")
@click.option("--batch-tokens", type=_COUNT, metavar="N", help="Tokens in a forward pass.")
@click.option("--device", default="auto", metavar="auto|cpu|cuda|cuda:N", help="Where to compute.")
@click.option(
    "--copies", type=folder, metavar="DIR", help="Also by the copies that this finished `pilekit dedup` has recorded."
)
@click.option(
    "--seen", type=folder, metavar="RUN", help="Also by how often and how long ago this run has seen the document."
)
@on_error_option()
@click.option("--out", type=folder, metavar="DIR", help="Record each sequence, and resume from the records.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
@click.option("--plot", metavar="FILE", help="Draw the shares into a .png, .svg or .pdf file.")
@click.option("--compare", "comparing", is_flag=True, help="Compare two results, given as --out folders.")
@click.pass_context
def command(
    context: click.Context,
    /,
    model_dir: str,
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: Described,
    as_json: bool,
    plot: str | None,
    out: Path | None,
    comparing: bool,
    **rules: Any,
) -> None:
    """Count the sequences that a model has memorised: it continues them word for word.

    A sequence is a prompt of K tokens of a document and the N tokens behind it. It is memorised if greedy decoding
    from the prompt gives exactly these N tokens. Nothing is generated: one forward pass over a sequence gives the
    answer. MODEL_DIR is a causal model, as for `pilekit bpb`. All shards count, training shards too.

    --copies DIR also counts the sequences by the number of copies of their document, and --seen RUN by how often the
    run has trained on it, and how many steps ago. Documents that it never saw are a control.

    With --out DIR every sequence is recorded, in DIR/sequences.parquet at the end, and the same command resumes after
    an interruption. --compare A B tells which sequences B has memorised and A has not, and which it has forgotten. A
    and B are folders that --out wrote.

    \b
    Example:
      pilekit memorised runs/small/model data/train --limit 1000
      pilekit memorised pythia-160m data/ --every 512 --out memorised/160m --plot shares.png
      pilekit memorised runs/small/model data/ --copies unique --seen runs/small --plot copies.png
      pilekit memorised --compare memorised/70m memorised/160m
      torchrun --nproc-per-node 2 -m pilekit memorised pythia-160m data/ --out memorised/160m
    """
    if comparing:
        _compare(context, [model_dir, *paths], as_json)
        return
    from pilekit.artifacts.atomic_write import check_target
    from pilekit.models.folder import check_folder
    from pilekit.stats.plot import figure_format
    from pilekit.tokenize.tokenizer_file import tokenizer_file

    if rank():
        logging.getLogger("pilekit").setLevel(logging.ERROR)
    with report_once():
        check_folder(model_dir, rules["adapter"])
        tokenizer_file(model_dir)
        if plot is not None:
            figure_format(plot)
            check_target(plot, follow_links=True)
        corpus = open_corpus(paths, manifest)
        rules["subsets"] = exact_subsets(subsets, corpus)
    with rank_waiting("loading torch"):
        from pilekit.exposure.memorised import memorised
    with rank_score_progress("scoring") as report:
        result = memorised(model_dir, corpus, out=out, report=report, **rules)
    if rank():
        return
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2, allow_nan=False))
    else:
        from pilekit.evaluate.show.memorised_output import memorised_output

        width = terminal(160).width
        print_fitted(memorised_output(result, width), width)
    if out is not None:
        say(f"written: {out / 'sequences.parquet'}", err=True)
    if plot is not None:
        from pilekit.evaluate.show.memorised_output import write_memorised_figure

        write_memorised_figure(result, plot)
        say(f"drawn: {plot}", err=True)


def _compare(context: click.Context, folders: list[str], as_json: bool) -> None:
    """Print the comparison of two results."""
    typed = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if len(folders) != 2 or typed - {"model_dir", "paths", "comparing", "as_json"}:
        raise click.UsageError("--compare takes two folders that --out wrote, and no other option but --json.")
    from pilekit.evaluate.results.memorised_comparison import compare_memorised

    with report_once():
        result = compare_memorised(*folders)
    if rank():
        return
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2, allow_nan=False))
        return
    from pilekit.evaluate.show.memorised_output import memorised_comparison_output

    print_fitted(memorised_comparison_output(result), 80)
