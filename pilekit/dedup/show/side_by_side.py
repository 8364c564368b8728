"""A table with the kept document beside the removed one, their differing words marked.

Words of the kept document alone are green, words of the removed document alone are red; without colour they are
`{+marked+}` and `[-marked-]`. Long equal stretches are cut short. A corpus may contain hostile text, so texts are shown
as rich `Text` with control characters made visible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pilekit.dedup.show.word_diff import Part, WordDiff
from pilekit.errors import counted, visible

CONTEXT = 12
"""Equal words shown before and after a difference."""
MOST_WORDS = 250
"""About this many words of each text are shown."""
_HALF_OF_A_DIFFERENCE = 30

_LOOKS = ("bold green", "{+", "+}"), ("bold red", "[-", "-]")
"""Of words that only the kept document has, and of words that only the removed one has."""


def side_by_side(diff: WordDiff, titles: tuple[str, str], *, colour: bool) -> RenderableType:
    """The kept document (`one` of the diff) on the left, the removed one on the right.

    titles   headings of the two columns, with control characters made visible
    colour   mark differences by colour, not by brackets in the text
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1), expand=True)
    for title in titles:
        table.add_column(Text(title), ratio=1, overflow="fold")
    cells = [Text(), Text()]

    def end_row(note: str = "") -> None:
        """End the row; a note says how much is not shown."""
        if any(cells):
            for cell in cells:
                cell.rstrip()
            table.add_row(*cells)
        cells[:] = Text(), Text()
        if note:
            table.add_row(Text(note, style="dim"), Text())

    if diff.before:
        end_row(f"⋯ {counted(diff.before, 'character')} alike")
    shown = 0
    for place, part in enumerate(diff.parts):
        if shown > MOST_WORDS:
            more = sum(not part.alike for part in diff.parts[place:])
            end_row(f"⋯ and {counted(more, 'more difference')}" if more else "⋯")
            break
        edge = CONTEXT if part.alike else _HALF_OF_A_DIFFERENCE
        shown += min(2 * edge, max(len(part.one), len(part.other)))
        left_out = [words[edge:-edge] for words in (part.one, part.other)]
        if part.alike and len(left_out[0]) > CONTEXT:
            for cell, words in zip(cells, (part.one, part.other), strict=True):
                cell.append(_shown(words[:edge]))
            end_row(f"⋯ {_count(left_out[0])} alike")
            part = Part(True, part.one[-edge:], part.other[-edge:])
        for cell, words, gap, look in zip(cells, (part.one, part.other), left_out, _LOOKS, strict=True):
            if part.alike:
                cell.append(_shown(words))
            elif gap:
                _mark(cell, words[:edge], look, colour)
                cell.append(f" ⋯ {_count(gap)} ⋯ ", style="dim")
                _mark(cell, words[-edge:], look, colour)
            else:
                _mark(cell, words, look, colour)
    if any(diff.after):
        end_row("⋯ what follows was not compared")
    end_row()
    if any(not part.alike for part in diff.parts):
        return table
    return Group(table, Text("No word differs.", style="dim"))


def _mark(cell: Text, words: Sequence[str], look: tuple[str, str, str], colour: bool) -> None:
    """Add words in which the texts differ."""
    style, begin, end = look
    text = _shown(words)
    marked = text.rstrip()
    if colour:
        cell.append(marked, style=style)
    elif text:
        cell.append(f"{begin}{marked}{end}")
    cell.append(text[len(marked) :])


def _shown(words: Sequence[str]) -> str:
    """The text with single empty lines, repeated punctuation cut, and control characters made visible."""
    text = re.sub(r"\n\s*\n", "\n\n", "".join(words))
    text = re.sub(r"([^\w\n])\1{63,}", lambda row: f"{row[1] * 60} ⋯ ", text)
    return re.sub(r"[^\n\t]+", lambda part: visible(part[0]), text)


def _count(words: Sequence[str]) -> str:
    """The number of words, as text."""
    return counted(sum(any(map(str.isalnum, word)) for word in words), "word")
