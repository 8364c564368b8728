"""`pilekit embed`: a vector for each document, and a search for a document's nearest ones."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import click

from pilekit.cli.display.output import print_fitted, rank, rank_score_progress, rank_waiting, report_once, say
from pilekit.cli.display.tables import near_table
from pilekit.cli.options import Described, adapter_option, corpus_argument, exact_subsets, on_error_option, open_corpus
from pilekit.errors import PilekitError, shortened

_COUNT = click.IntRange(min=1)


@click.command()
@click.argument("model_dir")
@corpus_argument
@adapter_option
@click.option("--layer", type=int, default=-1, metavar="N", help="Pool these hidden states; 0: input, -1: last layer.")
@click.option(
    "--pool",
    type=click.Choice(["mean", "cls", "last"]),
    default="mean",
    help="All tokens' mean, the special token before the text, or the last token.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="X.parquet", help="The file of vectors to write.")
@click.option("--float32", is_flag=True, help="Store float32, not float16.")
@click.option("--limit", type=_COUNT, metavar="N", help="Only the first N documents of each subset.")
@click.option("--max-length", type=_COUNT, metavar="N", help="Tokens of a document that the model sees.")
@click.option("--dtype", type=click.Choice(["auto", "fp32", "bf16", "fp16"]), default="auto", help="Precision.")
@click.option("--batch-tokens", type=_COUNT, metavar="N", help="Tokens in a forward pass.")
@click.option("--device", default="auto", metavar="auto|cpu|cuda|cuda:N", help="Where to compute.")
@on_error_option()
@click.option("--near", metavar="SHARD:NUMBER", help="Print the documents nearest to this one of X.parquet.")
@click.option("--count", type=_COUNT, default=10, metavar="N", help="How many of them.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def command(
    model_dir: str,
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: Described,
    out: Path | None,
    near: str | None,
    count: int,
    as_json: bool,
    **rules: Any,
) -> None:
    """Write a vector for each document into a Parquet file, and find documents with similar vectors.

    MODEL_DIR is a causal or masked model, as for `pilekit bpb`. A document's vector pools (--pool) the hidden
    states of one layer (--layer), over as many of its first tokens as the model has positions. The same command
    resumes after an interruption, and torchrun shares the work among ranks. With --near, MODEL_DIR may be a finished
    X.parquet. Without PATH, the corpus is that of PILEKIT_DATA.

    \b
    Example:
      pilekit embed runs/small/model data/val.jsonl.zst --out val.parquet
      pilekit embed val.parquet --near val.jsonl:17
      torchrun --nproc-per-node 2 -m pilekit embed distilroberta data --pool cls --out X.parquet
    """
    from pilekit.evaluate.embeddings import Embeddings

    if rank():
        logging.getLogger("pilekit").setLevel(logging.ERROR)
    is_file = model_dir.endswith(".parquet")
    if is_file and (near is None or paths or out is not None):
        raise click.UsageError("a file of embeddings takes --near, and neither PATH nor --out.")
    if not is_file and out is None:
        raise click.UsageError("name the file of vectors with --out X.parquet.")
    shard, number = _document(near) if near is not None else ("", 0)
    if is_file:
        embeddings = Embeddings(model_dir)
    else:
        from pilekit.models.folder import check_folder
        from pilekit.tokenize.tokenizer_file import tokenizer_file

        assert out is not None
        with report_once():
            check_folder(model_dir, rules["adapter"])
            tokenizer_file(model_dir)
            corpus = open_corpus(paths, manifest).only_held_out()
            rules["subsets"] = exact_subsets(subsets, corpus)
        with rank_waiting("loading torch"):
            from pilekit.evaluate.embed_corpus import embed_corpus
        with rank_score_progress("embedding") as report:
            embeddings = embed_corpus(model_dir, corpus, out, report=report, **rules)
        if not rank():
            say(f"{len(embeddings):,} vectors of {embeddings.width:,} numbers: {out}", err=True)
    if near is None or rank():
        return
    nearest = embeddings.near(shard, number, count)
    if as_json:
        click.echo(json.dumps(nearest, indent=2))
        return
    print_fitted(near_table(nearest))


def _document(near: str) -> tuple[str, int]:
    shard, _, number = near.rpartition(":")
    if not shard or not number.isdecimal():
        raise PilekitError(f'--near takes SHARD:NUMBER, as in val.jsonl:17, not "{shortened(near, 80)}"')
    return shard, int(number)
