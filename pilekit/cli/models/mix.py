"""`pilekit mix`: choose the mixture of subsets from small runs; the commands `fit`, and what it needs."""

from __future__ import annotations

import json

import click

from pilekit.cli.display.output import print_fitted, say
from pilekit.cli.options import json_option, repeats

_BY_SUBSET = "NAME=SHARE,..."


@click.group()
def command() -> None:
    """Choose the mixture of subsets from many small runs.

    Each run has another mixture and a loss on each subset. `fit` learns from their table how losses depend on the
    mixture, and gives the mixture that is best for a target, with its predicted gain and the noise.

    \b
    Example:
      pilekit mix fit runs.csv
      pilekit mix fit runs.parquet --target ArXiv,Github --plot mixture.png
    """


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

    TABLE is a .csv or .parquet file with a row per run and the columns weight.NAME and loss.NAME of each subset, or
    several files whose rows a common column such as index joins. The last line of the output is the mixture, as
    weights = {...} of a training config, or why none is recommended: under 32 mixtures, or a gain within the noise.

    \b
    Example:
      pilekit mix fit runs.csv --shares ArXiv=0.1,Github=0.2,Pile-CC=0.7
      pilekit mix fit mixtures.csv losses.csv --target equal
    """
    from pilekit.artifacts.atomic_write import check_target
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
    if plot is not None:
        from pilekit.mixtures.plot import write_mixture_figure

        write_mixture_figure(result, plot)
        say(f"drawn: {plot}", err=True)
