"""What `pilekit trace` found: the texts with their passages marked, and the documents that have a passage.

A trace knows its shards by name and content, not by path. A place is opened in the browsed corpus only if its document
has the very text there. So a corpus that was moved, renamed or reframed since still opens, and another one does not.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError, visible, visible_lines
from pilekit.shards.fingerprint import fingerprint
from pilekit.shards.random_access.pile_documents import PileDocuments
from pilekit.trace.saved_traces import SavedTraces

PAGE = 50
"""Texts in a list, and documents of a passage."""
MOST_PASSAGES = 200
"""Passages in the list of a text."""
MOST_SHOWN = 200_000
"""Characters of a text that are shown."""
BEGINNING = 160
"""Characters of each text in a list, and of each passage."""

_Passage = dict[str, Any]


class Piece(NamedTuple):
    """Characters `start` to `end` of a text, and the place of the passage that marks them; None between passages."""

    start: int
    end: int
    passage: int | None


class Traces:
    """A finished file of `pilekit trace`; its documents are opened in the browsed corpus, if there is one."""

    def __init__(self, path: Path, browsed: PileDocuments | None):
        self._saved, self._browsed = SavedTraces(path), browsed
        self._names = {} if browsed is None else browsed_copies(browsed.corpus, self._saved.header.inputs)
        self._most_copied = np.argsort(-self._saved.figures["covered"].to_numpy(), kind="stable")
        self.title = f"Traced: {visible(path.name, 40)}"

    def listed(self, start: int) -> dict[str, Any]:
        """A page of the texts from place `start` on, those with the most copied words first."""
        numbers = self._most_copied[start : start + PAGE]
        beginnings = self._saved.beginnings(numbers.tolist(), BEGINNING + 1)
        rows = self._saved.figures.take(numbers).to_pylist()
        shown = [{**row, "beginning": _one_line(text)} for row, text in zip(rows, beginnings, strict=True)]
        return {"texts": shown, "start": start, "of": len(self._most_copied)}

    def text(self, number: int, *, most_shown: int = MOST_SHOWN) -> dict[str, Any]:
        """A text in pieces, and its passages, the longest first.

        pieces      lists of text, start, end, the place of its passage or None, and whether the passage is common
        passages    the first of them; `of` is the number of all
        """
        row = self._saved.text(number)
        text, passages = row["text"][:most_shown], row["passages"]
        figures = {name: row[name] for name in ("number", "words", "covered", "coverage")}
        pieces = [
            [visible_lines(text[start:end]), start, end, place, place is not None and passages[place]["common"]]
            for start, end, place in pieces_of(len(text), passages)
        ]
        listed = [_shown(row["text"], passage) for passage in passages[:MOST_PASSAGES]]
        sizes = {"characters": len(row["text"]), "shown": len(text)}
        return {**figures, **sizes, "pieces": pieces, "passages": listed, "of": len(passages)}

    def passage(self, number: int, place: int) -> dict[str, Any]:
        """A passage of a text, by its place among them, with the first documents that have it.

        `here` of a document is its shard in the browsed corpus; None if that is not there or has another text.
        """
        row = self._saved.text(number)
        if place >= len(row["passages"]):
            raise PilekitError(f"text {number} has no passage {place}")
        passage = row["passages"][place]
        places = [
            {
                "shard": visible(at["shard"], 100),
                "subset": visible(at["subset"], 60),
                **{name: at[name] for name in ("number", "start", "end", "exact")},
                **{name: visible_lines(at[name]) for name in ("before", "text", "after")},
                "here": self._here(at),
            }
            for at in passage["places"][:PAGE]
        ]
        listed = len(passage["places"])
        return {**_shown(row["text"], passage), "places": places, "listed": listed, "corpus": self._browsed is not None}

    def _here(self, place: dict[str, Any]) -> str | None:
        """The browsed shard with this place, whose document has its text there."""
        name = self._names.get(place["shard"])
        if name is None or self._browsed is None:
            return None
        try:
            text = self._browsed.document(name, place["number"]).text
        except PilekitError:  # The shard of this name has fewer documents.
            return None
        return name if text[place["start"] : place["end"]] == place["text"] else None


def browsed_copies(corpus: Corpus, inputs: dict[str, Any]) -> dict[str, str]:
    """The shards of a corpus, by the names that a run gave them: those of the same content, else of the same name.

    inputs   size and sample of the fingerprint of each shard that the run read
    """
    names = {shard.name for shard in corpus.shards}
    by_content = dict[tuple[Any, ...], str]()
    for shard in corpus.shards:
        now = fingerprint(shard.path)
        by_content.setdefault((now.size, now.sample), shard.name)
    nearest = {name: by_content.get(tuple(before), name) for name, before in inputs.items()}
    return {name: browsed for name, browsed in nearest.items() if browsed in names}


def pieces_of(characters: int, passages: Sequence[_Passage]) -> list[Piece]:
    """A text of so many characters in pieces; each is marked by the first passage over it that is not common.

    passages   with `start`, `end` and `common`, the longest first
    """
    starts = sorted((passage["start"], place) for place, passage in enumerate(passages))
    bounds = (min(at, characters) for passage in passages for at in (passage["start"], passage["end"]))
    pieces, over, taken = list[Piece](), list[tuple[bool, int]](), 0
    for start, end in pairwise(sorted({0, characters, *bounds})):
        while taken < len(starts) and starts[taken][0] <= start:
            place = starts[taken][1]
            heapq.heappush(over, (passages[place]["common"], place))
            taken += 1
        while over and passages[over[0][1]]["end"] <= start:
            heapq.heappop(over)
        passage = over[0][1] if over else None
        if pieces and pieces[-1].passage == passage:
            pieces[-1] = Piece(pieces[-1].start, end, passage)
        else:
            pieces.append(Piece(start, end, passage))
    return pieces


def _shown(text: str, passage: _Passage) -> dict[str, Any]:
    shown = {name: passage[name] for name in ("start", "end", "words", "documents", "common")}
    return {**shown, "beginning": _one_line(text[passage["start"] : passage["end"]])}


def _one_line(text: str) -> str:
    """The beginning of a text, its white space as single spaces."""
    return visible(re.sub(r"\s+", " ", text[: BEGINNING + 1]), BEGINNING)
