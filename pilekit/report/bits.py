"""The section of bits per byte: subsets compared with published models, over checkpoints, and paired differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from pilekit.errors import PilekitError
from pilekit.evaluate.results.compare import LETTERS, compare
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.scores import model_path
from pilekit.evaluate.show.plot import draw_comparison, draw_result, model_name
from pilekit.evaluate.show.tables import differences_table, verdict
from pilekit.report.figures import small_multiples, svg_of
from pilekit.stats.plot import legend

MOST_COMPARED = 6


def result_content(result: BitsPerByte, path: str) -> dict[str, Any]:
    """The figures of one model."""
    svg, marks = _drawn(draw_result(result), f"Bits per byte of {path}")
    model = model_name(model_path(result.protocol))
    return {"result": result, "model": model, "figures": result.table(), "svg": svg, "marks": marks}


def compared_content(results: Sequence[BitsPerByte], path: str) -> dict[str, Any]:
    """Several results over their order, and their differences to the first on the same documents.

    Results whose models are checkpoints, `step-N`, come in the order of the steps.
    """
    x = sorted(map(_step, results))
    by_step = x[0] >= 0 and len(set(x)) == len(x)
    results = sorted(results, key=_step) if by_step else results
    names = dict.fromkeys(name for result in results for name in result.subsets)
    series = {"overall": [result.overall.bpb for result in results]}
    series |= {
        name: [result.subsets[name].bpb if name in result.subsets else None for result in results] for name in names
    }
    label, xlabel = f"Bits per byte over {len(results)} results, {path}", "step" if by_step else "result, as listed"
    content: dict[str, Any] = {
        "count": len(results),
        "models": [] if by_step else [model_name(model_path(result.protocol)) for result in results],
        "over": small_multiples(x if by_step else range(1, len(x) + 1), series, label, xlabel),
    }
    try:
        comparison = compare([results[0], *results[1:][1 - MOST_COMPARED :]])
    except PilekitError as error:
        return {**content, "failure": error}
    svg, note = _drawn(draw_comparison(comparison), f"Differences in bits per byte, {path}")
    pairs = list(zip(LETTERS[1:], comparison.against, strict=False))
    tables = [(letter, differences_table(against, letter), verdict(against, letter)) for letter, against in pairs]
    return {**content, "svg": svg, "note": " ".join([note, *comparison.cautions]), "tables": tables}


def _drawn(figure: Any, label: str) -> tuple[Markup, str]:
    """A command's figure for the page, without its title and the second line below its axis, which become text."""
    figure.suptitle("")
    figure.set_size_inches(7.0, figure.get_figheight())
    axes = figure.axes[0]
    below, _, note = axes.get_xlabel().partition("\n")
    axes.set_xlabel(below)
    legend(figure, axes, 2)
    return svg_of(figure, label), f"{note[:1].upper()}{note[1:]}." if note else ""


def _step(result: BitsPerByte) -> int:
    """The step in the model's path; -1 if it names none."""
    steps = re.findall(r"step-(\d{1,15})", str(result.protocol["model"]["path"]))
    return int(steps[-1]) if steps else -1
