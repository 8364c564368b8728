"""Each question is parsed from its text alone and answered in another way than the generator answers it."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import prod
from random import Random
from string import ascii_letters

import pytest

from pilekit.assemble.arithmetic import CHUNK_BYTES, KINDS, arithmetic_document, arithmetic_documents

INTEGER = r"(-?\d+)"
DECIMAL = r"(-?\d+(?:\.\d+)?)"
FRACTION = r"(-?\d+(?:/\d+)?)"


def value(polynomial: str, letter: str, place: int) -> int:
    """A polynomial as Python would compute it."""
    assert re.fullmatch(rf"[-+* \d{letter}]+", polynomial)
    return int(eval(polynomial, {"__builtins__": {}}, {letter: place}))


def plain(number: Decimal) -> str:
    """A decimal as people write it: no exponent, no needless zeros, no minus before zero."""
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def greatest_common_divisor(a: int, b: int) -> int:
    rest, shared = prime_factors(b), []
    for factor in prime_factors(a):
        if factor in rest:
            rest.remove(factor)
            shared.append(factor)
    return prod(shared)


def next_term(terms: str) -> int:
    """Newton's differences, for sequences whose third differences vanish."""
    row = [int(term) for term in terms.split(", ")]
    ends = []
    for _ in range(3):
        ends.append(row[-1])
        row = [after - before for before, after in pairwise(row)]
    assert not any(row)
    return sum(ends)


def solves(left: str, right: str, letter: str, answer: str) -> bool:
    """The answer makes both sides equal, and no other number does (the sides have different slopes)."""
    difference = [value(left, letter, place) - value(right, letter, place) for place in (int(answer), int(answer) + 1)]
    return difference[0] == 0 and difference[1] != 0


def is_derivative(order: str, polynomial: str, letter: str, answer: str) -> bool:
    """Five-point differences are exact up to degree 4; five agreeing places settle a polynomial of degree 4."""
    weights = {"first": (1, -8, 0, 8, -1), "second": (-1, 16, -30, 16, -1)}[order]
    return all(
        12 * value(answer, letter, place)
        == sum(weight * value(polynomial, letter, place + step - 2) for step, weight in enumerate(weights))
        for place in range(-3, 4)
    )


# (question, whether the answer is right given the question's parts and the answer)
CHECKS: list[tuple[str, Callable[..., bool]]] = [
    (rf"Add {DECIMAL} and {DECIMAL}\.", lambda a, b, answer: answer == plain(Decimal(a) + Decimal(b))),
    (rf"What is the sum of {DECIMAL} and {DECIMAL}\?", lambda a, b, answer: answer == plain(Decimal(a) + Decimal(b))),
    (rf"Subtract {DECIMAL} from {DECIMAL}\.", lambda a, b, answer: answer == plain(Decimal(b) - Decimal(a))),
    (rf"What is {DECIMAL} less than {DECIMAL}\?", lambda a, b, answer: answer == plain(Decimal(b) - Decimal(a))),
    (rf"Multiply {INTEGER} and {INTEGER}\.", lambda a, b, answer: answer == str(int(a) * int(b))),
    (rf"What is {INTEGER} times {INTEGER}\?", lambda a, b, answer: answer == str(int(a) * int(b))),
    (rf"Calculate {INTEGER} \* {INTEGER}\.", lambda a, b, answer: answer == str(int(a) * int(b))),
    (rf"Divide {INTEGER} by {INTEGER}\.", lambda a, b, answer: Fraction(answer) * int(b) == int(a)),
    (rf"What is {INTEGER} divided by {INTEGER}\?", lambda a, b, answer: Fraction(answer) * int(b) == int(a)),
    (
        rf"(?:What is|Calculate) the remainder when {INTEGER} is divided by {INTEGER}[?.]",
        lambda a, b, answer: 0 <= int(answer) < int(b) and (int(a) - int(answer)) / int(b) == int(a) // int(b),
    ),
    (
        rf"What is the greatest common divisor of {INTEGER} and {INTEGER}\?",
        lambda a, b, answer: int(answer) == greatest_common_divisor(int(a), int(b)),
    ),
    (
        rf"What is the least common multiple of {INTEGER} and {INTEGER}\?",
        lambda a, b, answer: int(answer) * greatest_common_divisor(int(a), int(b)) == int(a) * int(b),
    ),
    (rf"Is {INTEGER} a prime number\?", lambda a, answer: answer == str(len(prime_factors(int(a))) == 1)),
    (rf"Is {INTEGER} a composite number\?", lambda a, answer: answer == str(len(prime_factors(int(a))) > 1)),
    (
        r"What is (\w+) \(base (\d+)\) in base (\d+)\?",
        lambda a, old, new, answer: (
            int(a, int(old)) == int(answer, int(new)) and (answer == "0" or not answer.startswith("0"))
        ),
    ),
    (
        rf"Round {INTEGER} to the nearest (ten|one hundred|one thousand|ten thousand)\.",
        lambda a, step, answer: (
            int(answer)
            == int(
                Decimal(a).quantize(
                    Decimal({"ten": "1e1", "one hundred": "1e2", "one thousand": "1e3", "ten thousand": "1e4"}[step])
                )
            )
        ),
    ),
    (rf"Which is bigger: {FRACTION} or {FRACTION}\?", lambda a, b, answer: answer == max(a, b, key=Fraction)),
    (rf"Is {FRACTION} > {FRACTION}\?", lambda a, b, answer: answer == str(Fraction(a) > Fraction(b))),
    (r"What is next in ([-\d, ]+)\?", lambda terms, answer: int(answer) == next_term(terms)),
    (
        r"Sort ([-\d, ]+) in increasing order\.",
        lambda numbers, answer: answer.split(", ") == sorted(numbers.split(", "), key=int),
    ),
    (r"Solve (.+) = (.+) for (\w)\.", solves),
    (r"What is the (first|second) derivative of (.+) wrt (\w)\?", is_derivative),
    (
        rf"Let (\w)\((\w)\) = (.+)\. Give \1\({INTEGER}\)\.",
        lambda _, letter, polynomial, place, answer: int(answer) == value(polynomial, letter, int(place)),
    ),
]


def is_right(question: str, answer: str) -> bool:
    for pattern, check in CHECKS:
        found = re.fullmatch(pattern, question)
        if found:
            return check(*found.groups(), answer)
    pytest.fail(f"nothing here can answer {question!r}")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_answers_are_right(kind: Callable[[Random], tuple[str, str]]) -> None:
    random = Random(17)
    for _ in range(300):
        question, answer = kind(random)
        assert is_right(question, answer), (question, answer)
        # The checks must be able to fail: with its last digit changed, the same answer is wrong.
        swapped = {"True": "False", "False": "True"}.get(answer)
        wrong = swapped or re.sub(r"\d(?!.*\d)", lambda digit: str((int(digit[0]) + 1) % 2), answer)
        if wrong != answer and not wrong.endswith("/0"):
            assert not is_right(question, wrong), (question, wrong)


def test_a_document_holds_whole_pairs_of_one_kind_and_a_little_over_8_kib() -> None:
    for number in range(2 * len(KINDS)):
        text = arithmetic_document(number)
        lines = text.removesuffix("\n").split("\n")
        assert text.isascii()
        assert text.endswith("\n")
        assert len(lines) % 2 == 0
        assert CHUNK_BYTES <= len(text) < CHUNK_BYTES + 200
        assert len(text) - len(lines[-1]) - len(lines[-2]) - 2 < CHUNK_BYTES
        for question, answer in zip(lines[::2], lines[1::2], strict=True):
            assert question[-1] in "?."
            lettered = answer in ("True", "False") or "base" in question or "derivative" in question
            assert lettered or set(ascii_letters).isdisjoint(answer)


def test_documents_are_the_same_every_time_and_differ_by_number_and_seed() -> None:
    assert arithmetic_document(5) == arithmetic_document(5)
    assert len({arithmetic_document(number, seed) for number in range(30) for seed in (0, 1)}) == 60


def test_documents_do_not_depend_on_the_machine() -> None:
    # Seeded by a string, so no hash randomization and no platform enters: the very text is known.
    assert arithmetic_document(0).split("\n")[:2] == ["What is the sum of -6.1 and 0.8?", "-5.3"]


def test_as_many_bytes_as_asked_for() -> None:
    assert list(arithmetic_documents(0)) == []
    texts = list(arithmetic_documents(30_000, seed=3))
    assert sum(map(len, texts)) >= 30_000 > sum(map(len, texts[:-1]))
    assert texts[1] == arithmetic_document(1, seed=3)
