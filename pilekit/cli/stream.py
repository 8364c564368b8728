"""`pilekit stream`: pack raw shards as training would, show a few rows, and say how fast it went; or show its plan.

The clock runs from the first byte read to the last batch, so windows that are read ahead of the last batch count
against the rate; only imports, compiling, loading the tokenizer and indexing are left out, as they happen once.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from pilekit.cli.options import corpus_argument, exact_subsets, open_corpus
from pilekit.cli.stream_options import Lanes, Repeats, read_state
from pilekit.cli.stream_views import documents_of_rows, plan_table, step_documents, step_table
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.errors import visible
from pilekit.progress import count_progress

if TYPE_CHECKING:
    from pilekit.shards.read.reader import OnError
    from pilekit.stream import Batch, PileStream
    from pilekit.stream.pack.window import Packing

SHOWN_ROWS = 3
SHOWN_DOCUMENTS = 4
SHOWN_CHARACTERS = 300


@click.command()
@corpus_argument
@click.option("--tokenizer", required=True, metavar="F", help="A tokenizer.json, a tokenizer folder or a cached name.")
@click.option("--seq-len", type=click.IntRange(min=1), default=2048, show_default=True, help="Tokens in a row.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Rows in a rank's batch; 8, if no other size is given.")
@click.option("--global-batch-size", type=click.IntRange(min=1), help="Rows in an optimizer step, over all ranks.")
@click.option("--world-size", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks; this is rank 0.")
@click.option(
    "--packing",
    type=click.Choice(["best_fit", "concat", "none"]),
    default="best_fit",
    show_default=True,
    help="No document cut that fits in a row; one after another, cut at the row's edge; one document a row.",
)
@click.option("--window", type=click.IntRange(min=1), default=256, show_default=True, help="Documents packed together.")
@click.option("--lanes", type=Lanes(), metavar="R,M", help="Rows and columns of the grid; chosen, if not given.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order.")
@click.option("--repeats", type=Repeats(), metavar="NAME=X,...", help="Use a subset's documents X times per epoch.")
@click.option("--dedup", type=click.Path(path_type=Path), metavar="DIR", help="Leave out what `pilekit dedup` removed.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Go on from a state_dict() saved as JSON, or from a checkpoint (a folder step-N).",
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="At a line that is no document: stop, or leave it out.",
)
@click.option("--steps", type=click.IntRange(min=1), default=500, show_default=True, help="Batches to make.")
@click.option("--explain", is_flag=True, help="Show how the corpus is dealt to ranks and workers, and make no batches.")
@click.option("--peek", type=click.IntRange(min=0), metavar="STEP", help="Show the documents of this optimizer step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: str | None,
    tokenizer: str,
    seq_len: int,
    batch_size: int | None,
    global_batch_size: int | None,
    world_size: int,
    packing: Packing,
    window: int,
    lanes: tuple[int, int] | None,
    seed: int,
    repeats: dict[str, float] | None,
    dedup: Path | None,
    state: Path | None,
    on_error: OnError,
    steps: int,
    explain: bool,
    peek: int | None,
    as_json: bool,
) -> None:
    """Pack raw shards into training batches, show a few rows and the rate.

    With --explain or --peek none are made: they show the plan (lanes, world sizes and workers that fit, memory, the
    cost of resuming), and which documents one optimizer step holds, for example where the loss has a spike. Shards
    without an index get one where the plan needs it.

    \b
    Example:
      pilekit stream 00.jsonl.zst --tokenizer 20B_tokenizer.json
      pilekit stream data/ --tokenizer tokenizer.json --subsets ArXiv,GitHub --steps 2000
      pilekit stream data/ --tokenizer tokenizer.json --repeats ArXiv=2 --world-size 8 --explain
      pilekit stream data/ --tokenizer tokenizer.json --global-batch-size 256 --peek 4711
      pilekit stream data/ --tokenizer tokenizer.json --state state.json --peek 90000
    """
    if explain and peek is not None:
        raise click.UsageError("--explain and --peek show different things; give one of them")
    corpus = open_corpus(paths, manifest).without_held_out()
    from pilekit.stream import PileStream  # torch: a second or two that no other command should pay

    stream = PileStream(
        corpus,
        tokenizer=tokenizer,
        seq_len=seq_len,
        batch_size=batch_size,
        global_batch_size=global_batch_size,
        rank=0,
        world_size=world_size,
        packing=packing,
        window=window,
        lanes=lanes or "auto",
        seed=seed,
        subsets=exact_subsets(subsets, corpus),
        repeats=repeats,
        dedup=dedup,
        on_error=on_error,
        outputs=("input_ids", "doc_ids", "subset_ids"),
        epochs=1 if any(shard.path == STANDARD_INPUT for shard in corpus.shards) else None,
    )
    if state is not None:
        stream.load_state_dict(read_state(state))
    if explain:
        explained = stream.explain()
        if as_json:
            click.echo(json.dumps(explained, indent=2))
        else:
            _console().print(plan_table(explained))
        return
    if peek is not None:
        with count_progress(f"looking for step {peek:,}") as reached:
            documents = step_documents(stream, peek, reached)
        if as_json:
            click.echo(json.dumps(documents))
        else:
            console = _console()
            console.print(step_table(documents, console.width))
        return
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
        "samples": [documents_of_rows(stream, *place) for place in islice(_rows(kept), SHOWN_ROWS)],
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


def _console() -> Console:
    return Console(file=sys.stdout, width=shutil.get_terminal_size().columns, highlight=False)


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
    """The batches of `stream`, with a progress line on stderr."""
    with count_progress("packing") as reached:
        for done, batch in enumerate(stream):
            yield batch
            reached(done + 1, steps)
