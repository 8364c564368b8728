"""`pilekit train`: one TOML file in, one run folder out, by one process or many.

Whatever the config and the run folder show is checked before torch is imported, so a typing error is reported at once,
before any rank starts. `--dry-run` checks all that can be checked without allocating the model or reading a document,
and prints the plan.

With `--nproc-per-node` this process only launches the ranks and watches them (train/launch/launch.py). Each rank runs
this same command, as it does under torchrun. Rank 0 prints for all ranks. Another rank prints only its own errors, with
its number.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import warnings
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilekit.cli.display.output import print_fitted, rank_waiting, say
from pilekit.errors import AlreadyReported, PilekitError, counted, visible

if TYPE_CHECKING:
    from pilekit.train.config.sections import TrainConfig
    from pilekit.train.run_folder import RunFolder

PADDING = 0.1
"""Models pad their embedding to round numbers, by 2 % at most; this share of the ids is no padding."""


@click.command()
@click.argument("config_file", metavar="RUN.TOML")
@click.option(
    "--set",
    "changes",
    metavar="SECTION.FIELD=VALUE",
    multiple=True,
    help="Replace a value of the file, as often as needed: --set train.steps=50 --set optimizer.lr=1e-3.",
)
@click.option("--out", metavar="RUN", help="Folder of the run.  [default: runs/<name of the file>]")
@click.option(
    "--nproc-per-node",
    metavar="N",
    type=click.IntRange(min=1),
    help="Processes on this machine, each with its own GPU if there are GPUs.  [default: 1]",
)
@click.option(
    "--max-restarts",
    metavar="K",
    type=click.IntRange(min=0),
    default=0,
    show_default=False,
    help="Restarts from the newest checkpoint when a process has failed.  [default: 0]",
)
@click.option(
    "--from",
    "origin",
    metavar="STEP_FOLDER",
    help="Branch: begin a new run with the whole state of another run's checkpoint, such as runs/x/checkpoints/step-9.",
)
@click.option(
    "--resume",
    metavar="auto|never",
    help="auto resumes the run in the folder, never refuses a folder with a run.  [default: auto]",
)
@click.option(
    "--backend",
    type=click.Choice(["native", "deepspeed", "accelerate"]),
    help="The package that makes the steps, as parallel.backend.  [default: native]",
)
@click.option("--merge", is_flag=True, help="With [lora]: export the whole model too, with its adapters added in.")
@click.option("--estimate", is_flag=True, help="Print each process's memory under ZeRO stages 0 to 3; train nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --estimate: as JSON, in bytes.")
@click.option("--dry-run", is_flag=True, help="Check the config and the files that it names; write nothing.")
def command(
    config_file: str,
    changes: tuple[str, ...],
    out: str | None,
    nproc_per_node: int | None,
    max_restarts: int,
    origin: str | None,
    resume: str | None,
    backend: str | None,
    merge: bool,
    estimate: bool,
    as_json: bool,
    dry_run: bool,
) -> None:
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
    Further sections are [optimizer], [schedule], [parallel], [precision], [checkpoint] and [log].

    \b
    Example:
      pilekit train run.toml --dry-run
      pilekit train run.toml --set train.steps=50 --out runs/short
      pilekit train anneal.toml --from runs/run/checkpoints/step-9000 --out runs/anneal
      pilekit train run.toml --nproc-per-node 8 --set parallel.zero=3 --max-restarts 3
      torchrun --nnodes 4 --nproc-per-node 8 ... -m pilekit.train run.toml

    Ctrl-C, SIGTERM and a closed terminal save a checkpoint. The same command resumes from the newest one.
    """
    if as_json and not estimate:
        raise click.UsageError("--json goes with --estimate.")
    if origin is not None and resume is not None:
        raise click.UsageError("--from begins a new run, --resume says what becomes of one; give one of them.")
    from pilekit.train.launch.environment import adopt_slurm

    adopt_slurm()
    in_job = bool(os.environ.get("RANK") and os.environ.get("WORLD_SIZE"))
    if in_job and (nproc_per_node is not None or max_restarts):
        raise click.UsageError(
            "this process is a rank already, as $RANK and $WORLD_SIZE say: --nproc-per-node and --max-restarts are for "
            "the command that starts the ranks."
        )
    for field, value in (
        ("checkpoint.resume", resume if origin is None else _as_toml(origin)),
        ("parallel.backend", backend),
        ("lora.merge", "true" if merge else None),
    ):
        changes += () if value is None else (f"{field}={value}",)
    if in_job and not (estimate or dry_run):
        _train_as_rank(config_file, changes, out)
        return
    world_size = nproc_per_node or 1
    if in_job:
        world_size = int(os.environ["WORLD_SIZE"])
        if os.environ["RANK"] != "0":
            return
    config, run = _read(config_file, changes, out, world_size)
    launches = not (estimate or dry_run) and (world_size > 1 or bool(max_restarts))
    _check_data(config, silent=launches)
    _check_models(config)
    if estimate:
        _print_estimate(config, world_size, as_json=as_json)
    elif dry_run:
        with rank_waiting("checking the run"):
            plan = _plan(config, run, world_size)
        for topic, text in plan:
            say(f"{topic:<11}{text}", " " * 11)
    elif not launches:
        _train(config, run)
    else:
        from pilekit.train.launch.launch import launch

        if changes:  # this process has already warned of a warmup that they shortened
            changes += (f"schedule.warmup={config.schedule.warmup}",)
        arguments = [config_file, *(word for change in changes for word in ("--set", change))]
        code = launch(world_size, [*arguments, "--out", str(run.path)], max_restarts)
        if code == 130:
            raise KeyboardInterrupt
        raise SystemExit(code)


def _as_toml(path: str) -> str:
    """A path as text in TOML, so that no name is taken for something else."""
    import tomli_w

    path = os.path.join(".", path) if path in ("auto", "never") else path  # noqa: PTH118 (Path drops the dot)
    return tomli_w.dumps({"path": path}).partition(" = ")[2].strip()


def _read(
    config_file: str, changes: tuple[str, ...], out: str | None, world_size: int
) -> tuple[TrainConfig, RunFolder]:
    """The config and its run folder. The checks need neither torch nor other ranks."""
    from pilekit.train.config.backend_file import backend_settings
    from pilekit.train.config.check import check_model, check_world
    from pilekit.train.config.file import load_config
    from pilekit.train.run_folder import run_of
    from pilekit.train.start import check_start

    check_model(config := load_config(config_file, changes))
    check_world(config, world_size)
    backend_settings(config, world_size)
    run = run_of(Path("runs", Path(config_file).stem) if out is None else out, config)
    check_start(run, config)
    return config, run


def _check_data(config: TrainConfig, *, silent: bool) -> None:
    """Find a wrong path or subset before torch is imported; `silent` leaves warnings of the corpus to rank 0."""
    from pilekit.artifacts.settings import naming_settings
    from pilekit.corpus import Corpus
    from pilekit.corpus.shard import is_url
    from pilekit.stream.read.mixture import exact_mixture
    from pilekit.stream.read.token_files import token_files
    from pilekit.train.config.check import field_of, manifest_of, naming_field

    data, paths = config.data, config.data.path
    manifest = manifest_of(data)
    several = [paths] if isinstance(paths, str) else paths or []
    with naming_field("data.path" if several else ""), ExitStack() as opened:
        if silent:
            opened.callback(logging.disable, logging.NOTSET)
            logging.disable(logging.WARNING)
        if not any(is_url(path) or token_files(path) for path in several):  # listing URLs is slow
            Corpus(paths, manifest)
    with naming_settings(partial(field_of, data=data)):
        exact_mixture(data.rows, manifest)


def _check_models(config: TrainConfig) -> None:
    """Find a wrong model, tokenizer or viewer before torch is imported, as far as small files show it."""
    from tokenizers import Tokenizer

    from pilekit.models.folder import check_folder, check_sizes, read_json
    from pilekit.tokenize.tokenizer_file import tokenizer_file
    from pilekit.train.config.check import naming_field
    from pilekit.train.log.logs import check_viewers

    check_viewers(config)
    data, model, teacher = config.data, config.model, config.teacher
    configs = [("model.config", f"model.config {visible(model.config or '')}", model.config)]
    for section, folder, adapter in (("model", model.path, model.adapter), ("teacher", teacher.path, teacher.adapter)):
        configs.append((f"{section}.path", visible(folder or ""), folder))
        if folder is not None:
            with naming_field(f"{section}.path"):
                check_folder(folder)
            with naming_field(f"{section}.adapter"):
                check_folder(folder, adapter)
    with naming_field("data.tokenizer" if data.tokenizer else "model.path" if model.path else "teacher.path"):
        file = tokenizer_file(data.tokenizer or config.source.path)
    for field, title, path in configs:
        if path is None:
            continue
        with naming_field(field):
            content = read_json(Path(path, "config.json") if Path(path).is_dir() else Path(path))
        ids = 0
        with suppress(Exception):  # tokenizers raises Exception itself; loading a wrong file is an error later
            ids = 1 + max(Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True).values())
        check_sizes(content, title, data.seq_len if config.train.objective == "clm" else None, file, ids)


def _train_as_rank(config_file: str, changes: tuple[str, ...], out: str | None) -> None:
    """Train as one of the ranks that a launcher started."""
    from pilekit.cli.main import is_reported_elsewhere
    from pilekit.train.launch.interrupt import ended_by_sigterm, interrupted_by, unhandled_signals

    with unhandled_signals():
        with rank_waiting("loading torch"):
            from pilekit.workers.ranks import join

        ranks = join()
    with ended_by_sigterm():
        if ranks.is_first:
            attempt, most = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
            if attempt != "0":
                click.echo(f"a rank was lost; all have started again (restart {attempt} of {most})", err=True)
        else:
            logging.getLogger("pilekit").setLevel(logging.ERROR)
            warnings.simplefilter("ignore")
        try:
            config, run = ranks.on_all_ranks(lambda: _read(config_file, changes, out, ranks.world_size))
            _train(config, run)
        except KeyboardInterrupt:  # The launcher reports it.
            raise SystemExit(130) from None
        except PilekitError as error:
            if interrupted_by() is signal.SIGTERM and is_reported_elsewhere(error):
                raise SystemExit(1) from error  # The launcher ends all ranks already, and kills those that wait.
            if ranks.is_first or isinstance(error, AlreadyReported):
                raise
            raise PilekitError(f"rank {ranks.rank}: {error}") from error


def _train(config: TrainConfig, run: RunFolder) -> None:
    from pilekit.cli.display.live_line import live_line
    from pilekit.train.launch.interrupt import ended_by_sigterm, held_signals, interrupted_by

    with ended_by_sigterm():
        # Importing torch takes seconds, which a wrong config should not cost.
        with held_signals(), rank_waiting("loading torch"):
            from pilekit.train.branches import origin_of
            from pilekit.train.launch.environment import describe_ranks
            from pilekit.train.trainer import Trainer
            from pilekit.workers.ranks import join
        ranks = join()
        with rank_waiting("preparing the model and its data"):
            trainer = Trainer(config, run.path)
        if not ranks.is_first:
            trainer.fit()
            return
        click.echo(f"{describe_ranks(ranks)}\norder: {trainer.stream.order}", err=True)
        if (origin := origin_of(run, config)) is not None:
            say(f"branches from {origin}", err=True)
        click.echo(f"attention: {trainer.config.model.attention_implementation}", err=True)
        with live_line(config.steps) as show:
            finished = trainer.fit(show)
        if finished.interrupted:
            saved = f"after step {finished.step:,} of {config.steps:,}, which is saved; the same command resumes there"
            click.echo(f"stopped {saved if finished.step else 'before the first step was done'}", err=True)
            # Ranks end with 0. Their launcher reports the interrupt.
            if interrupted_by() is signal.SIGINT and not os.environ.get("RANK"):
                raise KeyboardInterrupt
            return
    model = finished.model
    loss = ""
    if finished.last is None:
        click.echo("already done: an earlier run trained all steps; to train again, name another --out", err=True)
    else:
        loss = ": the last one was skipped" if finished.last.loss is None else f": loss {finished.last.loss:.4f}"
    say(f"{counted(finished.step, 'step')} done, {finished.tokens:,} tokens{loss}")
    if config.lora.rank and not config.lora.merge:
        say(f"the adapters are in {model}; the same command with --merge exports the whole model")
        return
    score = f"; score it with: pilekit bpb {shlex.quote(str(finished.model))}"
    say(f"the model is in {model}{score if config.train.objective == 'clm' else ''}")
    if config.train.ema:
        from pilekit.train.run_folder import AVERAGED

        say(f"the running mean of its weights is in {model}{AVERAGED}")


def _print_estimate(config: TrainConfig, world_size: int, *, as_json: bool) -> None:
    import msgspec

    with rank_waiting("loading torch"):
        from pilekit.train.estimate import estimate, table

        plan = estimate(config, world_size)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(plan), indent=2))
        return
    ranks = f"{plan.parameters:,} parameters on {counted(plan.world_size, 'rank')}"
    batches = f"{counted(plan.micro_batches, 'micro-batch', 'micro-batches')} a step"
    say(f"{ranks}, {batches}, attention by {plan.attention}; bytes of each rank:")
    print_fitted(table(plan))


def _plan(config: TrainConfig, run: RunFolder, world_size: int) -> list[tuple[str, str]]:
    """(topic, text) lines for `--dry-run`. Raises PilekitError if the run would fail."""
    from rich.filesize import decimal

    from pilekit.train.backends import check_backend
    from pilekit.train.data import open_stream, restart_sizes
    from pilekit.train.estimate import estimate, shortage
    from pilekit.train.evaluation import open_held_out
    from pilekit.train.log.logs import check_viewers
    from pilekit.train.training_state import planned_start

    train, source = config.train, config.source
    check_viewers(config)
    check_backend(config)
    stream = open_stream(config, world_size=world_size)
    open_held_out(config)
    tokenizer, corpus = stream.tokenizer, stream.corpus
    memory = estimate(config, world_size)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    lacking, fit = shortage(memory, here), "config, shards, tokenizer, shape of the model and run folder fit"
    ids, unused = f"{tokenizer.vocab_size:,} ids ({tokenizer.backend})", memory.rows - tokenizer.vocab_size
    if unused > PADDING * tokenizer.vocab_size:
        ids += f"; {unused:,} of the model's {memory.rows:,} rows are none of them: is it the model's tokenizer?"
    name = " + ".join(filter(None, (source.preset or source.config or source.path, source.adapter)))
    size = "" if corpus.size is None else f", {decimal(corpus.size)} stored,"
    subsets = "all subsets" if stream.subsets is None else ", ".join(stream.subsets)
    other_sizes = [f"{ranks}" for ranks in restart_sizes(config, stream) if ranks != world_size][:20]
    batches = train.global_batch_size // world_size // train.micro_batch_size
    tokens = train.global_batch_size * config.data.seq_len
    start = "begins again" if run.is_begun else "new"
    if (begin := planned_start(run, config, stream)) is not None:
        step, origin = begin
        start = f"resumes after step {step:,}" if step < config.steps else f"has done its {counted(step, 'step')}"
        start = start if origin is None else f"branches from {origin} after step {step:,}"
    return [
        ("run", f"{run.path} ({start})"),
        ("data", f"{counted(len(corpus.shards), 'shard')}{size} in {corpus.root}: {subsets}"),
        ("order", stream.order),
        ("tokenizer", f"{tokenizer.path}, {ids}"),
        ("model", f"{name}: {memory.parameters:,} parameters, attention by {memory.attention}"),
        ("ranks", f"{world_size:,}; a restart may use {', '.join(other_sizes) or 'no other number'}"),
        (
            "memory",
            f"{decimal(memory.stages[memory.chosen].device)} of each rank (--estimate shows the parts)"
            + (f"; too much here: {lacking}" if lacking else ""),
        ),
        (
            "step",
            f"{counted(train.global_batch_size, 'row')} x {config.data.seq_len:,} = {tokens:,} tokens, "
            f"{batches:,} x {counted(train.micro_batch_size, 'row')} at a time in each rank",
        ),
        ("in all", f"{counted(config.steps, 'step')}, {config.steps * tokens:,} tokens"),
        ("dry run", f"{fit}{', but memory does not' if lacking else ''}; nothing was written"),
    ]
