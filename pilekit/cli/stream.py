"""`pilekit stream`: pack raw shards as training would, show a few rows and the rate; or show the plan.

The first batch waits for a window of every lane, so its time is shown apart. The rate covers all later batches.
Windows that were read ahead of the last batch lower the rate. Imports, compiling, loading the tokenizer and indexing
happen once and do not count.
"""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilekit.artifacts.checked import checked, typed_value
from pilekit.cli.display.output import print_fitted, terminal
from pilekit.cli.options import (
    Described,
    Similarity,
    corpus_argument,
    exact_subsets,
    lanes,
    repeats,
    setting_options,
    weights,
)
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.display.progress import count_progress, waiting
from pilekit.errors import PilekitError, counted, shortened
from pilekit.stream.settings import Planting, RowSettings, StreamSettings

if TYPE_CHECKING:
    from pilekit.stream.batch.batch import Batch
    from pilekit.stream.pile_stream import PileStream

SHOWN_ROWS = 3
WEIGHTS = (
    "The mixture as shares of tokens, such as ArXiv=0.3,GitHub=0.7; replaces --subsets and --repeats. Or by step: "
    "0:ArXiv=1;1000:ArXiv=1,GitHub=2."
)
PLANT = (
    "Texts that stand in rows instead of what is there, as in a config: "
    '[{file="canary.jsonl", copies=[1, 4], from=100, to=900}].'
)


def plantings(typed: str) -> list[Planting]:
    """The value of `plant` as a config has it, a list of tables. Another form is wrong usage."""
    try:
        listed: list[Planting] = checked(typed_value(typed), list[Planting], "plant")
    except PilekitError as error:
        raise click.BadParameter(str(error)) from error
    return listed


@click.command()
@corpus_argument
@setting_options(
    StreamSettings,
    *("tokenizer", "seq_len", "batch_size", "global_batch_size", "world_size", "packing", "window", "lanes", "seed"),
    *("repeats", "weights", "ramp", "dedup", "copies", "copies_max", "without", "plant", "on_error"),
    tokenizer={"metavar": "F"},
    world_size={"help": "Number of ranks; this is rank 0.", "default": 1},
    lanes={"type": lanes, "metavar": "R,M"},
    repeats={"type": repeats, "metavar": "NAME=X,..."},
    weights={"type": weights, "metavar": "NAME=X,...", "help": WEIGHTS},
    dedup={"type": click.Path(path_type=Path), "metavar": "DIR"},
    copies={"type": Similarity(0, 1), "metavar": "A"},
    without={"metavar": "FILE|NAME", "help": "Documents that give no loss: a file that lists them, or a subset."},
    plant={"type": plantings, "metavar": "TABLES", "help": PLANT},
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Resume from a stream's state saved as JSON, or from a checkpoint (a folder step-N).",
)
@click.option("--steps", type=click.IntRange(min=1), default=500, help="Batches to make.")
@click.option("--explain", is_flag=True, help="Show how the corpus is dealt to ranks and workers, and make no batches.")
@click.option("--peek", type=click.IntRange(min=0), metavar="STEP", help="Show the documents of this optimizer step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    paths: tuple[str, ...],
    manifest: Described,
    state: Path | None,
    steps: int,
    explain: bool,
    peek: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Pack raw shards into training batches, show a few rows and the rate.

    With --explain or --peek no batches are made. --explain shows the plan: lanes, world sizes and workers that fit,
    memory, the cost of resuming. --peek shows the documents of one optimizer step, for example where the loss has a
    spike. Shards without an index get one if the plan needs it.

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
    from pilekit.stream.read.mixture import exact_mixture
    from pilekit.stream.read.token_files import corpus_of

    corpus = corpus_of((paths[0] if len(paths) == 1 else list(paths)) if paths else None, manifest)
    options = {name: value for name, value in options.items() if value is not None}
    if (subsets := exact_subsets(options.pop("subsets", None), corpus)) is not None:
        options["subsets"] = subsets
    given = {name: options[name] for name in ("repeats", "weights", "ramp", "dedup", "copies") if name in options}
    mixture = RowSettings(subsets=subsets, **given)
    exact_mixture(mixture, corpus.manifest)  # Find a wrong name before torch is imported.
    if any(shard.path == STANDARD_INPUT for shard in corpus.shards):
        options["epochs"] = 1
    from pilekit.artifacts.header import read_header
    from pilekit.dedup.previous_runs import KIND
    from pilekit.tokenize.tokenizer_file import tokenizer_file

    tokenizer_file(options["tokenizer"])  # Find a wrong path before torch is imported.
    if "dedup" in options:
        read_header(options["dedup"], KIND)
    loaded: Any = None if state is None else _read_state(state)
    with waiting("loading torch"):
        from pilekit.cli.display import stream_rows
        from pilekit.display.fitted_table import facts_table, rounded_count
        from pilekit.stream.pile_stream import PileStream

    with waiting("opening the corpus"):
        stream = PileStream(corpus, rank=0, outputs=("input_ids", "doc_ids", "subset_ids"), **options)
    if state is not None:
        stream.load_state_dict(loaded)
    console = terminal()
    if not explain:
        click.echo(f"order: {stream.order}", err=True)
    if explain:
        explained = stream.explain()
        if as_json:
            click.echo(json.dumps(explained, indent=2))
        else:
            print_fitted(facts_table(explained.lines(), style="bold"))
    elif peek is not None:
        with count_progress(f"looking for step {peek:,}") as reached:
            batch = stream.peek_batch(peek, reached)
        documents = [
            {"row": row, **document}
            for row in range(len(batch["input_ids"]))
            for document in stream_rows.row_documents(stream, batch, row)
        ]
        if as_json:
            click.echo(json.dumps(documents))
        else:
            print_fitted(stream_rows.step_table(documents, console.width))
    else:
        if isinstance(options.get("weights"), dict):
            factors = ", ".join(f"{name} {factor:g}" for name, factor in stream.repeats.items())
            click.echo(f"repeats by these weights: {factors}", err=True)
        batches, result = _timed(stream, steps)
        # The first row of each batch first, because neighbours often share a long document.
        places = ((batch, row) for row in range(stream.batch_size) for batch in batches)
        rows = ((batch, row) for batch, row in places if int(batch["doc_ids"][row, 0]) >= 0)
        result["samples"] = [stream_rows.row_documents(stream, *place) for place in islice(rows, SHOWN_ROWS)]
        if as_json:
            click.echo(json.dumps(result))
            return
        stream_rows.print_rows(console, result["samples"])
        click.secho(
            f"{counted(result['batches'], 'batch', 'batches')} of {stream.batch_size} x {stream.seq_len:,}, "
            f"{100 * result['fill']:.1f} % full: the first after {result['first_batch_seconds']:.2f} s,\n"
            f"then {rounded_count(result['tokens_per_second'])} tokens/s (tokenizer: {stream.tokenizer.backend})",
            bold=True,
        )
        print_fitted(stream_rows.subset_table(result["subsets"]))


def _timed(stream: PileStream, steps: int) -> tuple[list[Batch], dict[str, Any]]:
    """The first batches of `stream`, and how long `steps` batches took."""
    import numpy as np

    first_batches: list[Batch] = []
    batches = first_tokens = 0
    counts = np.zeros(len(stream.subset_names), np.int64)
    started = time.perf_counter()
    first = 0.0
    with count_progress("packing") as reached:
        for batches, batch in enumerate(islice(stream, steps), start=1):
            subsets = batch["subset_ids"].numpy()
            counts += np.bincount(subsets[subsets >= 0], minlength=len(counts))
            if batches == 1:
                first, first_tokens = time.perf_counter() - started, int(counts.sum())
            if batches <= SHOWN_ROWS:
                first_batches.append(batch)
            reached(batches, steps)
    seconds = time.perf_counter() - started
    tokens = int(counts.sum())
    steady = (tokens - first_tokens) / (seconds - first) if batches > 1 else tokens / seconds
    shown = sorted(zip(counts.tolist(), stream.subset_names, strict=True), reverse=True)
    return first_batches, {
        "batches": batches,
        "tokens": tokens,
        "seconds": seconds,
        "first_batch_seconds": first,
        "tokens_per_second": steady,
        "fill": tokens / max(1, batches * stream.batch_size * stream.seq_len),
        "subsets": {name: count for count, name in shown if count},
    }


def _read_state(file: Path) -> Any:
    """The states in a file: a `state_dict()`, a list of one for each rank, or the stream's state in a checkpoint."""
    try:
        file = file / "state.json" if file.is_dir() else file
        content = file.read_bytes()
        state = json.loads(content)
    except OSError as error:
        raise PilekitError(f"{file}: cannot be read: {error.strerror}; check the path") from error
    except ValueError as error:
        raise PilekitError(
            f"{file}: is not JSON ({shortened(error, 120)}); give what "
            "state_dict() of a stream returned, saved as JSON, or a checkpoint folder"
        ) from error
    if isinstance(state, dict) and state.keys() & {"progress", "state"}:  # of a checkpoint; "state": of an earlier one
        with waiting("loading torch"):
            from pilekit.train.checkpoint.state_file import Damaged, decode_state

        try:
            return decode_state(file, content).progress.stream
        except Damaged as damage:
            raise PilekitError(f"{file}: is not a good checkpoint: {damage}; give another") from damage
    return state
