"""The plots, by the shapes drawn in them."""

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from pilekit.corpus import load_manifest
from pilekit.evaluate.results.compare import compare
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.show.plot import PALE, draw_comparison, draw_result, write_figure
from pilekit.stats.plot import MOST_ROWS
from tests.evaluate.documents import protocol_of
from tests.refusing import refused

PILE = [subset.name for subset in load_manifest().subsets]


def result(
    names: list[str], gain: float = 0.0, *, documents: int = 200, shard: str = "val.jsonl", **changes: Any
) -> BitsPerByte:
    """Each subset has twice the documents of the subset two places later; the first is the hardest."""
    rng = np.random.default_rng(0)
    counts = [max(1, documents >> (place // 2)) for place in range(len(names))]
    subset = np.repeat(np.arange(len(names), dtype=np.int32), counts)
    total = len(subset)
    size = rng.integers(100, 1000, total)
    hard = 2 - subset / len(names) + rng.normal(0, 0.1, total)
    nll = math.log(2) * size * (hard - gain + rng.normal(0, 0.01, total))
    numbers, shards = np.arange(total), np.zeros(total, np.int32)
    records = Records((shard,), tuple(names), shards, numbers, numbers.astype(np.uint64), subset, size, size // 4, nll)
    return BitsPerByte.of(records, protocol_of(**{"labels": names, **changes}), load_manifest())


def rows(axes: Any) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def spans(axes: Any) -> dict[float, tuple[float, float]]:
    """The horizontal intervals, by their height."""
    lines = [line.get_data() for line in axes.lines if line.get_marker() == "|"]
    return {round(float(y[0]), 6): (float(x[0]), float(x[1])) for x, y in lines}


def test_bars_lines_and_marks_are_the_figures() -> None:
    of = result(PILE)
    figure = draw_result(of)
    [axes] = figure.axes
    assert rows(axes) == sorted(PILE, key=lambda name: -(of.subsets[name].bpb or 0))
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first row is at the top
    scores = [of.subsets[name] for name in rows(axes)]
    bars = [bar for bar in axes.patches if bar.get_x() == 0 and bar.get_height() < 1]
    assert [bar.get_width() for bar in bars] == [score.bpb for score in scores]
    assert [bar.get_alpha() for bar in bars] == [PALE if score.is_approximate else 1 for score in scores]
    assert [text.get_text() for text in axes.texts] == [f"{score.bpb:.4f}" for score in scores]
    assert spans(axes) == {row: score.interval for row, score in enumerate(scores) if score.interval}
    vertical = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() in ("--", ":")]
    assert vertical == [of.overall.bpb, of.weighted.bpb]
    assert f"overall, pooled {of.overall.bpb:.4f}" in legend(figure)
    named = {line.get_label().split(" (")[0]: line for line in axes.lines if line.get_marker() in list("osD^")}
    assert len(named) == 4
    assert {"GPT-2 small", "GPT-3 davinci"} <= set(named)
    columns = {column.model: column for column in of.published.columns}
    for model, line in named.items():
        assert {rows(axes)[int(y)]: x for x, y in zip(*line.get_data(), strict=True)} == columns[model].subsets


def test_points_are_the_differences_of_each_model() -> None:
    comparison = compare([result(PILE[:5], gain) for gain in (0, 0.01, -0.01)])
    figure = draw_comparison(comparison)
    [axes] = figure.axes
    first = comparison.against[0].subsets
    assert rows(axes) == [*sorted(first, key=lambda name: first[name].difference or 0), "Overall"]
    points = [line.get_data() for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    series = [{round(y[0]): x[0] for x, y in points if (y[0] > round(y[0])) == below} for below in (False, True)]
    for offset, found, against in zip((-0.27, 0.27), series, comparison.against, strict=True):
        expected = [*(against.subsets[name] for name in rows(axes)[:-1]), against.overall]
        assert [found[row] for row in range(6)] == [one.difference for one in expected]
        assert [spans(axes)[round(row + offset, 6)] for row in range(6)] == [one.interval for one in expected]
    assert legend(figure) == ["A: runs/a/model", "B: runs/a/model", "C: runs/a/model"]


def test_files_of_each_format_with_labels_and_paths_as_text(tmp_path: Path) -> None:
    label, path = "$\\frac{1}{$ \x1b[31m 日本", "$\\alpha{$/\x1b[2Jmodel"
    of = result([label, "b"], model={"path": path})
    assert rows(draw_result(of).axes[0])[0] == "$\\frac{1}{$ \\x1b[31m 日本"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for suffix, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
            for one in (of, compare([of, of])):
                write_figure(one, tmp_path / f"a{suffix}")
                assert (tmp_path / f"a{suffix}").read_bytes().startswith(magic)
    refused(r"\.png, \.svg or \.pdf", write_figure, of, tmp_path / "a.jpg")


def test_many_subsets_are_cut_and_nothing_is_drawn_all_the_same(tmp_path: Path) -> None:
    of = result([f"label {number}" for number in range(MOST_ROWS + 3)])
    for figure in (draw_result(of), draw_comparison(compare([of, of]))):
        assert MOST_ROWS <= len(rows(figure.axes[0])) <= MOST_ROWS + 1
        assert f"{MOST_ROWS} of {MOST_ROWS + 3} subsets" in figure._suptitle.get_text()
    of = result(["a"], documents=1)
    empty = BitsPerByte.of(dataclasses.replace(of.records, bytes=np.zeros(1, np.int64)), of.protocol, load_manifest())
    for one in (of, empty):
        write_figure(one, tmp_path / "a.png")
        write_figure(compare([one, one]), tmp_path / "b.png")
    assert not draw_result(empty).axes[0].patches
