"""Figures as inline SVG that follow the page's colours.

matplotlib draws with the colours of `stats.plot`. In the SVG, each of these becomes a variable of the style sheet, so
the same figure is right on light and on dark paper. Text stays text: it is small, can be searched, and has the page's
font. Labels are made visible first, and matplotlib escapes them.
"""

from __future__ import annotations

import colorsys
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from pilekit.errors import visible
from pilekit.stats.plot import FAINT, INK, LONGEST_NAME, MOST_ROWS, OBSERVED, PAPER

WIDTH = 5.6
"""Inches. A figure of this width is readable on a phone, and two fit beside each other on a desk."""

SERIES = (OBSERVED, PAPER, "#5b8c5a", "#8e5ea2", "#c0504d")
_VARIABLES = {OBSERVED: "observed", PAPER: "paper", INK: "ink", FAINT: "faint", "#000000": "ink", "#ffffff": "page"}
_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def svg_of(figure: Any, label: str, width: float | None = None) -> Markup:
    """The figure as an `<svg>` element.

    label   a description for readers who cannot see it, unique on its page
    width   inches, if the figure was made for another width
    """
    import matplotlib

    if width is not None:
        figure.set_size_inches(width, figure.get_figheight())
    file = io.StringIO()
    # The salt keeps the ids of clip paths and markers apart from those of other figures, and equal in each run.
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": label}
    with warnings.catch_warnings(), matplotlib.rc_context(style):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # A label may be in any script.
        figure.savefig(file, format="svg", transparent=True, metadata=_METADATA)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = text.replace(
        f' width="{72 * figure.get_figwidth():g}pt"', f' style="max-width: {72 * figure.get_figwidth():g}pt"', 1
    )
    text = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="curve-(\d+)"', r'<g data-curve="\1"', text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r"font: ((?:bold |italic )?)([\d.]+px) [^;\"]*", r"font: \1\2 var(--font)", text)
    for colour, name in _VARIABLES.items():
        text = text.replace(f": {colour}", f": var(--{name})")
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{Markup.escape(visible(label))}"', 1))


def axes_of(height: float, width: float = WIDTH, *, grid: str = "y") -> tuple[Any, Any]:
    """(figure, axes), sizes in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    plain(axes, grid)
    return figure, axes


def plain(axes: Any, grid: str = "y") -> None:
    """Lines at the left and below, and a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


def rows_of(names: Sequence[str], heights: float = 0.27, longest: int = LONGEST_NAME) -> tuple[Any, Any]:
    """(figure, axes) with a row for each of the first names, from the top; names have at most `longest` letters."""
    shown = names[:MOST_ROWS]
    figure, axes = axes_of(0.9 + heights * max(len(shown), 2), grid="x")
    axes.spines[["left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_yticks(range(len(shown)), [visible(name, longest) for name in shown], parse_math=False, color=INK)
    return figure, axes


def bars(
    names: Sequence[str], series: Mapping[str, Sequence[float]], label: str, xlabel: str, longest: int = LONGEST_NAME
) -> Markup:
    """A bar for each name; the values of several series are stacked."""
    figure, axes = rows_of(names, longest=longest)
    left = np.zeros(min(len(names), MOST_ROWS))
    for colour, (title, values) in zip(SERIES, series.items(), strict=False):
        shown = np.array(values[:MOST_ROWS], dtype=np.float64)
        axes.barh(range(len(shown)), shown, 0.62, left=left, color=colour, label=title)
        left += shown
    axes.set_xlim(0, 1.06 * max(left.max(initial=0), 1e-9))
    axes.set_xlabel(xlabel)
    if len(series) > 1:
        legend(axes)
    return svg_of(figure, label)


def legend(axes: Any) -> None:
    """A legend in a row above the axes, its texts taken literally."""
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2, "ncols": 3}
    for text in axes.legend(frameon=False, fontsize=9, columnspacing=1.2, **place).get_texts():
        text.set_parse_math(False)


def palette(count: int) -> list[str]:
    """Colours that differ, readable on light and dark paper."""
    colours = (colorsys.hsv_to_rgb(place / count, *((0.75, 0.62), (0.55, 0.8))[place % 2]) for place in range(count))
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in colours]
