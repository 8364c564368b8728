"""The section of a training run: losses, learning rate, speed and memory by step, with restarts marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pilekit.artifacts.header import read_header
from pilekit.display.fitted_table import DASH
from pilekit.errors import PilekitError
from pilekit.report.figures import WIDTH, palette, small_multiples, svg_of
from pilekit.stats.plot import INK, MOST_ROWS, OBSERVED, axes_of
from pilekit.train.log.metrics import read_metrics, read_samples
from pilekit.train.run_folder import STARTS, RunFolder

POINTS = 400
"""A curve has at most this many points; each is the mean of the steps around it."""
BY_SUBSET = "Loss by subset"
SAMPLED_STEPS = 4
"""A report shows the samples of at most this many steps."""

Float64 = npt.NDArray[np.float64]


def training_content(folder: Path, sampled_steps: int = SAMPLED_STEPS) -> dict[str, Any]:
    """How a run went. PilekitError if it has no step yet, or if its metrics are damaged.

    sampled_steps   the samples of at most so many steps are shown: the first, the last, and evenly between them
    """
    file = RunFolder(folder).metrics_file
    if not file.exists() or not (steps := read_metrics(file)):
        raise PilekitError(f"{folder}: no step is logged yet; `pilekit train` writes {file.name}")
    restarts = read_header(folder).results.get(STARTS, [])[1:]  # a run of an earlier pilekit has no list of its starts
    x = np.array([one.step for one in steps], dtype=np.float64)
    mark = "o-" if len(x) < 5 else "-"  # One point has no line.
    figures = {}

    def draw(title: str, ylabel: str, *curves: Iterable[float | None], spread: bool = False, **look: Any) -> None:
        figure, axes = axes_of(WIDTH, 2.6)
        for step in restarts:
            axes.axvline(step, color=INK, linewidth=0.9, linestyle="--")
        many = title == BY_SUBSET
        colours = palette(len(curves)) if many else [OBSERVED]
        for place, (colour, values) in enumerate(zip(colours, curves, strict=True)):
            y = np.array([*values], dtype=np.float64)  # None becomes NaN.
            gid = f"curve-{place}" if many else None
            if spread:
                axes.plot(*thinned(x, y, 4 * POINTS), color=colour, linewidth=0.5, alpha=0.35)
            points = thinned(x, y, POINTS // 4 if many else POINTS)
            axes.plot(*points, mark, color=colour, linewidth=1.4, markersize=4, gid=gid)
        axes.set(xlabel="step", ylabel=ylabel, **look)
        figures[title] = svg_of(figure, f"{title} of {folder}")

    draw("Loss", "nats per token", [one.loss for one in steps], spread=True)
    seen = Counter(name for one in steps for name in one.loss_by_subset)
    by_subset = {name: [one.loss_by_subset.get(name) for one in steps] for name, _ in seen.most_common(MOST_ROWS)}
    if by_subset:
        draw(BY_SUBSET, "nats per token", *by_subset.values())
    losses = []
    for name, values in by_subset.items():
        known = [loss for loss in values if loss is not None]
        tenth = max(1, len(known) // 10)
        losses.append((name, f"{len(known):,}", *(f"{np.mean(some):.3f}" for some in (known[:tenth], known[-tenth:]))))
    written = RunFolder(folder).samples_file
    samples = read_samples(written) if written.exists() else []
    at = sorted({one.step for one in samples})
    last = sampled_steps - 1
    chosen = {at[round(part * (len(at) - 1) / last)] for part in range(sampled_steps)} if at else set()
    draw("Learning rate", "learning rate", [one.lr for one in steps], ylim=(0, None))
    draw("Throughput", "tokens per second", [one.tokens_per_second for one in steps], spread=True, ylim=(0, None))
    draw("Waiting for data", "% of the step", [100 * one.data_wait for one in steps], spread=True, ylim=(0, 100))
    if any(one.memory_bytes for one in steps):
        draw("Memory", "GB on the fullest rank", [one.memory_bytes / 1e9 for one in steps], ylim=(0, None))
    measured = [(one.step, one.bpb) for one in steps if one.bpb is not msgspec.UNSET]
    if len(measured) > 1:
        series = {"overall": [bpb.overall for _, bpb in measured]}
        series |= {name: [bpb.subsets.get(name) for _, bpb in measured] for name in measured[-1][1].subsets}
        label = f"Held-out bits per byte of {folder}"
        held_out = small_multiples([step for step, _ in measured], series, label, "step")
        figures["Held-out bits per byte while training"] = held_out
    return {
        "last": steps[-1],
        "loss": next((f"{one.loss:.3f}" for one in reversed(steps) if one.loss is not None), DASH),
        "speed": float(np.median([one.tokens_per_second for one in steps])),
        "memory": max(one.memory_bytes for one in steps),
        "restarts": len(restarts),
        "figures": figures,
        "curves": {BY_SUBSET: list(zip(by_subset, palette(len(by_subset)), strict=True))},
        "losses": losses,
        "samples": [(f"{one.step:,}", one.prompt, one.text) for one in samples if one.step in chosen],
    }


def thinned(x: Float64, y: Float64, points: int = POINTS) -> tuple[Float64, Float64]:
    """The curve without its gaps, as at most `points` means over runs of equal length."""
    known = ~np.isnan(y)
    x, y = x[known], y[known]
    if len(x) <= points:
        return x, y
    starts = np.linspace(0, len(x), points, endpoint=False).astype(int)
    sizes = np.diff(np.append(starts, len(x)))
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes
