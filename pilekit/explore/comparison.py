"""Two texts for the page, word by word: what is alike, what differs, and the long equal passages that it folds."""

from __future__ import annotations

from typing import Any

from pilekit.dedup.show.word_diff import folded, word_diff, words_in
from pilekit.errors import visible_lines

MOST_COMPARED = 4_000_000
"""Characters of each text; 300,000 words are compared in a second or two."""


def compared(left: str, right: str) -> dict[str, Any]:
    """Compare two texts for the page.

    parts    lists of a kind and the words of both texts; a folded part also has the number of its words, as text
    before   equal characters at the beginning that the parts leave out
    after    characters at the end of each text that were not compared
    """
    diff = word_diff(left, right, MOST_COMPARED)
    parts = []
    for kind, *sides in folded(diff.parts):
        texts = [visible_lines("".join(words)) for words in sides]
        parts.append([kind, *texts, *([words_in(sides[0])] if kind == "folded" else [])])
    return {"parts": parts, "before": diff.before, "after": list(diff.after)}
