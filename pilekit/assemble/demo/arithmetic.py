"""Generated arithmetic, like the Pile's `DM Mathematics`: any amount of questions and answers.

A document holds questions of one kind. Each is a line, followed by a line with its answer. The document ends when it
has 8 KiB. `random.Random` is seeded with a string (seed and document number), which gives the same numbers on every
machine. Answers are computed with integers and fractions, so they are exact.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import count
from random import Random

CHUNK_BYTES = 8192

KINDS: tuple[tuple[str, Callable[[int, int], object]], ...] = (
    ("What is the sum of {a} and {b}?", operator.add),
    ("Subtract {b} from {a}.", operator.sub),
    ("What is {a} times {b}?", operator.mul),
    ("What is {a} divided by {b}?", Fraction),
    ("What is the remainder when {a} is divided by {b}?", operator.mod),
    ("What is the greatest common divisor of {a} and {b}?", math.gcd),
    ("What is the least common multiple of {a} and {b}?", math.lcm),
    ("Which is bigger: {a} or {b}?", max),
    ("Is {a} a multiple of {b}?", lambda a, b: a % b == 0),
)
"""Question and answer of each kind. Both numbers are at least 1."""


def arithmetic_document(number: int, seed: int = 0) -> str:
    """Document `number` (from 0): questions and answers of one kind. The kinds take turns."""
    question, answer = KINDS[number % len(KINDS)]
    random = Random(f"{seed} {number}")
    lines, size = [], 0
    while size < CHUNK_BYTES:
        # All lengths of numbers are equally likely.
        a, b = (random.randrange(1, 10 ** random.randint(1, digits)) for digits in (6, 4))
        pair = f"{question.format(a=a, b=b)}\n{answer(a, b)}\n"
        lines.append(pair)
        size += len(pair)  # all of it is ASCII
    return "".join(lines)


def arithmetic_documents(total_bytes: int, seed: int = 0) -> Iterator[str]:
    """Documents 0, 1, 2, ... until they hold `total_bytes` bytes of text."""
    written = 0
    for number in count():
        if written >= total_bytes:
            return
        text = arithmetic_document(number, seed)
        written += len(text)
        yield text
