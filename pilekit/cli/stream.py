"""`pilekit stream`: pack raw shards as training would, show a few rows, and say how fast it went.

The clock runs from the first byte read to the last batch, so windows that are read ahead of the last batch count
against the rate; only imports, compiling, loading the tokenizer and indexing are left out, as they happen once.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from pilekit.cli.corpus_arguments import corpus_argument, exact_subsets, open_corpus
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.errors import visible

if TYPE_CHECKING:
    from pilekit.stream import Batch, PileStream

SHOWN_ROWS = 3
SHOWN_DOCUMENTS = 4
SHOWN_CHARACTERS = 300


@click.command()
@corpus_argument
@click.option("--tokenizer", required=True, metavar="F", help="A tokenizer.json, a tokenizer folder or a cached name.")
@click.option("--seq-len", type=click.IntRange(min=1), default=2048, show_default=True, help="Tokens in a row.")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Rows in a batch.")
@click.option("--steps", type=click.IntRange(min=1), default=500, show_default=True, help="Batches to make.")
@click.option("--json", "as_json", is_flag=True, help="Print the samples and the rate as JSON.")
def command(
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: str | None,
    tokenizer: str,
    seq_len: int,
    batch_size: int,
    steps: int,
    as_json: bool,
) -> None:
    """Pack raw shards into training batches, show a few rows and the rate.

    \b
    Example:
      pilekit stream 00.jsonl.zst --tokenizer 20B_tokenizer.json
      pilekit stream data/ --tokenizer tokenizer.json --subsets ArXiv,GitHub --steps 2000
    """
    corpus = open_corpus(paths, manifest).without_held_out()
    from pilekit.stream import PileStream  # torch: a second or two that no other command should pay

    stream = PileStream(
        corpus,
        tokenizer=tokenizer,
        seq_len=seq_len,
        batch_size=batch_size,
        subsets=exact_subsets(subsets, corpus),
        outputs=("input_ids", "labels", "doc_ids", "subset_ids"),
        epochs=1 if any(shard.path == STANDARD_INPUT for shard in corpus.shards) else None,
    )
    kept: list[Batch] = []
    batches = tokens = 0
    started = time.perf_counter()
    for batch in islice(_shown_progress(stream, steps), steps):
        if batches < SHOWN_ROWS:
            kept.append(batch)
        batches += 1
        tokens += int((batch["doc_ids"] >= 0).sum())
    seconds = time.perf_counter() - started
    result = {
        "batches": batches,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "samples": [_sample(stream, *place) for place in islice(_rows(kept), SHOWN_ROWS)],
    }
    if as_json:
        click.echo(json.dumps(result))
    else:
        _print(result, stream)


def _rows(batches: list[Batch]) -> Iterator[tuple[Batch, int]]:
    """(batch, row): first the first rows of all batches, as neighbours often hold the same long document."""
    longest = max(len(batch["input_ids"]) for batch in batches)
    return (
        (batch, row)
        for row in range(longest)
        for batch in batches
        if row < len(batch["input_ids"]) and int(batch["doc_ids"][row, 0]) >= 0
    )


def _sample(stream: PileStream, batch: Batch, row: int) -> list[dict[str, Any]]:
    """The documents of one row: identity, subset, whether the row begins inside or ends with them, their text there."""
    documents = []
    for doc_id, (shard, number) in enumerate(batch.documents()[row]):
        here = batch["doc_ids"][row] == doc_id
        ids = batch["input_ids"][row][here].tolist()
        ends = ids[-1] == stream.tokenizer.eos_id
        documents.append(
            {
                "shard": shard,
                "number": number,
                "subset": stream.subset_names[int(batch["subset_ids"][row][here][0])],
                "tokens": len(ids),
                "continued": doc_id == 0 and int(batch["labels"][row, 0]) != -100,
                "ends": ends,
                "text": stream.tokenizer.decode(ids[:-1] if ends else ids),
            }
        )
    return documents


def _print(result: dict[str, Any], stream: PileStream) -> None:
    console = Console()
    for index, documents in enumerate(result["samples"], start=1):
        tokens = sum(document["tokens"] for document in documents)
        console.print(
            Text(f"sample {index}: {tokens:,} tokens of {len(documents):,} documents", style="bold"), soft_wrap=True
        )
        for document in documents[:SHOWN_DOCUMENTS]:
            border = Text("── ")
            border.append(visible(document["subset"], 80), style="cyan")
            border.append(
                f"  {visible(document['shard'], 200)} document {document['number']:,}, {document['tokens']:,} tokens"
            )
            if document["continued"]:
                border.append(", continued from another row")
            console.print(border, soft_wrap=True)
            text = Text(visible(document["text"].replace("\n", "↵"), SHOWN_CHARACTERS))
            text.append(" [EOD]" if document["ends"] else " [cut at the row's edge]", style="dim")
            console.print(text, soft_wrap=True)
        if len(documents) > SHOWN_DOCUMENTS:
            console.print(Text(f"── {len(documents) - SHOWN_DOCUMENTS:,} more documents", style="dim"), soft_wrap=True)
        console.print()
    console.print(
        Text(
            f"{result['batches']:,} batches of {stream.batch_size} x {stream.seq_len:,} in {result['seconds']:.2f} s: "
            f"{result['tokens_per_second'] / 1e6:.2f} M tokens/s (tokenizer: {stream.tokenizer.backend})",
            style="bold",
        ),
        soft_wrap=True,
    )


def _shown_progress(stream: PileStream, steps: int) -> Iterator[Batch]:
    """The batches of `stream`, with a progress line on stderr from the third second on."""
    if not sys.stderr.isatty():
        yield from stream
        return
    columns = (TextColumn("packing"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task("", total=steps)
    shown = started = time.monotonic()
    try:
        for done, batch in enumerate(stream):
            yield batch
            # Ten times a second: telling rich of each small batch would take longer than packing it.
            if (now := time.monotonic()) > shown + 0.1:
                shown = now
                progress.update(task, completed=done + 1)
                if now > started + 2:
                    progress.start()
    finally:
        progress.stop()
