"""Figures as inline SVG that follow the page's colours.

matplotlib draws with the colours of `stats.plot`. In the SVG, each of these becomes a variable of the style sheet, so
the same figure is right on light and on dark paper. Text stays text: it is small, can be searched, and has the page's
font. Labels are made visible first, and matplotlib escapes them.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from pilekit.errors import visible
from pilekit.stats.plot import FAINT, INK, MOST_ROWS, OBSERVED, PAPER, SERIES, chart_rows, legend, plain

WIDTH = 5.6
"""Inches. A figure of this width is readable on a phone, and a desk shows two of them side by side."""

_VARIABLES = {OBSERVED: "observed", PAPER: "paper", INK: "ink", FAINT: "faint", "#000000": "ink", "#ffffff": "page"}
_CHANGES = {
    r"<!--.*?-->\s*": "",
    r'<g id="curve-(\d+)"': r'<g data-curve="\1"',
    r'<g id="[^"]*"': "<g",  # Ids must be unique on the page.
    r"font: ((?:bold |italic )?)([\d.]+px) [^;\"]*": r"font: \1\2 var(--font)",
    **{f": {colour}": f": var(--{name})" for colour, name in _VARIABLES.items()},
}


def svg_of(figure: Any, label: str) -> Markup:
    """The figure as an `<svg>` element; `label` describes it for readers who cannot see it, and is unique on a page."""
    import matplotlib

    file = io.StringIO()
    # The salt keeps the ids of clip paths and markers apart from those of other figures, and equal in each run.
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": label}
    with warnings.catch_warnings(), matplotlib.rc_context(style):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # A label may be in any script.
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    for pattern, new in _CHANGES.items():
        text = re.sub(pattern, new, text, flags=re.DOTALL)
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{Markup.escape(visible(label))}"', 1))


def bars(names: Sequence[str], series: Mapping[str, Sequence[float]], label: str, xlabel: str) -> Markup:
    """A bar for each name; the values of several series are stacked."""
    figure, axes = chart_rows(names[:MOST_ROWS], 0.27, WIDTH, 1.1)
    starts = np.zeros(min(len(names), MOST_ROWS))
    for colour, (title, values) in zip(SERIES, series.items(), strict=False):
        shown = np.array(values[:MOST_ROWS], dtype=np.float64)
        axes.barh(range(len(shown)), shown, 0.62, left=starts, color=colour, label=title)
        starts += shown
    axes.set_xlim(0, 1.06 * max(starts.max(initial=0), 1e-9))
    axes.set_xlabel(xlabel)
    legend(figure, axes)
    return svg_of(figure, label)


def small_multiples(
    x: Sequence[float], series: Mapping[str, Sequence[float | None]], label: str, xlabel: str
) -> Markup:
    """Small axes for each of the first series, a line over `x` with its own y axis; None leaves a gap."""
    from matplotlib.figure import Figure

    shown = list(series.items())[:MOST_ROWS]
    rows = math.ceil(len(shown) / 3)
    height = 0.75 + 1.15 * rows
    figure = Figure(figsize=(WIDTH, height))
    # Not the constrained layout of other figures, which takes seconds for so many axes.
    figure.subplots_adjust(0.08, 0.5 / height, 0.98, 1 - 0.25 / height, wspace=0.3, hspace=0.45)
    grid = list(figure.subplots(rows, 3, sharex=True, squeeze=False).flat)
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


def palette(count: int) -> list[str]:
    """Colours that differ, readable on light and dark paper."""
    from matplotlib.colors import hsv_to_rgb, to_hex

    looks = [(place / count, *((0.75, 0.62), (0.55, 0.8))[place % 2]) for place in range(count)]
    return [to_hex(tuple(hsv_to_rgb(look).tolist())) for look in looks]
