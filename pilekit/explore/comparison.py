"""Two texts for the page, word by word: what is alike, what differs, and the long equal passages that it folds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pilekit.dedup.show.word_diff import folded, word_diff, words_in
from pilekit.errors import visible_lines

MOST_COMPARED = 4_000_000
"""Characters of each text; 300,000 words are compared in a second or two."""


def compared(one: str, other: str) -> dict[str, Any]:
    """`parts` is a list of [kind, words of one, words of other]; a folded part also tells the number of its words.

    before   equal characters at the beginning that the parts leave out
    after    characters at the end of each text that were not compared
    """
    diff = word_diff(one, other, MOST_COMPARED)

    def parts() -> Iterator[list[str]]:
        for kind, words, others in folded(diff.parts):
            yield [kind, _shown(words), _shown(others), *([words_in(words)] if kind == "folded" else [])]

    return {"parts": list(parts()), "before": diff.before, "after": list(diff.after)}


def _shown(words: Sequence[str]) -> str:
    return visible_lines("".join(words))
