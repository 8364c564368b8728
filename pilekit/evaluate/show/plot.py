"""The figures of `pilekit bpb --plot`: bits per byte of every subset with its interval, or differences of models.

A result has a bar with its 95 % interval for each subset, the hardest at the top, and lines at the overall figures.
Published figures are marks on the same rows. A comparison has a point with its interval for each subset and further
model: left of 0 that model is better than the first. A point is filled if the difference is clear, hollow if it is not,
and a cross if there are too few documents for an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pilekit.corpus import PublishedResult
from pilekit.errors import counted, visible
from pilekit.evaluate.results.compare import LETTERS, Comparison
from pilekit.evaluate.results.difference import UNCLEAR, Difference
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.scores import model_path
from pilekit.stats.plot import FAINT, INK, MOST_ROWS, OBSERVED, PAPER, SERIES, chart_rows, legend, save_figure, title

PALE = 0.45
"""The opacity of bars with few documents, whose interval is approximate."""
MARKS = "osD^"
"""A row has room for the marks of this many published models."""


def write_figure(result: BitsPerByte | Comparison, path: str | Path) -> None:
    """Draw a result or a comparison into the .png, .svg or .pdf file `path`, completely or not at all."""
    save_figure(draw_comparison(result) if isinstance(result, Comparison) else draw_result(result), Path(path))


def draw_result(result: BitsPerByte) -> Any:
    """The matplotlib `Figure`: 10 inches wide and as high as the subsets need."""
    figures = {name: score.bpb for name, score in result.subsets.items() if score.bpb is not None}
    shown = sorted(figures, key=lambda name: -figures[name])[:MOST_ROWS]
    kind = "pseudo-bits per byte" if result.is_masked else "bits per byte"
    figure, axes = chart_rows(shown, 0.3)
    model = model_name(model_path(result.protocol))
    title(figure, f"{model}: {kind}, {counted(result.overall.documents)}", len(figures))
    for row, name in enumerate(shown):
        value, score = figures[name], result.subsets[name]
        axes.barh(row, value, 0.62, color=OBSERVED, alpha=PALE if score.is_approximate else 1)
        axes.text(1.01, row, f"{value:.4f}", transform=axes.get_yaxis_transform(), va="center", color=INK, fontsize=9)
        draw_interval(axes, row, score.interval, INK)
    for mean, whole, style in (("pooled", result.overall, "--"), ("weighted", result.mixture, ":")):
        if whole is not None and whole.bpb is not None:
            label = f"overall, {mean} {whole.bpb:.4f}"
            axes.axvline(whole.bpb, color=INK, linewidth=1.3, linestyle=style, label=label)
    if result.overall.interval is not None:
        axes.axvspan(*result.overall.interval, color=INK, alpha=0.12, linewidth=0)
    note = "pale: under 100 documents"
    if result.published is not None:
        _draw_marks(axes, shown, result.published.columns)
        note += "; marks: published, and by another protocol; the table says what differs"
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{kind}, with 95 % intervals\n{note}")
    legend(figure, axes)
    return figure


def draw_comparison(comparison: Comparison) -> Any:
    """The matplotlib `Figure`: a row for each subset and one for all, each with a point for every further model."""
    first = comparison.against[0]
    differing = {name: subset.difference for name, subset in first.subsets.items() if subset.difference is not None}
    shown = sorted(differing, key=lambda name: differing[name])[:MOST_ROWS]
    letters = LETTERS[1 : len(comparison.models)]
    figure, axes = chart_rows([*shown, "Overall"], 0.22 + 0.08 * len(letters))
    title(figure, f"{' and '.join(letters)} against A, on {counted(first.overall.documents)}", len(differing))
    axes.axvline(0, color=INK, linewidth=1.2)
    axes.axhline(len(shown) - 0.5, color=FAINT, linewidth=1)
    axes.plot([], [], " ", label=f"A: {model_name(comparison.models[0])}")
    offsets = np.linspace(-0.27, 0.27, len(letters)) if len(letters) > 1 else [0.0]
    for place, (letter, against, offset) in enumerate(zip(letters, comparison.against, offsets, strict=True)):
        colour = SERIES[place % len(SERIES)]
        axes.plot([], [], "o", color=colour, label=f"{letter}: {model_name(comparison.models[place + 1])}")
        for row, difference in enumerate([*(against.subsets[name] for name in shown), against.overall]):
            _draw_point(axes, difference, row + offset, colour)
    kind = "pseudo-bits" if comparison.kind == "masked" else "bits"
    better = letters if len(letters) == 1 else "the other"
    axes.set_xlabel(
        f"← {better} is better      difference to A in {kind} per byte, 95 % intervals      A is better →\n"
        "hollow: not told apart; cross: too few documents for an interval"
    )
    legend(figure, axes, 2)
    return figure


def _draw_point(axes: Any, difference: Difference, y: float, colour: str) -> None:
    """Draw the marker and the interval of a difference, if there is one."""
    if difference.difference is None:
        return
    look: dict[str, Any] = {"marker": "x"} if difference.interval is None else {"marker": "o"}
    if difference.verdict == UNCLEAR:
        look["markerfacecolor"] = "white"
    axes.plot([difference.difference], [y], linestyle="none", markersize=6, color=colour, **look)
    draw_interval(axes, y, difference.interval, colour)


def _draw_marks(axes: Any, shown: Sequence[str], columns: Sequence[PublishedResult]) -> None:
    """Mark the published figures of some models, from the highest figures to the lowest in even steps."""
    ordered = sorted(columns, key=lambda column: -sum(column.subsets.values()))
    steps = np.linspace(0, len(ordered) - 1, min(len(ordered), len(MARKS))).round().astype(int)
    for mark, column in zip(MARKS, [ordered[step] for step in steps], strict=False):
        places = [(column.subsets[name], row) for row, name in enumerate(shown) if name in column.subsets]
        label = visible(column.model if column.overall is None else f"{column.model} ({column.overall:.4f})")
        look = {"color": PAPER, "markeredgecolor": INK, "markeredgewidth": 0.6, "label": label}
        axes.plot([x for x, _ in places], [row for _, row in places], mark, markersize=5.5, **look)


def draw_interval(axes: Any, y: float, interval: tuple[float, float] | None, colour: str) -> None:
    """Draw the interval, if there is one."""
    if interval is not None:
        axes.plot(interval, [y, y], "|-", color=colour, linewidth=1.3, markersize=5)


def model_name(path: str | None) -> str:
    """The end of a model's path, which says more than its beginning."""
    name = path or "a model"
    return visible(name if len(name) <= 50 else f"…{name[-49:]}")
