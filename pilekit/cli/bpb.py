"""`pilekit bpb`: bits per byte of a model, as a table or as JSON."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilekit.cli.corpus_arguments import corpus_argument, exact_subsets, open_corpus
from pilekit.errors import visible
from pilekit.progress import byte_progress

if TYPE_CHECKING:
    from pilekit.shards.reading import OnError


@click.command()
@click.argument("model_dir")
@corpus_argument
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N documents of each subset.")
@click.option(
    "--max-length",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens in a window; as many as the model has positions by default.",
)
@click.option(
    "--prefix",
    default="auto",
    show_default=True,
    metavar="auto|bos|eos|none|ID",
    help="What stands before a document's first token; auto: BOS, or EOS where there is no BOS.",
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="At a line that is no document: stop, or skip and count it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, the same as in result.json, instead of the table.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write result.json into this folder too.",
)
def command(
    model_dir: str,
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: str | None,
    limit: int | None,
    max_length: int | None,
    prefix: str,
    on_error: OnError,
    as_json: bool,
    out: Path | None,
) -> None:
    """Score a model in bits per byte, for each subset and over all.

    MODEL_DIR is a folder in Hugging Face's format: config.json, safetensors and tokenizer.json. Each document is scored
    alone, in windows as in lm-evaluation-harness; what is divided by are the UTF-8 bytes of its raw text. Of a corpus
    with val or test shards among others, only those are scored.

    \b
    Example:
      pilekit bpb runs/small/model val.jsonl.zst
      pilekit bpb pythia-14m data/ --subsets ArXiv,GitHub --limit 100 --out scores/
    """
    from pilekit.shards.atomic import check_target

    corpus = open_corpus(paths, manifest)
    names = exact_subsets(subsets, corpus)
    from pilekit.evaluate.bits_per_byte import bits_per_byte  # torch, transformers: seconds
    from pilekit.evaluate.result import RESULT_FILE, result_text, write_result

    if out is not None:
        check_target(out / RESULT_FILE)
    corpus = corpus.only_held_out()
    with byte_progress("scoring", None if limit else corpus.size) as advance:
        result = bits_per_byte(
            model_dir,
            corpus,
            subsets=names,
            limit=limit,
            max_length=max_length,
            prefix=prefix,
            on_error=on_error,
            advance=advance,
        )
    if out is not None:
        written = write_result(result, out)
    if as_json:
        click.echo(result_text(result), nl=False)
    else:
        from rich.console import Console

        from pilekit.evaluate.table import result_table

        width = shutil.get_terminal_size().columns
        Console(file=sys.stdout, width=width, highlight=False).print(result_table(result, width))
    if out is not None:
        click.echo(f"written: {visible(str(written))}", err=True)
