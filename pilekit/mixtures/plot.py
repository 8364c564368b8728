"""The figure of `pilekit mix fit --plot`: the corpus's own shares beside the best mixture, a row for each subset.

The line is the interval of the weight in the best mixture, and the tick its cap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pilekit.errors import counted
from pilekit.mixtures.result import MixtureFit
from pilekit.stats.plot import INK, MOST_ROWS, OBSERVED, PAPER, chart_rows, legend, save_figure, title


def write_mixture_figure(result: MixtureFit, path: str | Path) -> None:
    """Draw the best mixture into the .png, .svg or .pdf file `path`, completely or not at all."""
    save_figure(draw_mixture(result), Path(path))


def draw_mixture(result: MixtureFit) -> Any:
    """The matplotlib `Figure`: 10 inches wide and as high as the subsets need, the largest weight at the top."""
    weighed = {name: subset for name, subset in result.subsets.items() if subset.weight is not None}
    shown = sorted(weighed, key=lambda name: -(weighed[name].weight or 0))[:MOST_ROWS]
    figure, axes = chart_rows(shown, 0.36, margins=2.3)
    verdict = "best mixture" if result.refused is None else "no recommendation"
    gain = f"predicted gain {result.gain:.2%}"
    title(figure, f"{verdict} for target {result.target}: {gain}, {counted(result.runs, 'run')}", len(weighed))
    own = "the corpus's own shares" if result.own_shares_known else "mean of the mixtures"
    for row, name in enumerate(shown):
        subset = weighed[name]
        first = row == 0
        axes.barh(row - 0.19, subset.share, 0.36, color=PAPER, label=own if first else "")
        axes.barh(row + 0.19, subset.weight, 0.36, color=OBSERVED, label=verdict if first else "")
        axes.plot(subset.interval, [row + 0.19] * 2, "|-", color=INK, linewidth=1.3, markersize=5)
        axes.plot(subset.cap, row, "|", color=INK, markersize=14, label="cap" if first else "")
    ends = [max(subset.share or 0, (subset.interval or (0, 0))[1]) for subset in weighed.values()]
    axes.set_xlim(0, min(1.02, 1.25 * max(ends)))
    axes.set_xlabel("share of the tokens, with the 95 % interval over resampled runs; caps beyond it are not shown")
    legend(figure, axes)
    return figure
