"""The figure of `pilekit stats --plot`: the subsets' shares of the corpus, and the sizes of their documents.

Both panels have a row for each subset, the largest at the top. The left panel compares the subset's share of the bytes
with the manifest's, of the whole corpus or of the selected subsets. The right one shows the distribution of its
documents' sizes on a logarithmic axis, drawn from the histogram, each row to the same height, with a tick at the
median.

The colours, axes, title and legend serve the figures of `bpb` and of the report too.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.errors import PilekitError, counted, visible
from pilekit.stats.histogram import middle_of
from pilekit.stats.result import CorpusStats, SubsetStats

FORMATS = ("png", "svg", "pdf")
MOST_ROWS = 40
LONGEST_NAME = 40
OBSERVED, PAPER, INK, FAINT = "#2f6690", "#e0a458", "#222222", "#d9d9d9"
SERIES = (OBSERVED, PAPER, "#5b8c5a", "#8e5ea2", "#c0504d")


def figure_format(path: str | Path) -> str:
    """The format by the suffix of `path`: "png", "svg" or "pdf"; `PilekitError` for any other."""
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise PilekitError(f"{path}: a figure is a .png, .svg or .pdf file; give it one of these suffixes")
    return suffix


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib `Figure` into the file `path`, whole or not at all, in the format of its suffix."""
    file_format = figure_format(path)
    with warnings.catch_warnings(), write_atomically(path, follow_links=True) as file:
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # A label may be in any script.
        figure.savefig(file, format=file_format, dpi=150)


def draw(stats: CorpusStats) -> Any:
    """The matplotlib `Figure`, 10 inches wide and as high as the subsets need."""
    from matplotlib.figure import Figure

    subsets = stats.subsets[:MOST_ROWS]
    figure = Figure(figsize=(10, 1.7 + 0.36 * max(len(subsets), 2)), layout="constrained")
    shares, lengths = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.25))
    for axes, name in ((shares, "Composition"), (lengths, "Document lengths")):
        name_rows(axes, [subset.name for subset in subsets], top=-0.9)
        axes.set_title(name, loc="left", fontsize=11, color=INK)
    draw_shares(shares, subsets, source_of_shares(stats.manifest, stats.selected is not None))
    draw_lengths(lengths, subsets)
    legend(figure, shares)
    title(figure, f"{counted(stats.total.documents)}, {stats.total.bytes:,} bytes of text", len(stats.subsets))
    return figure


def source_of_shares(manifest: str, selected: bool) -> str:
    """The source of the shares that a figure compares its own with, for a legend."""
    return ("the paper" if manifest == "pile" else "the manifest") + ", among these subsets" * selected


def axes_of(width: float, height: float, grid: Literal["x", "y"] = "y") -> tuple[Any, Any]:
    """(figure, axes), sizes in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    plain(axes, grid)
    return figure, axes


def plain(axes: Any, grid: Literal["x", "y"] = "y") -> None:
    """Lines at the left and below, and a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


def chart_rows(names: Sequence[str], row_height: float, width: float = 10, margins: float = 2.0) -> tuple[Any, Any]:
    """(figure, axes) with a row for each name; `margins` is the height of all but the rows, in inches."""
    figure, axes = axes_of(width, margins + row_height * max(len(names), 2), "x")
    name_rows(axes, names)
    return figure, axes


def name_rows(axes: Any, names: Sequence[str], *, top: float = -0.6) -> None:
    """Prepare axes with a row for each name, the first at the top; long names are cut."""
    plain(axes, "x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, top)
    axes.set_yticks(range(len(names)), [visible(name, LONGEST_NAME) for name in names], parse_math=False, color=INK)


def title(figure: Any, text: str, subsets: int) -> None:
    """A title at the left, with the number of rows if not all subsets have one."""
    more = f"; {MOST_ROWS} of {subsets:,} subsets" if subsets > MOST_ROWS else ""
    figure.suptitle(text + more, x=0.01, ha="left", fontsize=12, color=INK, parse_math=False)


def legend(figure: Any, axes: Any, columns: int = 4) -> None:
    """A legend of the axes' marks below them, replacing any other; its texts are taken literally."""
    figure.legends.clear()
    handles, _ = axes.get_legend_handles_labels()
    drawn = figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    for text in drawn.get_texts():
        text.set_parse_math(False)  # A path may hold anything.


def draw_shares(axes: Any, subsets: tuple[SubsetStats, ...], source: str) -> None:
    """Draw a row of two bars for each subset: its share of the bytes, and the share that `source` gives."""
    rows = np.arange(len(subsets))
    paper_rows = [row for row in rows if subsets[row].paper_share is not None]
    height, offset = (0.36, 0.19) if paper_rows else (0.6, 0.0)
    shares = [100 * subset.share for subset in subsets]
    axes.barh(rows - offset, shares, height, color=OBSERVED, label="here" if paper_rows else "")
    if paper_rows:
        paper = [100 * (subsets[row].paper_share or 0) for row in paper_rows]
        axes.barh(np.array(paper_rows) + offset, paper, height, color=PAPER, label=source)
    axes.set_xlabel("share of the bytes, %")


def draw_lengths(axes: Any, subsets: tuple[SubsetStats, ...]) -> None:
    """Draw the distribution of each subset's document sizes, the rows to the same height.

    A subset without a histogram, as in a saved output, has a bar from its median to its 99th percentile.
    """
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(LogLocator(base=10))
    axes.xaxis.set_major_formatter(EngFormatter("B", places=0))
    for row, subset in enumerate(subsets):
        sizes, density = _density(subset.lengths)
        if not len(sizes):
            ends = [max(size, 1) for size in (subset.median_bytes, subset.p99_bytes) if subset.p99_bytes >= 1]
            axes.plot(ends, [row] * len(ends), "|-", color=OBSERVED, linewidth=3, markersize=9)
            continue
        base = row + 0.36
        axes.fill_between(sizes, base, base - 0.74 * density, color=OBSERVED, alpha=0.75, linewidth=0)
        axes.plot(sizes[[0, -1]], [base, base], color=OBSERVED, linewidth=0.6)
        if subset.median_bytes >= 1:
            axes.plot([subset.median_bytes] * 2, [base, base - 0.74], color=INK, linewidth=1.2)
    is_whole = any(subset.lengths.any() for subset in subsets)
    axes.set_xlabel(f"UTF-8 bytes of a document ({'line: median' if is_whole else 'bar: median to 99th percentile'})")


def _density(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(sizes, density) of a smoothed histogram over the logarithm of the size, its top at 1; without empty texts."""
    filled = np.flatnonzero(counts[1:]) + 1
    if not len(filled):
        return np.zeros(0), np.zeros(0)
    # Eight points a doubling, smoothed by a Gaussian of about a third of a doubling.
    step, spread = 1 / 8, 0.3
    position = np.log2(middle_of(filled))
    grid = np.arange(position[0] - 3 * spread, position[-1] + 3 * spread + step, step)
    density = np.exp(-0.5 * ((grid[:, np.newaxis] - position) / spread) ** 2) @ counts[filled]
    keep = grid >= 0
    return 2.0 ** grid[keep], (density / density.max())[keep]
