"""`pilekit train`: one TOML file in, one run folder out.

What the config and the run folder can tell is checked before torch is imported, so a typing error is answered at once.
`--dry-run` checks all that can be checked without allocating the model or reading a document, and says what would
happen.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilekit.errors import visible

if TYPE_CHECKING:
    from pilekit.train.config import TrainConfig
    from pilekit.train.run_folder import RunFolder
    from pilekit.train.trainer import Finished


@click.command()
@click.argument("config_file", metavar="RUN.TOML")
@click.option(
    "--set",
    "changes",
    metavar="SECTION.FIELD=VALUE",
    multiple=True,
    help="Another value than the file's; as often as needed: --set train.steps=50 --set optimizer.lr=1e-3.",
)
@click.option("--out", metavar="RUN", help="Folder of the run.  [default: runs/<name of the file>]")
@click.option("--dry-run", is_flag=True, help="Check the config and what it names; write nothing.")
def command(config_file: str, changes: tuple[str, ...], out: str | None, dry_run: bool) -> None:
    """Train a language model straight from raw shards.

    \b
    The least that RUN.TOML holds:
      [data]
      path = "00.jsonl.zst"
      tokenizer = "20B_tokenizer.json"
      [model]
      preset = "pythia-14m"
      [train]
      steps = 1000
    Further sections are [optimizer], [schedule], [precision], [checkpoint] and [log].

    \b
    Example:
      pilekit train run.toml --dry-run
      pilekit train run.toml --set train.steps=50 --out runs/short

    Ctrl-C saves a checkpoint; the same command goes on from the newest one.
    """
    from pilekit.train.config import load_config
    from pilekit.train.run_folder import check_start, run_of

    config = load_config(config_file, changes)
    run = run_of(Path("runs", Path(config_file).stem) if out is None else out, config)
    check_start(run, config)
    if dry_run:
        for topic, text in _plan(config, run):
            click.echo(f"{topic:<11}{text}")
        return
    from pilekit.cli.live_line import live_line
    from pilekit.train.trainer import Trainer  # torch: seconds that a wrong config should not cost

    trainer = Trainer(config, run.path)
    with live_line(config.steps) as show:
        finished = trainer.fit(show)
    if finished.interrupted:
        click.echo(_stopped(finished, config.steps), err=True)
        raise KeyboardInterrupt
    model = visible(str(finished.model))
    loss = "nothing was left to train" if finished.last is None else f"loss {finished.last.loss:.4f}"
    done = "1 step" if finished.step == 1 else f"{finished.step:,} steps"
    click.echo(f"{done} done, {finished.tokens:,} tokens: {loss}")
    click.echo(f"the model is in {model}; score it with: pilekit bpb {visible(shlex.quote(str(finished.model)))}")


def _stopped(finished: Finished, steps: int) -> str:
    if finished.step == 0:
        return "stopped before the first step was done"
    return f"stopped after step {finished.step:,} of {steps:,}, which is saved; the same command goes on from there"


def _plan(config: TrainConfig, run: RunFolder) -> list[tuple[str, str]]:
    """(topic, what would be done) for `--dry-run`; raises PilekitError for what would fail."""
    from rich.filesize import decimal

    from pilekit.train.checkpoint import find_checkpoint
    from pilekit.train.data import open_stream
    from pilekit.train.model import count_parameters

    data, train = config.data, config.train
    stream = open_stream(config)
    tokenizer = stream.tokenizer
    parameters = count_parameters(config.model, tokenizer, seq_len=data.seq_len)
    corpus = stream.corpus
    shards = "1 shard" if len(corpus.shards) == 1 else f"{len(corpus.shards):,} shards"
    size = "" if corpus.size is None else f", {decimal(corpus.size)} stored,"
    subsets = "all subsets" if stream.subsets is None else ", ".join(map(visible, stream.subsets))
    micro_batches = train.global_batch_size // train.micro_batch_size
    tokens = train.global_batch_size * data.seq_len
    checkpoint, _ = find_checkpoint(run.checkpoints)
    if checkpoint is not None:
        newest = int(checkpoint.name.removeprefix("step-"))
        start = f"goes on after step {newest:,}" if newest < config.steps else f"has done its {newest:,} steps"
    else:
        start = "begins anew" if run.is_begun else "new"
    return [
        ("run", f"{visible(str(run.path))} ({start})"),
        ("data", f"{shards}{size} in {visible(corpus.root)}: {subsets}"),
        ("tokenizer", f"{visible(str(tokenizer.path))}, {tokenizer.vocab_size:,} ids ({tokenizer.backend})"),
        ("model", f"{visible(_model_of(config))}: {parameters:,} parameters"),
        ("memory", f"{decimal(16 * parameters)} for weights, gradients and optimizer; activations come on top"),
        (
            "step",
            f"{train.global_batch_size:,} rows x {data.seq_len:,} = {tokens:,} tokens, "
            f"{micro_batches:,} x {train.micro_batch_size:,} rows at a time",
        ),
        ("in all", f"{config.steps:,} steps, {config.steps * tokens:,} tokens"),
        ("dry run", "config, shards, tokenizer, shape of the model and run folder fit; nothing was written"),
    ]


def _model_of(config: TrainConfig) -> str:
    model = config.model
    return f"preset {model.preset}" if model.preset else f"config {model.config}" if model.config else f"{model.path}"
