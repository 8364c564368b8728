"""Each question is parsed from its text alone and answered in another way than the generator answers it."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from pilekit.assemble.demo.arithmetic import CHUNK_BYTES, KINDS, arithmetic_document, arithmetic_documents


def divisors(number: int) -> set[int]:
    small = {divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0}
    return small | {number // divisor for divisor in small}


CHECKS: dict[str, Callable[[int, int, str], bool]] = {
    r"What is the sum of (\d+) and (\d+)\?": lambda a, b, answer: int(answer) - b == a,
    r"Subtract (\d+) from (\d+)\.": lambda b, a, answer: int(answer) + b == a,
    r"What is (\d+) times (\d+)\?": lambda a, b, answer: Fraction(int(answer), b) == a,
    r"What is (\d+) divided by (\d+)\?": lambda a, b, answer: Fraction(answer) * b == a,
    r"What is the remainder when (\d+) is divided by (\d+)\?": lambda a, b, answer: int(answer) == a - a // b * b,
    r"What is the greatest common divisor of (\d+) and (\d+)\?": lambda a, b, answer: (
        int(answer) == max(divisors(a) & divisors(b))
    ),
    r"What is the least common multiple of (\d+) and (\d+)\?": lambda a, b, answer: (
        int(answer) == a * b // max(divisors(a) & divisors(b))
    ),
    r"Which is bigger: (\d+) or (\d+)\?": lambda a, b, answer: int(answer) == (a if a > b else b),
    r"Is (\d+) a multiple of (\d+)\?": lambda a, b, answer: answer == str(b in divisors(a)),
}


def is_right(question: str, answer: str) -> bool:
    (found,) = [(check, match) for pattern, check in CHECKS.items() if (match := re.fullmatch(pattern, question))]
    return found[0](*map(int, found[1].groups()), answer)


def test_a_document_holds_whole_pairs_of_one_kind_with_right_answers_and_a_little_over_8_kib() -> None:
    for number in range(len(KINDS)):
        text = arithmetic_document(number)
        lines = text.removesuffix("\n").split("\n")
        assert text.isascii()
        assert CHUNK_BYTES <= len(text) < CHUNK_BYTES + 100
        assert len(text) - len(lines[-1]) - len(lines[-2]) - 2 < CHUNK_BYTES
        assert len({re.sub(r"\d+", "", question) for question in lines[::2]}) == 1
        for question, answer in zip(lines[::2], lines[1::2], strict=True):
            assert is_right(question, answer), (question, answer)
            # The checks must be able to fail.
            wrong = {"True": "False", "False": "True"}.get(answer) or f"{int(answer.split('/')[0]) + 1}"
            assert not is_right(question, wrong), (question, wrong)


def test_documents_are_the_same_on_every_machine_and_differ_by_number_and_seed() -> None:
    # Seeded by a string, so neither hash randomization nor the platform enters: the very text is known.
    assert arithmetic_document(0).split("\n")[:2] == ["What is the sum of 260 and 64?", "324"]
    assert len({arithmetic_document(number, seed) for number in range(30) for seed in (0, 1)}) == 60
    texts = list(arithmetic_documents(30_000, seed=3))
    assert sum(map(len, texts)) >= 30_000 > sum(map(len, texts[:-1]))
    assert texts[1] == arithmetic_document(1, seed=3)
