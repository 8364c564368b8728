"""The output of `pilekit memorised`: tables with what they depend on, a plot of the shares, and a comparison.

The plot has a panel of subsets, and below it one for each group: by copies, by times seen, by steps since then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pilekit.errors import counted, shortened
from pilekit.evaluate.results.compare import LETTERS
from pilekit.evaluate.results.memorised_comparison import MemorisedComparison
from pilekit.evaluate.results.memorised_groups import GROUPS, shown_class
from pilekit.evaluate.results.memorised_result import Memorised, MemorisedShare
from pilekit.evaluate.results.scores import model_path
from pilekit.evaluate.show.output import notes_table, protocol_notes
from pilekit.evaluate.show.plot import draw_interval, model_name
from pilekit.stats.plot import INK, MOST_ROWS, OBSERVED, legend, name_rows, save_figure, title

ROW, MARGIN = 0.3, 0.9
"""The height of a row and of what is around a panel, in inches."""


def memorised_output(result: Memorised, width: int) -> RenderableType:
    """The output of `pilekit memorised`; `width` in terminal cells."""
    notes = [*protocol_notes(result.protocol), ("copies", _copies(result.protocol)), ("seen", _seen(result.protocol))]
    tables = [part for table in result.tables() for part in (table.fit(width), Text())]
    return Group(*tables, notes_table([(name, note) for name, note in notes if note is not None]))


def _copies(protocol: dict[str, Any]) -> str | None:
    copies = protocol.get("copies")
    if copies is None:
        return None
    parts = [f"{copies['folder']}: exact and near copies, from a similarity of {copies['threshold']} on"]
    if copies["subsets"] is not None:
        parts.append(f"only {shortened(', '.join(copies['subsets']), 200)} compared")
    if copies["not_compared"]:
        parts.append(f"without {shortened(', '.join(copies['not_compared']), 200)}")
    return "; ".join(parts)


def _seen(protocol: dict[str, Any]) -> str | None:
    seen = protocol.get("seen")
    if seen is None:
        return None
    first, last = seen["steps"]
    parts = [f"{seen['run']}: steps {first:,} to {last:,}"]
    if replayed := sum(end - begin + 1 for begin, end in seen["replayed"]):
        parts.append(f"{counted(replayed, 'step')} replayed from the stream")
    if first > 1:
        parts.append(f"steps 1 to {first - 1:,} are those of another run")
    if seen["not_read"]:
        parts.append(f"does not read {shortened(', '.join(seen['not_read']), 200)}")
    return "; ".join(parts)


def memorised_comparison_output(comparison: MemorisedComparison) -> RenderableType:
    """The output of `pilekit memorised --compare`: the table, a sentence, and what the letters stand for."""
    overall = comparison.overall
    sentence = (
        f"B has memorised {overall.new:,} of the {overall.new + overall.neither:,} sequences that A has not, and "
        f"forgotten {overall.forgotten:,} of the {overall.forgotten + overall.both:,} that A has (p = {overall.p:.2g})."
    )
    notes = [*zip(LETTERS, comparison.models, strict=False), ("p", "McNemar's exact test: new against forgotten")]
    notes.append(("adjusted p", "by Holm's method for all subsets at once"))
    notes += [("mind", caution) for caution in comparison.cautions]
    return Group(comparison.table(), Text(), Text(sentence), Text(), notes_table(notes))


def write_memorised_figure(result: Memorised, path: str | Path) -> None:
    """Draw the shares into the .png, .svg or .pdf file `path`, completely or not at all."""
    save_figure(draw_memorised(result), Path(path))


def draw_memorised(result: Memorised) -> Any:
    """The matplotlib `Figure`: a bar with its interval per subset, the largest share at the top, and a line for all.

    Each group has a panel of its own, with its classes from the top.
    """
    from matplotlib.figure import Figure

    subsets = {name: counts for name, counts in result.subsets.items() if counts.share is not None}
    names = sorted(subsets, key=lambda name: -(subsets[name].share or 0))[:MOST_ROWS]
    panels = [("", {name: subsets[name] for name in names})]
    for name, classes in result.groups.items():
        shares = {shown_class(name): counts for name, counts in classes.items() if counts.share is not None}
        panels.append((GROUPS[name].axis, shares))
    rows = [max(len(shares), 2) for _, shares in panels]
    figure = Figure(figsize=(10, 1.1 + ROW * sum(rows) + MARGIN * len(rows)), layout="constrained")
    columns = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    model = model_name(model_path(result.protocol))
    title(figure, f"{model}: memorised, {counted(result.overall.sequences, 'sequence')}", len(subsets))
    for axes, (heading, shares) in zip(columns, panels, strict=True):
        axes.set_title(heading, loc="left", fontsize=10, color=INK)
        name_rows(axes, list(shares))
        _draw_shares(axes, list(shares.values()))
        if (overall := result.overall.share) is not None:
            axes.axvline(
                100 * overall, color=INK, linewidth=1.3, linestyle="--", label=f"overall {100 * overall:.2f} %"
            )
    columns[-1].set_xlim(left=0)
    columns[-1].set_xlabel("sequences continued word for word, % (95 % intervals)")
    legend(figure, columns[0])
    return figure


def _draw_shares(axes: Any, shares: list[MemorisedShare]) -> None:
    """A bar with its interval for each share, and its figure at the right."""
    for row, counts in enumerate(shares):
        share, (low, high) = counts.share or 0.0, counts.interval or (0.0, 0.0)
        axes.barh(row, 100 * share, 0.62, color=OBSERVED)
        draw_interval(axes, row, (100 * low, 100 * high), INK)
        label = f"{100 * share:.2f} %"
        axes.text(1.01, row, label, transform=axes.get_yaxis_transform(), va="center", color=INK, fontsize=9)
