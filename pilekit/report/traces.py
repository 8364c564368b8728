"""The section of traced texts: how much of each is copied, how long the passages are, and the longest of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from pilekit.display.fitted_table import DASH, Column, FittedTable
from pilekit.errors import shortened
from pilekit.report.figures import WIDTH, bars, svg_of
from pilekit.stats.plot import OBSERVED, axes_of
from pilekit.trace.saved_traces import Row, SavedTraces

LONGEST = 50
"""Passages in the table."""
_CHARACTERS, _DOCUMENTS = 400, 3
"""Of a passage in the table, and documents beside it."""
_BINS = 10


@dataclass(slots=True)
class LongPassage:
    """A passage, the documents of its first places, and the numbers of the texts that have it.

    spelling   its words in small letters, which equal passages share
    """

    spelling: str
    text: str
    words: int
    documents: int
    places: list[str]
    texts: list[int] = field(default_factory=list)


def traced_content(path: Path) -> dict[str, Any]:
    """The texts and passages of a file of `pilekit trace`."""
    saved = SavedTraces(path)
    least = saved.header.parameters["words"]
    longest, counts = passages_of(saved, least)
    return {
        "summary": saved.summary,
        "coverage": _coverage(saved.figures["coverage"].to_numpy(), path),
        "lengths": _lengths(counts, least, path) if longest else None,
        "longest": _table(longest) if longest else None,
    }


def passages_of(
    rows: Iterable[Row], least: int, most: int = LONGEST
) -> tuple[list[LongPassage], npt.NDArray[np.int64]]:
    """The longest passages, those of equal spelling as one; and how many passages have which length, int64 [2, ranges].

    least   the fewest words of a passage, with which the first range of lengths begins; each range is twice as wide as
            the one before
    """
    kept, counts = dict[str, LongPassage](), np.zeros((2, 64), np.int64)
    for row in rows:
        for passage in row["passages"]:
            counts[int(passage["common"]), (passage["words"] // least).bit_length() - 1] += 1
            text = " ".join(row["text"][passage["start"] : passage["end"]].split())
            same = kept.setdefault(spelling := text.lower(), _long_passage(spelling, text, passage))
            if row["number"] not in same.texts[-1:]:
                same.texts.append(row["number"])
        if len(kept) > 20 * most:  # A passage that is left out here and comes again is too short again.
            kept = {passage.spelling: passage for passage in _longest(kept.values(), most)}
    ranges = int(np.flatnonzero(counts.any(axis=0)).max(initial=-1)) + 1
    return _longest(kept.values(), most), counts[:, :ranges]


def _long_passage(spelling: str, text: str, passage: Row) -> LongPassage:
    places = [f"{place['shard']} {place['number']}, {place['subset']}" for place in passage["places"][:_DOCUMENTS]]
    return LongPassage(spelling, shortened(text, _CHARACTERS), passage["words"], passage["documents"], places)


def _longest(passages: Iterable[LongPassage], most: int) -> list[LongPassage]:
    return sorted(passages, key=attrgetter("words"), reverse=True)[:most]


def _table(passages: Sequence[LongPassage]) -> FittedTable[LongPassage]:
    columns = [
        Column[LongPassage]("Passage", lambda passage: passage.text),
        Column("Words", lambda passage: f"{passage.words:,}"),
        Column("Documents", lambda passage: f"{passage.documents:,}"),
        Column("Texts", lambda passage: f"{len(passage.texts):,}"),
        Column("First text", lambda passage: f"{passage.texts[0]:,}"),
        Column("First documents", lambda passage: "; ".join(passage.places) or DASH),
    ]
    return FittedTable(passages, columns)


def _coverage(shares: npt.NDArray[np.float64], path: Path) -> Markup:
    """A bar for each tenth of coverage; texts without a passage are not among them."""
    counts, edges = np.histogram(shares[shares > 0], _BINS, (0, 1))
    figure, axes = axes_of(WIDTH, 2.8)
    axes.bar(100 * edges[:-1], counts, 90 / _BINS, align="edge", color=OBSERVED)
    axes.set_xlabel("words of a text that stand in passages, %")
    axes.set_ylabel("texts")
    axes.yaxis.get_major_locator().set_params(integer=True)
    return svg_of(figure, f"Coverage of texts in {path}")


def _lengths(counts: npt.NDArray[np.int64], least: int, path: Path) -> Markup:
    """A bar for each range of lengths."""
    begins = [least << place for place in range(counts.shape[1])]
    names = [f"{begin:,} to {2 * begin - 1:,} words" for begin in begins]
    series = {"with documents": counts[0].tolist()}
    if counts[1].any():
        series["common, without documents"] = counts[1].tolist()
    return bars(names, series, f"Lengths of passages in {path}", "passages")
