"""The section of bits per byte: each subset beside published models, over checkpoints, and paired differences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from pilekit.errors import PilekitError, counted
from pilekit.evaluate.results.compare import LETTERS, compare
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.show.comparison_table import differences_table, verdict
from pilekit.evaluate.show.plot import draw_comparison, draw_result, legend_below
from pilekit.evaluate.show.table import figures_table
from pilekit.report.figures import svg_of
from pilekit.report.multiples import small_multiples
from pilekit.report.parts import Facts, Figure, Note, Part, Source, Table

WIDTH = 7.0
MOST_COMPARED = 6

Scored = tuple[BitsPerByte, Source]


def result_parts(result: BitsPerByte, source: Source) -> Iterator[Part]:
    """The figures of one model."""
    facts = [
        ("model", _model(result)),
        (_kind(result), "–" if result.overall.bpb is None else f"{result.overall.bpb:.4f}"),
    ]
    if result.weighted is not None:
        facts.append(("weighted by the mixture", f"{result.weighted.bpb:.4f}"))
    yield Facts([*facts, ("documents", f"{result.overall.documents:,}")], source)
    for warning in result.warnings:
        yield Note(warning, source)
    note = result.published.differs if result.published is not None else ""
    if result.withheld is not None:
        note = f"No published figures beside these: {result.withheld}."
    svg, marks = _drawn(draw_result(result), f"Bits per byte of {source.path}")
    yield Figure(f"{_kind(result).capitalize()} of {_model(result)}", svg, source, f"{marks} {note}".strip(), wide=True)
    table = figures_table(result)
    yield Table.fitted(f"{_kind(result).capitalize()} of {_model(result)}", table, source, "~: under 100 documents.")


def together_parts(scored: Sequence[Scored], source: Source) -> Iterator[Part]:
    """Several results over their order, and their differences to the first on the same documents.

    Results whose models are checkpoints, `step-N`, come in the order of the steps.
    """
    steps = [_step(result) for result, _ in scored]
    by_step = None not in steps and len(set(steps)) == len(steps)
    if by_step:
        scored = [one for _, one in sorted(zip(steps, scored, strict=True), key=lambda pair: pair[0] or 0)]
    results = [result for result, _ in scored]
    x = sorted(step for step in steps if step is not None) if by_step else list(range(1, len(scored) + 1))
    names = list(dict.fromkeys(name for result in results for name in result.subsets))
    series: dict[str, list[float | None]] = {"overall": [result.overall.bpb for result in results]}
    for name in names:
        series[name] = [result.subsets[name].bpb if name in result.subsets else None for result in results]
    label = "step" if by_step else "result, in the order given"
    svg = small_multiples(x, series, f"Bits per byte over {len(scored)} results, {source.path}", label)
    listed = (
        "" if by_step else "; ".join(f"{place}: {_model(result)}" for place, result in zip(x, results, strict=True))
    )
    yield Figure(f"Bits per byte over {counted(len(scored), 'result')}", svg, source, listed)
    results = [results[0], *results[1:][1 - MOST_COMPARED :]]
    try:
        comparison = compare(results)
    except PilekitError as error:
        yield Note(f"The results are not compared: {error}.", source)
        return
    svg, marks = _drawn(draw_comparison(comparison), f"Differences in bits per byte, {source.path}")
    note = " ".join([marks, *comparison.cautions])
    yield Figure("Paired differences on the same documents", svg, source, note, wide=True)
    for letter, against in zip(LETTERS[1:], comparison.against, strict=False):
        title = f"{letter} against A"
        yield Table.fitted(title, differences_table(against, letter), source, verdict(against, letter))


def _drawn(figure: Any, label: str) -> tuple[Markup, str]:
    """A command's figure for the page, without its title and the second line below its axis, which become text."""
    figure.suptitle("")
    axes = figure.axes[0]
    below, _, note = axes.get_xlabel().partition("\n")
    axes.set_xlabel(below)
    legend_below(figure, axes, 2)
    return svg_of(figure, label, WIDTH), f"{note[:1].upper()}{note[1:]}." if note else ""


def _kind(result: BitsPerByte) -> str:
    return "pseudo-bits per byte" if result.is_masked else "bits per byte"


def _model(result: BitsPerByte) -> str:
    """The end of the model's path, which says more than its beginning."""
    parts = str(result.protocol["model"]["path"] or "a model").rstrip("/").split("/")
    return "/".join(parts[-2:])


def _step(result: BitsPerByte) -> int | None:
    """The step in the model's path, if it names one."""
    found = re.findall(r"step-(\d{1,15})", str(result.protocol["model"]["path"]))
    return int(found[-1]) if found else None
