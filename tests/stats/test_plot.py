"""The figure of `pilekit stats --plot`."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from pilekit import PilekitError
from pilekit.stats.plot import MOST_ROWS, draw, figure_format, save_figure
from pilekit.stats.result import CorpusStats
from pilekit.stats.summary import corpus_stats
from tests.shards import making


def stats_of(tmp_path: Path, *records: tuple[str, str]) -> CorpusStats:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(making.record(text, label) for text, label in records) + b"\n")
    return corpus_stats(path)


def test_the_suffix_chooses_the_format(tmp_path: Path) -> None:
    stats = stats_of(tmp_path, ("abc", "Github"), ("abcdef", "ArXiv"), ("", "New"))
    for suffix, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")):
        path = tmp_path / suffix / f"figure{suffix}"
        save_figure(draw(stats), path)
        assert path.read_bytes().startswith(magic)
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    for name in ("figure.jpg", "figure", "figure.png.txt", "png"):
        with pytest.raises(PilekitError, match=r"\.png, \.svg or \.pdf"):
            figure_format(name)


def test_labels_are_text_and_neither_mathematics_nor_escapes(tmp_path: Path) -> None:
    stats = stats_of(tmp_path, ("abc", "$\\frac{1}{$ \x1b[31m 日本"))
    assert draw(stats).axes[0].get_yticklabels()[0].get_text() == "$\\frac{1}{$ \\x1b[31m 日本"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(draw(stats), tmp_path / "figure.png")


def test_bars_are_shares_and_shapes_have_their_top_where_the_documents_are(tmp_path: Path) -> None:
    figure = draw(stats_of(tmp_path, ("abc", "Github"), ("a", "ArXiv"), ("", "New")))
    here, paper = figure.axes[0].containers
    assert [bar.get_width() for bar in here] == [75, 25, 0]
    assert [bar.get_width() for bar in paper] == [7.59, 8.96]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["Github", "ArXiv", "New"]
    figure = draw(stats_of(tmp_path, *[("x" * 5000, "Github")] * 20, ("x" * 40, "Github")))
    outline = figure.axes[1].collections[0].get_paths()[0].vertices
    assert outline[np.argmin(outline[:, 1]), 0] == pytest.approx(5000, rel=0.1)
    figure = draw(stats_of(tmp_path, *(("x" * (number + 1), f"label {number}") for number in range(MOST_ROWS + 3))))
    assert len(figure.axes[0].containers[0]) == MOST_ROWS
    assert f"{MOST_ROWS} of {MOST_ROWS + 3} subsets" in figure._suptitle.get_text()
    (tmp_path / "b.jsonl").write_bytes(b"\n")
    draw(corpus_stats(tmp_path / "b.jsonl"))  # nothing to draw
