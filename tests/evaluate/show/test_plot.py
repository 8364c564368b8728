"""The plots, by the shapes drawn in them."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from pilekit.corpus import load_manifest
from pilekit.errors import PilekitError
from pilekit.evaluate.results.compare import Against, Comparison, Difference, compare
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.tabulate import tabulate
from pilekit.evaluate.show.plot import draw_comparison, draw_result, write_figure
from pilekit.stats.plot import MOST_ROWS

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
    numbers = np.arange(total)
    records = Records(
        (shard,),
        tuple(names),
        np.zeros(total, np.int32),
        numbers,
        numbers.astype(np.uint64),
        subset,
        size,
        size // 4,
        nll,
    )
    protocol = {
        "kind": "causal",
        "model": {"path": "runs/a/model"},
        "tokenizer": {"fingerprint": "x"},
        "max_length": 2048,
        "context_len": 1,
        "dtype": "float32",
        "prefix": {"id": 0},
        "subsets": None,
        "labels": names,
        "limit": None,
        "paper": False,
        **changes,
    }
    return tabulate(records, protocol, load_manifest())


def rows(axes: Any) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def spans(axes: Any) -> list[tuple[float, float, float]]:
    """(row, low, high) of every horizontal interval."""
    return sorted(
        (float(segment[0][1]), float(segment[0][0]), float(segment[1][0]))
        for collection in axes.collections
        if type(collection).__name__ == "LineCollection"
        for segment in collection.get_segments()
    )


def test_bars_are_the_figures_the_highest_at_the_top() -> None:
    of = result(PILE)
    figure = draw_result(of)
    [axes] = figure.axes
    assert len(PILE) == 22
    assert rows(axes) == sorted(PILE, key=lambda name: -(of.subsets[name].bpb or 0))
    assert [bar.get_width() for bar in axes.patches if bar.get_x() == 0 and bar.get_height() < 1] == [
        of.subsets[name].bpb for name in rows(axes)
    ]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first row is at the top
    found = spans(axes)
    with_interval = [
        (row, of.subsets[name].interval) for row, name in enumerate(rows(axes)) if of.subsets[name].interval
    ]
    assert len(with_interval) == 22 - sum(score.documents == 1 for score in of.subsets.values())
    for (row, low, high), (expected_row, interval) in zip(found, with_interval, strict=True):
        assert interval is not None
        assert row == expected_row
        assert (low, high) == pytest.approx(interval)
    few = {
        bar.get_facecolor()
        for bar, name in zip(axes.patches, rows(axes), strict=False)
        if of.subsets[name].is_approximate
    }
    many = {bar.get_facecolor() for bar, name in zip(axes.patches, rows(axes), strict=False)} - few
    assert (len(few), len(many)) == (1, 1)
    texts = [text.get_text() for text in axes.texts]
    assert texts == [f"{of.subsets[name].bpb:.4f}" for name in rows(axes)]


def test_lines_are_the_overall_figures() -> None:
    of = result(PILE)
    figure = draw_result(of)
    lines = [line.get_xdata() for line in figure.axes[0].lines]
    vertical = [x for x in lines if len(x) == 2 and x[0] == x[1]]
    assert of.weighted is not None
    assert [x[0] for x in vertical[:2]] == [of.overall.bpb, of.weighted.bpb]
    assert f"overall, pooled {of.overall.bpb:.4f}" in legend(figure)
    assert f"overall, weighted {of.weighted.bpb:.4f}" in legend(figure)


def test_published_figures_are_marks_on_their_rows_where_they_may_stand() -> None:
    of = result(PILE)
    assert of.published is not None
    figure = draw_result(of)
    [axes] = figure.axes
    named = {
        line.get_label().split(" (")[0]: line
        for line in axes.lines
        if not line.get_label().startswith(("_", "overall"))
    }
    assert {"GPT-2 small", "GPT-3 davinci"} <= set(named)
    columns = {column.model: column for column in of.published.columns}
    for model, line in named.items():
        assert {rows(axes)[int(y)]: x for x, y in zip(*line.get_data(), strict=True)} == columns[model].subsets
    assert "by another protocol" in axes.get_xlabel()
    some = draw_result(result(PILE[:3], subsets=PILE[:3], labels=PILE))  # no overall figure stands beside these
    assert {"GPT-2 small", "GPT-3 davinci"} <= set(legend(some))
    for other in (result(PILE, context_len=64), result(PILE, shard="00.jsonl"), result(PILE, kind="masked")):
        assert other.published is None
        figure = draw_result(other)
        assert not any("GPT" in label for label in legend(figure))
        assert "protocol" not in figure.axes[0].get_xlabel()


def test_masked_models_have_pseudo_bits() -> None:
    figure = draw_result(result(PILE, kind="masked"))
    assert figure.axes[0].get_xlabel().startswith("pseudo-bits per byte")
    assert "pseudo-bits per byte" in figure._suptitle.get_text()


def test_points_are_the_differences_the_greatest_gain_at_the_top() -> None:
    comparison = compare([result(PILE), result(PILE, 0.005, model={"path": "runs/b/model"})])
    [against] = comparison.against
    figure = draw_comparison(comparison)
    [axes] = figure.axes
    expected = sorted(against.subsets, key=lambda name: against.subsets[name].difference or 0)
    assert rows(axes) == [*expected, "Overall"]
    points = [line for line in axes.lines if line.get_marker() in ("o", "x") and len(line.get_xdata())]
    for line, name in zip(points, rows(axes), strict=True):
        one = against.overall if name == "Overall" else against.subsets[name]
        assert line.get_xdata() == [one.difference]
        look = "x" if one.interval is None else "o"
        assert line.get_marker() == look
        if one.interval is not None:
            assert (line.get_markerfacecolor() == "white") == (one.sign == 0)
    drawn = {row: (low, high) for row, low, high in spans(axes)}
    for row, name in enumerate(rows(axes)):
        one = against.overall if name == "Overall" else against.subsets[name]
        assert drawn.get(row) == (None if one.interval is None else pytest.approx(one.interval))
    assert axes.get_xlabel().startswith("← B is better")
    assert legend(figure)[:2] == ["A: runs/a/model", "B: runs/b/model"]


def test_a_points_look_says_what_its_interval_is() -> None:
    def difference(documents: int, interval: tuple[float, float] | None) -> Difference:
        return Difference(documents, 1000, (1.0, 0.9), -0.1, interval)

    clear, unclear = (-0.2, -0.05), (-0.3, 0.1)
    of = {
        "clear": difference(100, clear),
        "clear few": difference(99, clear),
        "unclear": difference(100, unclear),
        "unclear few": difference(2, unclear),
        "single": difference(1, None),
    }

    def drawn(names: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        against = Against(of["clear"], {name: of[name] for name in names})
        figure = draw_comparison(Comparison("causal", ("a", "b"), (against,), (0, 0), ()))
        [axes] = figure.axes
        points = [line for line in axes.lines if line.get_marker() in ("o", "x") and len(line.get_xdata())]
        looks = {
            name: (line.get_marker(), to_hex(line.get_color()), to_hex(line.get_markerfacecolor()))
            for line, name in zip(points, rows(axes), strict=True)
        }
        return looks, legend(figure)[2:]

    looks, told = drawn(list(of))
    assert len(set(looks.values())) == 5  # the overall row has the marker of "clear"
    assert looks["clear"] == looks["Overall"]
    assert looks["single"][0] == "x"
    assert {looks[name][0] for name in of if name != "single"} == {"o"}
    hollow = [name for name, (_, colour, face) in looks.items() if face == "#ffffff" and colour != face]
    assert hollow == ["unclear", "unclear few"]
    for few, many in (("clear few", "clear"), ("unclear few", "unclear")):
        assert all(pale > full for pale, full in zip(to_rgb(looks[few][1]), to_rgb(looks[many][1]), strict=True))
    assert told == ["interval holds 0", "no interval: one document", "pale: under 100 documents"]
    assert drawn(["clear"])[1] == []
    assert drawn(["clear", "single"])[1] == ["no interval: one document"]
    assert drawn(["clear few"])[1] == ["pale: under 100 documents"]
    assert drawn(["unclear"])[1] == ["interval holds 0"]


def test_three_models_are_two_series_beside_each_other() -> None:
    comparison = compare([result(PILE[:3], gain) for gain in (0, 0.01, -0.01)])
    figure = draw_comparison(comparison)
    [axes] = figure.axes
    points = [line.get_data() for line in axes.lines if line.get_marker() in ("o", "x") and len(line.get_xdata())]
    series = [{round(y[0]): x[0] for x, y in points if (y[0] > round(y[0])) == below} for below in (False, True)]
    for found, against in zip(series, comparison.against, strict=True):
        expected = [against.subsets[name].difference for name in rows(axes)[:-1]]
        assert [found[row] for row in range(4)] == [*expected, against.overall.difference]


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_they_are_written_in_the_format_of_the_suffix(tmp_path: Path, suffix: str, magic: bytes) -> None:
    of = result(PILE[:2])
    write_figure(of, tmp_path / f"a{suffix}")
    write_figure(compare([of, of]), tmp_path / f"b{suffix}")
    for name in "ab":
        assert (tmp_path / f"{name}{suffix}").read_bytes().startswith(magic)
    with pytest.raises(PilekitError, match=r"\.png, \.svg or \.pdf"):
        write_figure(of, tmp_path / "a.jpg")


def test_labels_and_paths_are_text_and_neither_mathematics_nor_escapes(tmp_path: Path) -> None:
    label, path = "$\\frac{1}{$ \x1b[31m 日本", "$\\alpha{$/\x1b[2Jmodel"
    of = result([label, "b"], model={"path": path})
    assert draw_result(of).axes[0].get_yticklabels()[0].get_text() == "$\\frac{1}{$ \\x1b[31m 日本"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_figure(of, tmp_path / "a.png")
        write_figure(compare([of, of]), tmp_path / "b.png")


def test_very_many_subsets_are_cut_and_said_so() -> None:
    of = result([f"label {number}" for number in range(MOST_ROWS + 3)])
    for figure in (draw_result(of), draw_comparison(compare([of, of]))):
        assert MOST_ROWS <= len(rows(figure.axes[0])) <= MOST_ROWS + 1
        assert f"{MOST_ROWS} of {MOST_ROWS + 3} subsets" in figure._suptitle.get_text()


def test_nothing_to_draw_is_drawn_all_the_same(tmp_path: Path) -> None:
    of = result(["a"], documents=1)
    assert of.records is not None
    empty = tabulate(dataclasses.replace(of.records, bytes=np.zeros(1, np.int64)), of.protocol, load_manifest())
    for one in (of, empty):
        write_figure(one, tmp_path / "a.png")
        write_figure(compare([one, one]), tmp_path / "b.png")
    assert not draw_result(empty).axes[0].patches
