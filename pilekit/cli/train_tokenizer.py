"""`pilekit train-tokenizer`: a byte-level BPE tokenizer of one's own corpus."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pilekit.cli.byte_size import ByteSize
from pilekit.cli.corpus_arguments import corpus_argument, exact_subsets, open_corpus
from pilekit.errors import visible
from pilekit.progress import byte_progress


@click.command("train-tokenizer")
@corpus_argument
@click.option("--vocab-size", type=click.IntRange(min=1), required=True, help="Number of ids, special tokens included.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The tokenizer.json to write.")
@click.option("--bytes", "sample_bytes", type=ByteSize(), default="200MB", show_default=True, help="Text to train on.")
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses which documents.")
def command(
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: str | None,
    vocab_size: int,
    out: Path,
    sample_bytes: int,
    seed: int,
) -> None:
    """Train a byte-level BPE tokenizer on a sample of a corpus.

    The sample is spread over the training shards; of each shard, at most the beginning is read: eight times its part of
    the sample. The same corpus, options and seed give the same file, byte for byte. Id 0 is <|endoftext|>, id 1
    <|padding|>; every text comes back from its tokens unchanged.

    \b
    Example:
      pilekit train-tokenizer pile/train --vocab-size 50257 --out tokenizer.json
      pilekit train-tokenizer 00.jsonl.zst --subsets ArXiv,GitHub --bytes 1GB --vocab-size 32000 --out code.json
    """
    from pilekit.tokenize import SampledSubset, train_tokenizer

    corpus = open_corpus(paths, manifest)
    chosen = exact_subsets(subsets, corpus)
    trained = train_tokenizer(corpus, vocab_size, out, chosen, sample_bytes, seed=seed, progress=byte_progress)

    table = Table("sampled subset", box=None, pad_edge=False)
    for column in ("documents", "bytes", "tokens/byte"):
        table.add_column(column, justify="right")
    parts = trained.subsets.values()
    total = SampledSubset(
        *(sum(column) for column in zip(*((p.documents, p.bytes, p.tokens) for p in parts), strict=True))
    )
    for name, part in [*trained.subsets.items(), ("total", total)]:
        table.add_row(Text(visible(name)), f"{part.documents:,}", f"{part.bytes:,}", f"{part.tokens / part.bytes:.4f}")
    Console(highlight=False).print(table)
    if trained.vocab_size < vocab_size:
        click.echo(
            f"the sample has no more pairs to merge: {trained.vocab_size:,} ids instead of {vocab_size:,}", err=True
        )
    click.echo(f"wrote {visible(str(out))}: {trained.vocab_size:,} ids")
