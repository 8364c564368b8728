"""`pilekit mix`: choose the mixture of subsets from small runs, by the commands `design`, `run` and `fit`."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path

import click

from pilekit.cli.display.output import print_fitted, print_result, rank_waiting, say
from pilekit.cli.options import folder, folder_option, json_option, parse_part, repeats
from pilekit.errors import counted, visible

_BY_SUBSET = "NAME=SHARE,..."


@click.group()
def command() -> None:
    """Choose the mixture of subsets from many small runs.

    `design` writes a config for each run, with another mixture; `run` trains and scores the runs; `fit` learns from
    their losses, and gives the mixture that is best for a target, with its predicted gain and the noise. `fit` takes
    any table of runs.

    \b
    Example:
      pilekit mix design data/ --config small.toml --runs 64 --out mix
      pilekit mix run mix
      pilekit mix fit mix --target ArXiv,Github --plot mixture.png
    """


def token_count(typed: str) -> int:
    """A number of tokens, such as `50M`. Another text is wrong usage."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([kKmMbBgG]?)", typed.strip())
    number = int(Decimal(match[1]) * {"": 1, "k": 10**3, "m": 10**6}.get(match[2].lower(), 10**9)) if match else 0
    if number < 1:
        raise click.BadParameter(f"{visible(typed, 40)} is not a number of tokens, such as 50M")
    return number


@command.command("design")
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@folder_option("--out", "New folder for the configs, and later for the runs.", required=True)
@click.option("--config", metavar="FILE", help="The training config of each run.  [default: pythia-14m, 50M tokens]")
@click.option("--runs", type=click.IntRange(9), default=64, help="Number of runs; eight have the corpus's own shares.")
@click.option("--max-epochs", type=click.FloatRange(1), default=4.0, help="Caps, in a run as long as the corpus.")
@click.option("--tokens", type=token_count, metavar="N", help="Tokens of each run: 50M.  [default: the config's]")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the mixtures, and added to the config's seeds.")
@click.option("--set", "changes", multiple=True, metavar="SECTION.FIELD=VALUE", help="Change a field of the config.")
@json_option
def design(
    paths: tuple[str, ...],
    out: Path,
    config: str | None,
    runs: int,
    max_epochs: float,
    tokens: int | None,
    seed: int,
    changes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Design small runs of different mixtures: a training config for each.

    PATH... are the shards, in the place of the config's data.path. They hold val shards too, or the config names
    held-out documents as train.eval_path.

    \b
    Example:
      pilekit mix design data/ --config small.toml --out mix
      pilekit mix design data/ --set data.tokenizer=20B_tokenizer.json --tokens 20M --out mix
    """
    with rank_waiting("measuring the corpus"):
        from pilekit.mixtures.design import design_mixtures

        result = design_mixtures(
            out,
            list(paths) or None,
            config=config,
            runs=runs,
            max_epochs=max_epochs,
            tokens=tokens,
            seed=seed,
            changes=changes,
        )
    if print_result(result, as_json):
        say(f"next: pilekit mix run {out}")


@command.command("run")
@click.argument("mix", metavar="DIR", type=folder)
@click.option("--jobs", type=click.IntRange(1), default=1, help="Runs at a time, which share the CPUs or the GPU.")
@click.option("--part", type=parse_part, metavar="I/N", help="Only the I-th of N parts of the runs, for job arrays.")
def run(mix: Path, jobs: int, part: tuple[int, int] | None) -> None:
    """Train and score the runs of a design that are not done yet.

    The same command resumes after an interruption. DIR/runs.parquet has all runs that are done.

    \b
    Example:
      pilekit mix run mix --jobs 2
      pilekit mix run mix --part 3/16
    """
    from pilekit.mixtures.run import run_mixtures

    done = 0

    def show(more: int) -> None:
        nonlocal done
        done += more
        click.echo(f"{counted(done, 'run')} done", err=True)

    result = run_mixtures(mix, jobs=jobs, part=part, advance=show)
    say(f"{result.done:,} of {counted(result.runs, 'run')} are done; next: pilekit mix fit {mix}")


@command.command("fit")
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True)
@click.option("--target", default="overall", metavar="overall|equal|NAMES", help="Whose loss shall be low.")
@click.option("--shares", type=repeats, metavar=_BY_SUBSET, help="The corpus's own shares.")
@click.option("--caps", type=repeats, metavar=_BY_SUBSET, help="The largest weight of a subset.")
@click.option("--weight-columns", metavar="PATTERN", help="Columns of weights, * for the subset, such as 'train_*'.")
@click.option("--loss-columns", metavar="PATTERN", help="Columns of losses, such as 'metric/*_val_loss'.")
@json_option
@click.option("--plot", metavar="FILE", help="Draw the mixture into a .png, .svg or .pdf file.")
def fit(
    tables: tuple[str, ...],
    target: str,
    shares: dict[str, float] | None,
    caps: dict[str, float] | None,
    weight_columns: str | None,
    loss_columns: str | None,
    as_json: bool,
    plot: str | None,
) -> None:
    """Fit a table of runs, and choose the best mixture.

    TABLE is the folder of a design whose runs are done; or a .csv or .parquet file with a row per run and the columns
    weight.NAME and loss.NAME of each subset; or several files whose rows a common column such as index joins. The last
    line of the output is the mixture, as weights = {...} of a training config, or why none is recommended: under 32
    mixtures, or a gain within the noise. In the folder of a design, best.toml is the config with these weights.

    \b
    Example:
      pilekit mix fit mix
      pilekit mix fit runs.csv --shares ArXiv=0.1,Github=0.2,Pile-CC=0.7
      pilekit mix fit mixtures.csv losses.csv --target equal
    """
    from pilekit.artifacts.atomic_write import check_target
    from pilekit.mixtures.design import write_best
    from pilekit.mixtures.fit import fit_mixtures
    from pilekit.mixtures.result import as_toml
    from pilekit.stats.plot import figure_format

    if plot is not None:
        figure_format(plot)
        check_target(plot, follow_links=True)
    result = fit_mixtures(
        tables,
        target=target,
        shares=shares,
        caps=caps,
        weight_columns=weight_columns,
        loss_columns=loss_columns,
    )
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2, allow_nan=False))
    else:
        print_fitted(result.table())
        if result.weights is not None:  # in one line, as TOML has it
            click.echo(f"weights = {as_toml(result.weights)}")
    if len(tables) == 1 and Path(tables[0]).is_dir() and result.weights is not None:
        say(f"written: {write_best(tables[0], result.weights)}", err=True)
    if plot is not None:
        from pilekit.mixtures.plot import write_mixture_figure

        write_mixture_figure(result, plot)
        say(f"drawn: {plot}", err=True)
