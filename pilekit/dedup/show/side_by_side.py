"""A table with the kept document beside the removed one, their differing words marked.

Words of the kept document alone are green, words of the removed document alone are red; without colour they are
`{+marked+}` and `[-marked-]`. Long equal stretches are cut short. A corpus may contain hostile text, so texts are shown
as rich `Text` with control characters made visible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pilekit.dedup.show.word_diff import WordDiff, folded, words_in
from pilekit.errors import counted, visible, visible_lines

MOST_WORDS = 250
"""About this many words of each text are shown."""
_HALF_OF_A_DIFFERENCE = 30

Cell = list[tuple[str, Literal["alike", "differs", "left out"]]]
"""Pieces of text, safe to print, each with its kind; "left out" states how much of a difference is not shown."""

_LOOKS = ("bold green", "{+", "+}"), ("bold red", "[-", "-]")
"""The look of words that only the kept document has, then of words that only the removed one has."""


def side_by_side(
    diff: WordDiff, titles: tuple[str, str], *, colour: bool, around: Sequence[tuple[str, str]] = ()
) -> RenderableType:
    """The kept document, the first of the diff, on the left; the removed document on the right.

    titles   headings of the two columns
    colour   mark differences by colour, not by brackets in the text
    around   (kept, removed) text before the diff, then behind it, which is not compared
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1), expand=True)
    for title in titles:
        table.add_column(Text(visible(title)), ratio=1, overflow="fold")
    uncompared: list[tuple[Cell, Cell]] = [
        ([(_shown([first]), "left out")], [(_shown([second]), "left out")]) for first, second in around
    ]
    for row in (*uncompared[:1], *diff_rows(diff), *uncompared[1:]):
        if isinstance(row, str):
            table.add_row(Text(row, style="dim"), Text())
        else:
            table.add_row(*(_text(cell, look, colour) for cell, look in zip(row, _LOOKS, strict=True)))
    if any(not part.alike for part in diff.parts):
        return table
    return Group(table, Text("No word differs.", style="dim"))


def diff_rows(diff: WordDiff) -> Iterator[tuple[Cell, Cell] | str]:
    """The rows of the table: (kept, removed), or a note that says how much is not shown."""
    cells: tuple[Cell, Cell] = [], []

    def ended(note: str = "") -> Iterator[tuple[Cell, Cell] | str]:
        nonlocal cells
        if any(text for cell in cells for text, _ in cell):
            yield cells
        cells = [], []
        if note:
            yield note

    if diff.before:
        yield from ended(f"⋯ {counted(diff.before, 'character')} alike")
    shown, parts = 0, list(folded(diff.parts))
    for place, (kind, first, second) in enumerate(parts):
        if kind == "folded":
            yield from ended(f"⋯ {words_in(first)} alike")
            continue
        if shown > MOST_WORDS:
            more = sum(kind == "differs" for kind, _, _ in parts[place:])
            yield from ended(f"⋯ and {counted(more, 'more difference')}" if more else "⋯")
            break
        edge = _HALF_OF_A_DIFFERENCE
        shown += max(len(first), len(second)) if kind == "alike" else min(2 * edge, max(len(first), len(second)))
        for cell, words in zip(cells, (first, second), strict=True):
            if kind == "differs" and (gap := words[edge:-edge]):
                cell += [(_shown(words[:edge]), "differs"), (f" ⋯ {words_in(gap)} ⋯ ", "left out")]
                cell.append((_shown(words[-edge:]), "differs"))
            else:
                cell.append((_shown(words), kind))
    if any(diff.after):
        yield from ended("⋯ what follows was not compared")
    yield from ended()


def _text(cell: Cell, look: tuple[str, str, str], colour: bool) -> Text:
    """The cell of a terminal's table."""
    style, begin, end = look
    text = Text()
    for piece, kind in cell:
        marked = piece.rstrip() if kind == "differs" else piece
        if kind != "differs" or colour:
            text.append(marked, style={"alike": "", "differs": style, "left out": "dim"}[kind])
        elif piece:
            text.append(f"{begin}{marked}{end}")
        text.append(piece[len(marked) :])
    text.rstrip()
    return text


def _shown(words: Sequence[str]) -> str:
    """The text with single empty lines, repeated punctuation cut, and control characters made visible."""
    text = re.sub(r"\n\s*\n", "\n\n", "".join(words))
    text = re.sub(r"([^\w\n])\1{63,}", lambda row: f"{row[1] * 60} ⋯ ", text)
    return visible_lines(text)
