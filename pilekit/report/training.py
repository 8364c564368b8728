"""The section of a training run: losses, learning rate, speed and memory by step, with restarts marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pilekit.artifacts.header import read_header
from pilekit.errors import PilekitError, visible
from pilekit.fitted_table import rounded_bytes, rounded_count
from pilekit.report.figures import axes_of, palette, svg_of
from pilekit.report.multiples import small_multiples
from pilekit.report.parts import Curve, Facts, Figure, Part, Source, Table, number
from pilekit.stats.plot import INK, MOST_ROWS, OBSERVED
from pilekit.train.log.metrics import StepMetrics, read_metrics
from pilekit.train.run_folder import STARTS, RunFolder

POINTS = 400
"""A curve has at most this many points; each is the mean of the steps around it."""

Float64 = npt.NDArray[np.float64]


def training_parts(folder: Path, source: Source) -> Iterator[Part]:
    """How a run went. PilekitError if it has no step yet, or if its metrics are damaged."""
    file = RunFolder(folder).metrics_file
    if not file.exists() or not (steps := read_metrics(file)):
        raise PilekitError(f"{visible(str(folder))}: no step is logged yet; `pilekit train` writes {file.name}")
    # A run of an earlier pilekit has no list of its starts.
    restarts = [int(step) for step in read_header(folder).results.get(STARTS, [])[1:]]
    last, losses = steps[-1], [one.loss for one in steps if one.loss is not None]
    facts = [("steps", f"{last.step:,}"), ("tokens", rounded_count(last.tokens))]
    if losses:
        facts.append(("last loss", f"{losses[-1]:.3f}"))
    speed = float(np.median([one.tokens_per_second for one in steps]))
    facts += [("tokens/s (median)", rounded_count(speed)), ("restarts", f"{len(restarts):,}")]
    if last.skipped:
        facts.append(("skipped steps", f"{last.skipped:,}"))
    yield Facts(facts, source)
    x = np.array([one.step for one in steps], dtype=np.float64)

    def figure(
        title: str, ylabel: str, value: Callable[[StepMetrics], float | None], note: str = "", **look: Any
    ) -> Figure:
        y = np.array([np.nan if (of := value(one)) is None else of for one in steps])
        drawn, axes = _axes(restarts, ylabel)
        if look.pop("spread", False):
            axes.plot(*thinned(x, y, 4 * POINTS), color=OBSERVED, linewidth=0.5, alpha=0.35)
        axes.plot(*thinned(x, y), _mark(x), color=OBSERVED, linewidth=1.4, markersize=4)
        axes.set(**look)
        marks = " A dashed line is a restart." if restarts else ""
        return Figure(title, svg_of(drawn, f"{title} of {source.path}"), source, (note + marks).strip())

    yield figure("Loss", "nats per token", lambda one: one.loss, spread=True)
    yield from _by_subset(steps, x, restarts, source)
    yield figure("Learning rate", "learning rate", lambda one: one.lr, ylim=(0, None))
    yield figure("Throughput", "tokens per second", lambda one: one.tokens_per_second, spread=True, ylim=(0, None))
    yield figure("Waiting for data", "% of the step", lambda one: 100 * one.data_wait, spread=True, ylim=(0, 100))
    if any(one.memory_bytes for one in steps):
        most = max(one.memory_bytes for one in steps)
        note = f"At most {rounded_bytes(most)} on a rank."
        yield figure("Memory", "GB on the fullest rank", lambda one: one.memory_bytes / 1e9, note, ylim=(0, None))
    measured = [(one.step, one.bpb) for one in steps if one.bpb is not msgspec.UNSET]
    if len(measured) > 1:
        series = {name: [bpb.subsets.get(name) for _, bpb in measured] for name in measured[-1][1].subsets}
        series = {"overall": [bpb.overall for _, bpb in measured], **series}
        label = f"Held-out bits per byte of {source.path}"
        svg = small_multiples([step for step, _ in measured], series, label, "step")
        yield Figure("Held-out bits per byte while training", svg, source)


def _by_subset(steps: Sequence[StepMetrics], x: Float64, restarts: Sequence[int], source: Source) -> Iterator[Part]:
    """A curve for each subset, those seen in the most steps first, and a table of the first and last losses."""
    seen: dict[str, int] = {}
    for one in steps:
        for name in one.loss_by_subset:
            seen[name] = seen.get(name, 0) + 1
    names = sorted(seen, key=lambda name: -seen[name])[:MOST_ROWS]
    if not names:
        return
    drawn, axes = _axes(restarts, "nats per token")
    curves, rows = [], []
    for place, (name, colour) in enumerate(zip(names, palette(len(names)), strict=True)):
        y = np.array([one.loss_by_subset.get(name, np.nan) for one in steps])
        look = {"color": colour, "linewidth": 1.3, "markersize": 4, "gid": f"curve-{place}"}
        axes.plot(*thinned(x, y, POINTS // 4), _mark(x), **look)
        curves.append(Curve(place, name, colour))
        known = y[~np.isnan(y)]
        tenth = max(1, len(known) // 10)
        rows.append(
            [name, number(len(known)), *(number(float(of.mean()), ".3f") for of in (known[:tenth], known[-tenth:]))]
        )
    svg = svg_of(drawn, f"Loss by subset of {source.path}")
    yield Figure("Loss by subset", svg, source, "Each point is the mean of the steps around it.", curves)
    columns = ["Subset", "Steps", "First tenth", "Last tenth"]
    yield Table.of("Loss by subset: nats per token", columns, rows, source)


def _axes(restarts: Sequence[int], ylabel: str) -> tuple[Any, Any]:
    figure, axes = axes_of(2.6)
    for step in restarts:
        axes.axvline(step, color=INK, linewidth=0.9, linestyle="--")
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    return figure, axes


def _mark(x: Float64) -> str:
    """The line's style; few steps get points, because one point has no line."""
    return "o-" if len(x) < 5 else "-"


def thinned(x: Float64, y: Float64, points: int = POINTS) -> tuple[Float64, Float64]:
    """The curve without its gaps, as at most `points` means over runs of equal length."""
    known = ~np.isnan(y)
    x, y = x[known], y[known]
    if len(x) <= points:
        return x, y
    starts = np.linspace(0, len(x), points, endpoint=False).astype(int)
    sizes = np.diff(np.append(starts, len(x)))
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes
