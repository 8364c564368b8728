"""The figures of `pilekit bpb --plot`: bits per byte of every subset with its interval, or differences of models.

A result has a bar with its 95 % interval for each subset, the hardest at the top, and lines at the overall figures.
Published figures are marks on the same rows. A comparison has a point with its interval for each subset and further
model: left of 0 that model is better than the first. A point is filled if its interval does not hold 0, hollow if it
does, a cross if there is no interval, and pale for few documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pilekit.errors import visible
from pilekit.evaluate.results.compare import LETTERS, Comparison, Difference
from pilekit.evaluate.results.published import Published, PublishedColumn
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.stats.plot import FAINT, INK, LONGEST_NAME, MOST_ROWS, OBSERVED, PAPER, save_figure

FEW = "#a9c1d3"
"""Legend of bars with few documents, whose interval is approximate."""
UNCLEAR = "#7f7f7f"
PALE = 0.5
"""The share of the colour if the interval is approximate; the rest is white."""
SERIES = (OBSERVED, PAPER, "#5b8c5a", "#8e5ea2", "#c0504d")
MARKS = "osD^"
"""A row has room for the marks of this many published models."""


def write_figure(result: BitsPerByte | Comparison, path: str | Path) -> None:
    """Draw a result or a comparison into the .png, .svg or .pdf file `path`, completely or not at all."""
    save_figure(draw_comparison(result) if isinstance(result, Comparison) else draw_result(result), Path(path))


def draw_result(result: BitsPerByte) -> Any:
    """The matplotlib `Figure`: 10 inches wide and as high as the subsets need."""
    from matplotlib.patches import Patch

    figures = {name: score.bpb for name, score in result.subsets.items() if score.bpb is not None}
    shown = sorted(figures, key=lambda name: -figures[name])[:MOST_ROWS]
    scores = [result.subsets[name] for name in shown]
    kind = "pseudo-bits per byte" if result.is_masked else "bits per byte"
    title = f"{_model(result.protocol['model']['path'])}: {kind}, {result.overall.documents:,} documents"
    figure, axes = _axes(shown, title, len(figures))
    values = [figures[name] for name in shown]
    axes.barh(range(len(shown)), values, 0.62, color=[FEW if of.is_approximate else OBSERVED for of in scores])
    for row, (value, of) in enumerate(zip(values, scores, strict=True)):
        axes.text(1.01, row, f"{value:.4f}", transform=axes.get_yaxis_transform(), va="center", color=INK, fontsize=9)
        if of.interval is not None:
            _error(axes, value, row, of.interval, INK)
    handles: list[Any] = []
    if result.overall.bpb is not None:
        label = f"overall, pooled {result.overall.bpb:.4f}"
        handles.append(axes.axvline(result.overall.bpb, color=INK, linewidth=1.3, linestyle="--", label=label))
        if result.overall.interval is not None:
            axes.axvspan(*result.overall.interval, color=INK, alpha=0.12, linewidth=0)
    if result.weighted is not None:
        label = f"overall, weighted {result.weighted.bpb:.4f}"
        handles.append(axes.axvline(result.weighted.bpb, color=INK, linewidth=1.3, linestyle=":", label=label))
    if any(of.is_approximate for of in scores):
        handles.append(Patch(color=FEW, label="under 100 documents"))
    marks = [] if result.published is None else _published(axes, shown, result.published)
    handles += marks
    axes.set_xlim(left=0)
    note = "\nmarks: published, and by another protocol; the table says what differs" if marks else ""
    axes.set_xlabel(f"{kind}, with 95 % intervals{note}")
    if handles:
        _legend(figure, handles, 4)
    return figure


def draw_comparison(comparison: Comparison) -> Any:
    """The matplotlib `Figure`: a row for each subset and one for all, each with a point for every further model."""
    first = comparison.against[0]
    differing = {name: one.difference for name, one in first.subsets.items() if one.difference is not None}
    shown = sorted(differing, key=lambda name: differing[name])[:MOST_ROWS]
    letters = LETTERS[1 : len(comparison.models)]
    title = " and ".join(letters) + f" against A, on {first.overall.documents:,} documents"
    figure, axes = _axes([*shown, "Overall"], title, len(differing), row_height=0.22 + 0.08 * len(letters))
    axes.axvline(0, color=INK, linewidth=1.2)
    axes.axhline(len(shown) - 0.5, color=FAINT, linewidth=1)
    offsets = np.linspace(-0.27, 0.27, len(letters)) if len(letters) > 1 else np.zeros(1)
    handles = [axes.plot([], [], " ", label=f"A: {_model(comparison.models[0])}")[0]]
    for number, (letter, against, offset) in enumerate(zip(letters, comparison.against, offsets, strict=True)):
        colour = SERIES[number % len(SERIES)]
        _points(axes, [*(against.subsets[name] for name in shown), against.overall], offset, colour)
        label = f"{letter}: {_model(comparison.models[number + 1])}"
        handles.append(axes.plot([], [], "o", color=colour, label=label)[0])
    drawn = [one for of in comparison.against for one in (of.overall, *(of.subsets[name] for name in shown))]
    handles += _looks(axes, [one for one in drawn if one.difference is not None])
    kind = "pseudo-bits" if comparison.kind == "masked" else "bits"
    better = letters if len(letters) == 1 else "the other"
    axes.set_xlabel(f"← {better} is better      difference to A in {kind} per byte, 95 % intervals      A is better →")
    _legend(figure, handles, 3 if len(handles) == 3 else 2)
    return figure


def _points(axes: Any, differences: Sequence[Difference], offset: float, colour: str) -> None:
    """Draw a point on each row that has a difference."""
    for row, one in enumerate(differences):
        if one.difference is not None:
            look = _look(one, colour)
            if one.interval is not None:
                _error(axes, one.difference, row + offset, one.interval, look["color"])
            axes.plot([one.difference], [row + offset], **look)


def _look(one: Difference, colour: str) -> dict[str, Any]:
    """The marker of a difference, by its interval: without 0, with 0, approximate or missing."""
    shade: Any = colour if one.sign else UNCLEAR
    if one.interval is None:
        return {"marker": "x", "markersize": 6, "linestyle": "none", "color": shade}
    shade = _pale(shade) if one.is_approximate else shade
    face = shade if one.sign else "white"
    return {"marker": "o", "markersize": 6, "linestyle": "none", "color": shade, "markerfacecolor": face}


def _looks(axes: Any, drawn: Sequence[Difference]) -> list[Any]:
    """The legend of all markers except the plain one."""
    looks: list[tuple[str, dict[str, Any]]] = []
    if any(one.interval is not None and not one.sign for one in drawn):
        looks.append(("interval holds 0", {"marker": "o", "color": UNCLEAR, "markerfacecolor": "white"}))
    if any(one.interval is None for one in drawn):
        looks.append(("no interval: one document", {"marker": "x", "color": UNCLEAR}))
    if any(one.interval is not None and one.is_approximate for one in drawn):
        looks.append(("pale: under 100 documents", {"marker": "o", "color": _pale(SERIES[0])}))
    return [axes.plot([], [], linestyle="none", label=label, **look)[0] for label, look in looks]


def _pale(colour: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(1 - PALE * (1 - part) for part in to_rgb(colour))


def _published(axes: Any, shown: Sequence[str], published: Published) -> list[Any]:
    """Draw marks on the rows for the published figures of each model; returns their legend."""
    handles = []
    for column, mark in zip(_evenly_chosen(published.columns), MARKS, strict=False):
        places = [(column.subsets[name], row) for row, name in enumerate(shown) if name in column.subsets]
        if not places:
            continue
        x, y = zip(*places, strict=True)
        label = visible(column.model if column.overall is None else f"{column.model} ({column.overall:.4f})")
        look = {"color": PAPER, "markeredgecolor": INK, "markeredgewidth": 0.6, "label": label}
        handles += axes.plot(x, y, mark, markersize=5.5, **look)
    return handles


def _evenly_chosen(columns: Sequence[PublishedColumn]) -> list[PublishedColumn]:
    """At most as many models as there are marks: from the highest overall figure to the lowest, in even steps."""
    if len(columns) <= len(MARKS):
        return list(columns)
    known = [one for one in columns if one.overall is not None] or columns  # no model has one if subsets are missing
    whole = sorted(known, key=lambda one: -(one.overall or sum(one.subsets.values())))
    return [whole[place] for place in np.unique(np.linspace(0, len(whole) - 1, len(MARKS)).round().astype(int))]


def _axes(rows: Sequence[str], title: str, subsets: int, row_height: float = 0.3) -> tuple[Any, Any]:
    """(figure, axes) with a named row for each of `rows`, the first at the top; heights are inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.0 + row_height * max(len(rows), 2)), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [visible(name, LONGEST_NAME) for name in rows], parse_math=False, color=INK)
    if subsets > MOST_ROWS:
        title += f"; {MOST_ROWS} of {subsets:,} subsets"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK, parse_math=False)
    return figure, axes


def _legend(figure: Any, handles: list[Any], columns: int) -> None:
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a path may hold anything


def _error(axes: Any, x: float, y: float, interval: tuple[float, float], color: Any) -> None:
    """A horizontal interval at a point."""
    # A percentile interval may exclude its own figure, and an arm cannot have a negative length.
    arms = [[max(x - interval[0], 0)], [max(interval[1] - x, 0)]]
    axes.errorbar([x], [y], xerr=arms, fmt="none", ecolor=color, elinewidth=1.3, capsize=2.5)


def _model(path: str | None) -> str:
    """The end of a model's path, which says more than its beginning."""
    name = path or "a model"
    return visible(name if len(name) <= 50 else f"…{name[-49:]}")
