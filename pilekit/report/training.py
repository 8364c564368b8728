"""The section of a training run: losses, learning rate, speed and memory by step, with restarts marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from pilekit.train.branches import began, branches_of
from pilekit.train.config.file import load_config
from pilekit.train.log.metrics import read_metrics, read_samples
from pilekit.train.run_folder import ALTERED, STARTS, RunFolder, run_of

POINTS = 400
"""A curve has at most this many points; each is the mean of the steps around it."""
BY_SUBSET = "Loss by subset"
SAMPLED_STEPS = 4
"""A report shows the samples of at most this many steps."""

Float64 = npt.NDArray[np.float64]


def training_content(folder: Path, sampled_steps: int) -> dict[str, Any]:
    """The curves and samples of a run. PilekitError if it has no step yet, or if its metrics are damaged.

    sampled_steps   the samples of at most so many steps are shown: the first, the last, and evenly between them
    """
    run = RunFolder(folder)
    file = run.metrics_file
    if not file.exists() or not (steps := read_metrics(file)):
        raise PilekitError(f"{folder}: no step is logged yet; `pilekit train` writes {file.name}")
    if run.config_file.exists():  # which may name another folder of checkpoints
        run = run_of(folder, load_config(run.config_file))
    results = read_header(folder).results
    first, *restarts = results.get(STARTS, [0])  # a run of an earlier pilekit has no list of them
    origin = began(run)
    branches = [] if origin is None else [("began from", origin, f"{first:,}")]
    branches += [("was left by", branch.run, f"{branch.step:,}") for branch in branches_of(run)]
    x = np.array([step.step for step in steps], dtype=np.float64)
    mark = "o-" if len(x) < 5 else "-"  # One point has no line.
    figures = {}

    def draw(title: str, ylabel: str, *curves: Iterable[float | None], spread: bool = False, **look: Any) -> None:
        figure, axes = axes_of(WIDTH, 2.6)
        for restart in restarts:
            axes.axvline(restart, color=INK, linewidth=0.9, linestyle="--")
        by_subset = title == BY_SUBSET
        colours = palette(len(curves)) if by_subset else [OBSERVED]
        for place, (colour, values) in enumerate(zip(colours, curves, strict=True)):
            y = np.array([*values], dtype=np.float64)  # None becomes NaN.
            gid = f"curve-{place}" if by_subset else None
            if spread:
                axes.plot(*thinned(x, y, 4 * POINTS), color=colour, linewidth=0.5, alpha=0.35)
            points = thinned(x, y, POINTS // 4 if by_subset else POINTS)
            axes.plot(*points, mark, color=colour, linewidth=1.4, markersize=4, gid=gid)
        axes.set(xlabel="step", ylabel=ylabel, **look)
        figures[title] = svg_of(figure, f"{title} of {folder}")

    draw("Loss", "nats per token", [step.loss for step in steps], spread=True)
    logged = Counter(name for step in steps for name in step.loss_by_subset)
    curves = {name: [step.loss_by_subset.get(name) for step in steps] for name, _ in logged.most_common(MOST_ROWS)}
    if curves:
        draw(BY_SUBSET, "nats per token", *curves.values())
    losses = []
    for name, curve in curves.items():
        values = [loss for loss in curve if loss is not None]
        tenth = max(1, len(values) // 10)
        losses.append((name, f"{len(values):,}", f"{np.mean(values[:tenth]):.3f}", f"{np.mean(values[-tenth:]):.3f}"))
    samples = read_samples(run.samples_file) if run.samples_file.exists() else []
    with_samples = sorted({sample.step for sample in samples})
    places = [round(part * (len(with_samples) - 1) / (sampled_steps - 1)) for part in range(sampled_steps)]
    shown = {with_samples[place] for place in places} if samples else set()
    draw("Learning rate", "learning rate", [step.lr for step in steps], ylim=(0, None))
    draw("Throughput", "tokens per second", [step.tokens_per_second for step in steps], spread=True, ylim=(0, None))
    draw("Waiting for data", "% of the step", [100 * step.data_wait for step in steps], spread=True, ylim=(0, 100))
    if any(step.memory_bytes for step in steps):
        draw("Memory", "GB on the fullest rank", [step.memory_bytes / 1e9 for step in steps], ylim=(0, None))
    measured = [(step.step, step.bpb) for step in steps if step.bpb is not msgspec.UNSET]
    if len(measured) > 1:
        series = {"overall": [bpb.overall for _, bpb in measured]}
        series |= {name: [bpb.subsets.get(name) for _, bpb in measured] for name in measured[-1][1].subsets}
        label = f"Held-out bits per byte of {folder}"
        svg = small_multiples([step for step, _ in measured], series, label, "step")
        figures["Held-out bits per byte while training"] = svg
    return {
        "last": steps[-1],
        "loss": next((f"{step.loss:.3f}" for step in reversed(steps) if step.loss is not None), DASH),
        "speed": float(np.median([step.tokens_per_second for step in steps])),
        "memory": max(step.memory_bytes for step in steps),
        "restarts": len(restarts),
        "branches": branches,
        "figures": figures,
        "curves": {BY_SUBSET: list(zip(curves, palette(len(curves)), strict=True))},
        "losses": losses,
        "altered": list(_altered(results.get(ALTERED, {}))),
        "samples": [(f"{sample.step:,}", sample.prompt, sample.text) for sample in samples if sample.step in shown],
    }


def _altered(altered: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, str, str]]:
    """What `data.without` and `data.plant` changed: setting, source, documents, copies, steps, content."""
    if (hidden := altered.get("without")) is not None:
        documents = f"{hidden['documents']:,}" if "documents" in hidden else "all of the subset"
        yield "without", hidden["source"], documents, DASH, "all", hidden.get("content", DASH)
    for entry in altered.get("plant", ()):
        copies, (begin, end) = entry["copies"], entry["steps"]
        doses = ", ".join(f"{copies.count(dose):,} × {dose:,}" for dose in sorted(set(copies)))
        yield "plant", entry["path"], f"{len(copies):,}", doses, f"{begin + 1:,} to {end:,}", entry["content"]


def thinned(x: Float64, y: Float64, points: int) -> tuple[Float64, Float64]:
    """The curve without its gaps, as at most `points` means over runs of equal length."""
    is_logged = ~np.isnan(y)
    x, y = x[is_logged], y[is_logged]
    if len(x) <= points:
        return x, y
    starts = np.linspace(0, len(x), points, endpoint=False).astype(int)
    sizes = np.diff(np.append(starts, len(x)))
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes
