"""The output of `pilekit memorised`: the table with what it depends on, and a plot of the shares by subset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pilekit.errors import counted
from pilekit.evaluate.results.memorised_result import Memorised
from pilekit.evaluate.results.scores import model_path
from pilekit.evaluate.show.output import notes_table, protocol_notes
from pilekit.evaluate.show.plot import draw_interval, model_name
from pilekit.stats.plot import INK, MOST_ROWS, OBSERVED, chart_rows, legend, save_figure, title


def memorised_output(result: Memorised, width: int) -> RenderableType:
    """The output of `pilekit memorised`; `width` in terminal cells."""
    notes = [(name, note) for name, note in protocol_notes(result.protocol) if note is not None]
    return Group(result.table().fit(width), Text(), notes_table(notes))


def write_memorised_figure(result: Memorised, path: str | Path) -> None:
    """Draw the shares into the .png, .svg or .pdf file `path`, completely or not at all."""
    save_figure(draw_memorised(result), Path(path))


def draw_memorised(result: Memorised) -> Any:
    """The matplotlib `Figure`: a bar with its interval per subset, the largest share at the top, and a line for all."""
    shares = {name: counts.share for name, counts in result.subsets.items() if counts.share is not None}
    shown = sorted(shares, key=lambda name: -shares[name])[:MOST_ROWS]
    figure, axes = chart_rows(shown, 0.3)
    model = model_name(model_path(result.protocol))
    title(figure, f"{model}: memorised, {counted(result.overall.sequences, 'sequence')}", len(shares))
    for row, name in enumerate(shown):
        low, high = result.subsets[name].interval or (0.0, 0.0)
        axes.barh(row, 100 * shares[name], 0.62, color=OBSERVED)
        label = f"{100 * shares[name]:.2f} %"
        axes.text(1.01, row, label, transform=axes.get_yaxis_transform(), va="center", color=INK, fontsize=9)
        draw_interval(axes, row, (100 * low, 100 * high), INK)
    if (overall := result.overall.share) is not None:
        axes.axvline(100 * overall, color=INK, linewidth=1.3, linestyle="--", label=f"overall {100 * overall:.2f} %")
    axes.set_xlim(left=0)
    axes.set_xlabel("sequences continued word for word, % (95 % intervals)")
    legend(figure, axes)
    return figure
