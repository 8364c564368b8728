"""Which tokens are predicted from which: the window rule of the Pile's authors and of lm-evaluation-harness.

A document is scored as the sequence `[prefix] + tokens`. Every token behind the first is predicted exactly once, by
windows of at most `max_length` inputs:

    the first window    begins with the prefix and predicts the first min(max_length, tokens) tokens
    every later window  predicts the next max_length - context_len + 1 tokens, or as many as are left, and has exactly
                        the max_length inputs in front of the last one it predicts

With `context_len` 1, the protocol of the published numbers, the predictions of a window begin where those of the last
one ended and its inputs overlap with nothing; only the last window reaches back, so that its inputs are full too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pilekit.errors import PilekitError


class Window(NamedTuple):
    """One forward pass over a part of `sequence = [prefix] + tokens`.

    begin, end   the inputs are `sequence[begin:end]`
    targets      the last so many inputs are scored: they predict `sequence[end - targets + 1 : end + 1]`
    """

    begin: int
    end: int
    targets: int


def windows(tokens: int, max_length: int, context_len: int = 1) -> Iterator[Window]:
    """The windows of a document of `tokens` tokens, in order; none for an empty one.

    max_length    the most inputs of a window, from 1 on
    context_len   how many inputs a later window has, at the least, for the first token it predicts; 1 to max_length

    The prefix is no token of the document: `tokens` counts what is predicted.
    """
    if max_length < 1 or not 1 <= context_len <= max_length:
        raise PilekitError(
            f"max_length is {max_length} and context_len {context_len}, but max_length is a whole number from 1 on and "
            "context_len one from 1 to max_length"
        )
    end = min(max_length, tokens)
    if end > 0:
        yield Window(0, end, end)
    while end < tokens:
        targets = min(max_length - context_len + 1, tokens - end)
        end += targets
        yield Window(end - max_length, end, targets)


def cost_factor(max_length: int, context_len: int) -> float:
    """Inputs computed for each token of a long document: 1.0 where windows do not overlap, 2.0 where half of each does.

    Documents that fit into one window cost the same for any `context_len`.
    """
    return max_length / (max_length - context_len + 1)
