"""`pilekit train-tokenizer`: a byte-level BPE tokenizer of your own corpus."""

from __future__ import annotations

from pathlib import Path

import click

from pilekit.cli.display.output import say
from pilekit.cli.options import ByteSize, Described, corpus_argument, open_subsets
from pilekit.display.progress import step_progress


@click.command("train-tokenizer")
@corpus_argument
@click.option("--vocab-size", type=click.IntRange(min=1), required=True, help="Number of ids, special tokens included.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The tokenizer.json to write.")
@click.option("--bytes", "sample_bytes", type=ByteSize(), default="200MB", help="Text to train on.")
@click.option("--seed", type=int, default=0, help="Seed of the sample.")
def command(
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: Described,
    vocab_size: int,
    out: Path,
    sample_bytes: int,
    seed: int,
) -> None:
    """Train a byte-level BPE tokenizer on a sample of a corpus.

    The sample is spread over the training shards. Of each shard only the beginning is read, at most eight times its
    part of the sample. The same corpus, options and seed give the same file, byte for byte. Id 0 is <|endoftext|>, id 1
    <|padding|>; every text comes back from its tokens unchanged.

    \b
    Example:
      pilekit train-tokenizer pile/train --vocab-size 50257 --out tokenizer.json
      pilekit train-tokenizer 00.jsonl.zst --subsets ArXiv,GitHub --bytes 1GB --vocab-size 32000 --out code.json
    """
    from pilekit.tokenize import train_tokenizer

    corpus, chosen = open_subsets(paths, manifest, subsets)
    with step_progress() as advance:
        trained = train_tokenizer(corpus, vocab_size, out, chosen, sample_bytes, seed=seed, advance=advance)
    if trained.vocab_size < vocab_size:
        click.echo(
            f"the sample has no more pairs to merge: {trained.vocab_size:,} ids instead of {vocab_size:,}", err=True
        )
    say(f"wrote {out}: {trained.vocab_size:,} ids")
