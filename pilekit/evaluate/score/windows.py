"""The window rule of the Pile's authors and of lm-evaluation-harness: which inputs predict which tokens.

A document is scored as the sequence `[prefix] + tokens`. Every token after the first is predicted exactly once, in
windows of at most `max_length` inputs:

    the first window    begins with the prefix and predicts the first min(max_length, tokens) tokens
    every later window  predicts the next max_length - context_len + 1 tokens, or the rest, from exactly the max_length
                        inputs before the last token it predicts

Published numbers use `context_len` 1. Then the inputs of windows do not overlap, except that the last window reaches
back so that it too has `max_length` inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Window(NamedTuple):
    """One forward pass over a part of `sequence = [prefix] + tokens`.

    begin, end   the inputs are `sequence[begin:end]`
    targets      the number of scored inputs, the window's last; they predict `sequence[end - targets + 1 : end + 1]`
    """

    begin: int
    end: int
    targets: int


def windows(tokens: int, max_length: int, context_len: int = 1) -> Iterator[Window]:
    """The windows of a document of `tokens` tokens, in order; none for an empty document.

    max_length    the most inputs of a window, at least 1
    context_len   the least number of inputs before the first token that a later window predicts; 1 to max_length

    `tokens` counts the predicted tokens, without the prefix. The plan has checked the lengths.
    """
    end = min(max_length, tokens)
    if end > 0:
        yield Window(0, end, end)
    while end < tokens:
        targets = min(max_length - context_len + 1, tokens - end)
        end += targets
        yield Window(end - max_length, end, targets)


def cost_factor(max_length: int, context_len: int) -> float:
    """Inputs computed for each token of a long document: 1.0 if windows do not overlap, 2.0 if half of each does.

    Documents that fit into one window cost the same for any `context_len`.
    """
    return max_length / (max_length - context_len + 1)
