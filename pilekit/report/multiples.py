"""Small multiples: small axes for each subset, all with the same x axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from pilekit.errors import visible
from pilekit.report.figures import WIDTH, plain, svg_of
from pilekit.stats.plot import INK, MOST_ROWS, OBSERVED

COLUMNS = 3


def small_multiples(
    x: Sequence[float], series: Mapping[str, Sequence[float | None]], label: str, xlabel: str
) -> Markup:
    """A line for each of the first series over `x`, each with its own y axis; None leaves a gap."""
    from matplotlib.figure import Figure

    shown = list(series.items())[:MOST_ROWS]
    rows = math.ceil(len(shown) / COLUMNS)
    height = 0.75 + 1.15 * rows
    figure = Figure(figsize=(WIDTH, height))
    # Not the constrained layout of other figures, which takes seconds for so many axes.
    figure.subplots_adjust(0.08, 0.5 / height, 0.98, 1 - 0.25 / height, wspace=0.3, hspace=0.45)
    grid = list(figure.subplots(rows, COLUMNS, sharex=True, squeeze=False).flat)
    for axes, (name, values) in zip(grid, shown, strict=False):
        axes.plot(x, [math.nan if value is None else value for value in values], "o-", color=OBSERVED, markersize=3)
        axes.set_title(visible(name, 17), fontsize=8.5, color=INK, parse_math=False, loc="left")
        plain(axes)
        axes.tick_params(labelsize=7.5)
        axes.margins(y=0.2)
        axes.locator_params(nbins=4)
    for axes in grid[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel(visible(xlabel), fontsize=9)
    return svg_of(figure, label)
