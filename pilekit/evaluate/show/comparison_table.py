"""The output of `pilekit bpb --compare`: a table of each further model against the first, its verdict, and notes."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from pilekit.evaluate.results.compare import LETTERS, Comparison, left_out_text
from pilekit.evaluate.results.intervals import FEWEST
from pilekit.evaluate.show.differences_table import CLEAR, FEW, differences_table, marks, verdict
from pilekit.evaluate.show.figures_table import APPROXIMATE
from pilekit.evaluate.show.table import notes_table


def comparison_table(comparison: Comparison) -> RenderableType:
    """The output of `pilekit bpb --compare`."""
    measure = "pseudo-BPB" if comparison.kind == "masked" else "BPB"
    parts: list[RenderableType] = []
    for letter, against in zip(LETTERS[1:], comparison.against, strict=False):
        title = Text(f"{measure} on the same documents: {letter} against A", style="italic")
        table = differences_table(against, letter, comparison.by)
        parts += [title, table, Text(), Text(verdict(against, letter)), Text()]
    return Group(*parts, notes_table(_notes(comparison)))


def _notes(comparison: Comparison) -> list[tuple[str, str]]:
    """The models' letters, the meaning of the marks, and warnings."""
    lines = list(zip(LETTERS, comparison.models, strict=False))
    shown = " ".join(
        marks(one)
        for against in comparison.against
        for one in (against.overall, *against.subsets.values(), *filter(None, [against.weighted]))
    )
    if CLEAR in shown:
        lines.append((CLEAR, "a clear difference: p at most 0.05, in subsets by Holm's method for all of them at once"))
    if FEW in shown:
        lines.append((FEW, f"under {FEWEST} documents with text, or under 4 that differ: no interval"))
    if APPROXIMATE in shown:
        lines.append((APPROXIMATE, "few documents decide the difference or hold most bytes: perhaps too narrow"))
    weights = {against.weight for against in comparison.against if against.weighted is not None}
    lines += [
        ("mixture", f"weights of {100 * weight:.1f} % of the mixture, renormalised")
        for weight in weights
        if weight < 0.9995
    ]
    if any(comparison.left_out):
        lines.append(("documents", f"those that all scored; {left_out_text(comparison.left_out)}"))
    lines += [("mind", caution) for caution in comparison.cautions]
    return lines
