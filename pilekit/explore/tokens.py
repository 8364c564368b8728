"""The tokens of a text for the page: each with the characters that it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pilekit.errors import visible_lines

Spans = Sequence[tuple[int, int]]
"""The first byte of each token, and the one after it."""


def token_pieces(text: str, ids: Sequence[int], spans: Spans, bits: Mapping[int, float]) -> list[list[Any]]:
    """[text, id, bytes, bits] of each token; a character comes with the token that has its last byte."""
    return [
        [visible_lines(text[first:after]), token, end - begin, bits.get(place)]
        for place, ((first, after), token, (begin, end)) in enumerate(
            zip(pairwise(_cuts(text, spans)), ids, spans, strict=True)
        )
    ]


def tokens_over(text: str, spans: Spans, start: int, end: int) -> tuple[int, int]:
    """The first token with one of the characters `start` to `end`, and the one after the last."""
    first, last = np.searchsorted(_cuts(text, spans)[1:], [start, min(end, len(text)) - 1], side="right").tolist()
    return first, last + 1


def _cuts(text: str, spans: Spans) -> list[int]:
    """Where each token begins, in characters, and the end of the last."""
    ends = np.cumsum([len(character.encode()) for character in text])
    return [0, *np.searchsorted(ends, [end for _, end in spans], side="right").tolist()]
