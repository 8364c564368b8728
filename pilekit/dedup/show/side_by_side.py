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
from pilekit.errors import visible

CONTEXT = 12
"""Equal words shown before and after a difference."""
MOST_WORDS = 250
"""About this many words of each text are shown."""
_LONGEST_DIFFERENCE = 60

_ONLY_KEPT = "bold green", "{+", "+}"
_ONLY_REMOVED = "bold red", "[-", "-]"


def side_by_side(diff: WordDiff, titles: tuple[str, str], *, colour: bool) -> RenderableType:
    """The kept document (`one` of the diff) on the left, the removed one on the right.

    titles   headings of the two columns, with control characters made visible
    colour   mark differences by colour, not by brackets in the text
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1), expand=True)
    for title in titles:
        table.add_column(Text(title), ratio=1, overflow="fold")
    rows = _Rows(table, colour)
    if diff.before:
        rows.note(f"⋯ {diff.before:,} characters alike")
    for place, part in enumerate(diff.parts):
        if rows.words > MOST_WORDS:
            more = sum(not part.alike for part in diff.parts[place:])
            rows.note(f"⋯ and {more:,} more difference{'s' * (more != 1)}" if more else "⋯")
            break
        if part.alike:
            behind = CONTEXT if place or diff.before else 0
            ahead = CONTEXT if place + 1 < len(diff.parts) else 0
            if len(diff.parts) == 1:  # There is no difference to show it beside.
                behind = _LONGEST_DIFFERENCE
            rows.alike(part, behind, ahead)
        else:
            rows.differing(part.one, part.other)
    if any(diff.after):
        rows.note("⋯ what follows was not compared: {:,} and {:,} characters".format(*diff.after))
    rows.flush()
    if any(not part.alike for part in diff.parts):
        return table
    return Group(table, Text("No word differs.", style="dim"))


class _Rows:
    """Adds rows to the table."""

    def __init__(self, table: Table, colour: bool) -> None:
        self.table, self.colour = table, colour
        self.cells = Text(), Text()
        self.words = 0

    def alike(self, part: Part, behind: int, ahead: int) -> None:
        """Add equal words; only the first and the last of them are shown."""
        count = len(part.one)
        if count <= behind + ahead + CONTEXT:
            behind, ahead = count, 0
        self._both(part, slice(behind))
        if behind + ahead < count:
            self.note(f"⋯ {_count(part.one[behind : count - ahead])} alike")
            self._both(part, slice(count - ahead, count))

    def differing(self, one: Sequence[str], other: Sequence[str]) -> None:
        """Add words in which the texts differ."""
        for cell, words, look in zip(self.cells, (one, other), (_ONLY_KEPT, _ONLY_REMOVED), strict=True):
            if len(words) > _LONGEST_DIFFERENCE:
                half = _LONGEST_DIFFERENCE // 2
                left_out = f" ⋯ {_count(words[half:-half])} ⋯ "
                self._mark(cell, words[:half], look)
                cell.append(left_out, style="dim")
                words = words[-half:]
            self._mark(cell, words, look)
        self.words += min(_LONGEST_DIFFERENCE, max(len(one), len(other)))

    def note(self, text: str) -> None:
        """Add a row that says how much is not shown."""
        self.flush()
        self.table.add_row(Text(text, style="dim"), Text())

    def flush(self) -> None:
        """End the row."""
        if any(self.cells):
            for cell in self.cells:
                cell.rstrip()
            self.table.add_row(*self.cells)
        self.cells = Text(), Text()

    def _both(self, part: Part, some: slice) -> None:
        self.words += len(part.one[some])
        for cell, words in zip(self.cells, (part.one, part.other), strict=True):
            cell.append(_shown("".join(words[some])))

    def _mark(self, cell: Text, words: Sequence[str], look: tuple[str, str, str]) -> None:
        style, begin, end = look
        text = _shown("".join(words))
        marked = text.rstrip()
        if self.colour:
            cell.append(marked, style=style)
        elif text:
            cell.append(f"{begin}{marked}{end}")
        cell.append(text[len(marked) :])


def _shown(text: str) -> str:
    """The text with single empty lines, repeated punctuation cut, and control characters made visible."""
    text = re.sub(r"([^\w\n])\1{63,}", lambda row: f"{row[1] * 60} ⋯ ", re.sub(r"\n\s*\n", "\n\n", text))
    return re.sub(r"[^\n\t]+", lambda part: visible(part[0]), text)


def _count(words: Sequence[str]) -> str:
    """The number of words, as text."""
    count = sum(any(map(str.isalnum, word)) for word in words)
    return f"{count:,} word{'s' * (count != 1)}"
