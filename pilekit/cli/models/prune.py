"""`pilekit prune`: a sparser or smaller copy of a model, and what it costs in bits per byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pilekit.cli.display.output import print_fitted, say
from pilekit.cli.display.tables import prune_table
from pilekit.cli.models.bpb import score_model
from pilekit.cli.options import Described, adapter_option, corpus_argument, exact_subsets, open_corpus
from pilekit.display.progress import waiting


@click.command()
@click.argument("model_dir")
@corpus_argument
@adapter_option
@click.option(
    "--magnitude", type=float, metavar="S", help="Share of each matrix's weights that becomes 0: the smallest."
)
@click.option("--heads", type=click.IntRange(min=1), metavar="N", help="Attention heads that each layer loses.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="New folder for the model.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Score only the first N documents of a subset.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the tables.")
def command(
    model_dir: str,
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: Described,
    adapter: Path | None,
    magnitude: float | None,
    heads: int | None,
    out: Path,
    limit: int | None,
    as_json: bool,
) -> None:
    """Write a pruned copy of a model, and compare the two on the documents at PATH.

    --magnitude 0.3 sets the smallest 30 % of the weights of each matrix in the layers to 0. --heads 2 takes from each
    layer the two attention heads with the smallest output weights: cut out of the matrices where config.json can say
    so (models like Llama), else set to 0. Both need no data. With PATH both models are scored on the same documents.

    \b
    Example:
      pilekit prune runs/small/model data/val.jsonl.zst --magnitude 0.3 --out sparse
      pilekit prune runs/small/model --heads 1 --out fewer-heads
    """
    from pilekit.models.folder import check_folder
    from pilekit.tokenize.tokenizer_file import tokenizer_file

    if (magnitude is None) == (heads is None):
        raise click.UsageError("give --magnitude or --heads, one of the two.")
    check_folder(model_dir, adapter)
    tokenizer_file(model_dir)
    corpus = open_corpus(paths, manifest).only_held_out() if paths else None
    rules: dict[str, Any] = {"limit": limit, "subsets": None if corpus is None else exact_subsets(subsets, corpus)}
    with waiting("loading torch"):
        from pilekit.train.model.prune import prune_model
    with waiting("pruning"):
        pruned = prune_model(model_dir, out, magnitude=magnitude, heads=heads, adapter=adapter)
    results = []
    if corpus is not None:
        results.append(score_model(model_dir, corpus, rules | {"adapter": adapter}, None, "scoring"))
        results.append(score_model(str(out), corpus, rules, None, "scoring"))
    costs = [result.cost for result in results if result.cost is not None]
    speeds = [cost.tokens_per_second for cost in costs]
    comparison = None
    if results:
        from pilekit.evaluate.results.compare import compare

        comparison = compare(results)
    if as_json:
        figures = None if comparison is None else comparison.to_dict()
        result = {"pruned": pruned.to_dict(), "tokens_per_second": speeds, "comparison": figures}
        click.echo(json.dumps(result, indent=2))
        return
    from pilekit.evaluate.show.output import comparison_output

    first = model_dir if adapter is None else f"{model_dir} + {adapter}"
    print_fitted(prune_table((f"A: {first}", f"B: {out}"), pruned, speeds))
    if comparison is not None:
        click.echo()
        print_fitted(comparison_output(comparison))
    say(f"written: {out}" + (f", heads {pruned.heads}" if pruned.heads else ""), err=True)
