"""`pilekit tokenize`: token files for other trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilekit.cli.display.output import print_result, say
from pilekit.cli.options import (
    Described,
    Similarity,
    corpus_argument,
    exact_subsets,
    on_error_option,
    open_corpus,
    prefix,
    shard_options,
    token_format_option,
)
from pilekit.display.progress import byte_progress
from pilekit.errors import counted


@click.command()
@corpus_argument
@click.option("--tokenizer", required=True, metavar="F", help="A tokenizer.json, a tokenizer folder or a cached name.")
@click.option("--out", required=True, type=prefix, metavar="PREFIX", help="How the files' names begin: tokens/pile.")
@click.option("--dedup", type=click.Path(path_type=Path), metavar="DIR", help="Leave out what `pilekit dedup` removed.")
@click.option(
    "--copies",
    type=Similarity(0, 1),
    default=0.0,
    metavar="A",
    help="With --dedup: a kept document with s documents in its cluster stands s^A times.  [default: 0, once]",
)
@click.option("--copies-max", type=click.IntRange(1), default=100, help="The most uses of a document by --copies.")
@click.option(
    "--append-eod/--no-append-eod",
    default=None,
    help="The EOD token behind each document (llmc: in front).  [default: for npy, ds and llmc]",
)
@click.option("--eod", metavar="TOKEN", help="Another token than the tokenizer's EOD: '</s>'.")
@token_format_option
@click.option(
    "--tokens-per-file",
    type=click.IntRange(min=1),
    metavar="N",
    help="Cut files at document ends.  [default: not for megatron; 10^8 for llmc, else 2^29]",
)
@on_error_option()
@shard_options
def command(
    paths: tuple[str, ...],
    manifest: Described,
    out: Path,
    dedup: Path | None,
    copies: float,
    copies_max: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the token ids of a corpus as files for another trainer, and a table of the documents.

    The ids of all documents stand one after another, in the order of the corpus. PREFIX...documents.parquet names the
    shard, number and subset of each. A killed run resumes when run again. docs/tokens.md says which trainer reads what.

    \b
    Example:
      pilekit tokenize data/ --tokenizer 20B_tokenizer.json --out tokens/pile
      pilekit tokenize data/ --tokenizer 20B_tokenizer.json --out tokens/pile --append-eod --dedup unique
      pilekit tokenize data/ --tokenizer tokenizer.json --out tokens/pile --format npy --subsets ArXiv,GitHub
    """
    from pilekit.tokenize.files.tokenize_corpus import tokenize_corpus

    if copies and dedup is None:
        raise click.UsageError("--copies weighs the documents that a dedup kept; give --dedup too.")
    corpus, part = open_corpus(paths, manifest).without_held_out(), options["part"]
    options["subsets"] = exact_subsets(options["subsets"], corpus)
    if dedup is not None:
        from pilekit.dedup.drop_duplicates import DropDuplicates

        options["stages"] = [DropDuplicates(dedup)]
        if copies:
            from pilekit.dedup.cluster_weights import ClusterWeights

            options["weights"] = ClusterWeights(DropDuplicates(dedup), copies, copies_max)
    with byte_progress("tokenizing", corpus.part(part).size) as advance:
        tokenized = tokenize_corpus(corpus, out, advance=advance, **options)
    if not print_result(tokenized, as_json, corpus, part):
        return
    summary = tokenized.summary
    if summary["empty"]:
        say(f"{counted(summary['empty'])} without tokens left out")
    say(f"{summary['dtype']} ids in {summary['files'][0]}")
