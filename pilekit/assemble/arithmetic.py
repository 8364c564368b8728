"""Arithmetic question-answer text in the manner of the Pile's `DM Mathematics`.

A document holds questions of one kind, one per line, each followed by a line with its answer, and is cut after a whole
pair as soon as it has 8 KiB: so its number of lines is even and its size a little over 8 KiB. All of it is generated,
so there is as much as one wants, it is free of anyone's rights, and a small model can visibly learn it.

Everything is drawn from `random.Random` seeded with a string (kind, seed and document number), which gives the same
numbers on every machine and in every process. Answers are computed with integers and fractions, so they are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import count
from random import Random

CHUNK_BYTES = 8192

Question = tuple[str, str]
"""A question and its answer, each one line without its newline."""


def _number(random: Random, digits: int = 6) -> int:
    """A number of 1 to `digits` digits, either sign: lengths are as likely as each other, as people's sums are."""
    return random.choice((-1, 1)) * random.randrange(10 ** random.randint(1, digits))


def _decimal(random: Random) -> Decimal:
    return Decimal(_number(random)).scaleb(-random.randint(0, 3)).normalize()


def _polynomial(coefficients: Sequence[int], letter: str) -> str:
    """`3*x**2 - x + 4` for coefficients (4, -1, 3), the constant first; `0` when all vanish."""
    text = ""
    for power in range(len(coefficients) - 1, -1, -1):
        coefficient = coefficients[power]
        if coefficient == 0:
            continue
        variable = "" if power == 0 else letter if power == 1 else f"{letter}**{power}"
        size = "" if variable and abs(coefficient) == 1 else str(abs(coefficient))
        sign = " - " if coefficient < 0 else " + "
        if not text:
            sign = "-" if coefficient < 0 else ""
        text += sign + "*".join(part for part in (size, variable) if part)
    return text or "0"


def _in_base(value: int, base: int) -> str:
    digits = ""
    while value:
        value, digit = divmod(value, base)
        digits = "0123456789abcdef"[digit] + digits
    return digits or "0"


def addition(random: Random) -> Question:
    """Sums and differences of integers and decimals."""
    a, b = _decimal(random), _decimal(random)
    if random.random() < 0.5:
        question, answer = random.choice((f"Add {a:f} and {b:f}.", f"What is the sum of {a:f} and {b:f}?")), a + b
    else:
        question, answer = random.choice((f"Subtract {b:f} from {a:f}.", f"What is {b:f} less than {a:f}?")), a - b
    return question, f"{answer.normalize():f}"


def multiplication(random: Random) -> Question:
    """Products of integers."""
    a, b = _number(random, 4), _number(random, 4)
    return random.choice((f"Multiply {a} and {b}.", f"What is {a} times {b}?", f"Calculate {a} * {b}.")), str(a * b)


def division(random: Random) -> Question:
    """Quotients, as reduced fractions."""
    a, b = _number(random), random.randint(1, 999)
    return random.choice((f"Divide {a} by {b}.", f"What is {a} divided by {b}?")), str(Fraction(a, b))


def remainder(random: Random) -> Question:
    """Remainders of positive numbers."""
    a, b = abs(_number(random)), random.randint(2, 999)
    begin, end = random.choice((("What is", "?"), ("Calculate", ".")))
    return f"{begin} the remainder when {a} is divided by {b}{end}", str(a % b)


def common_divisor(random: Random) -> Question:
    """Greatest common divisors and least common multiples."""
    shared = random.randint(1, 99)
    a, b = shared * random.randint(1, 999), shared * random.randint(1, 999)
    if random.random() < 0.5:
        return f"What is the greatest common divisor of {a} and {b}?", str(math.gcd(a, b))
    return f"What is the least common multiple of {a} and {b}?", str(math.lcm(a, b))


def primality(random: Random) -> Question:
    """Whether an odd number is prime."""
    number = random.randrange(3, 100_000, 2)
    prime = all(number % divisor for divisor in range(3, math.isqrt(number) + 1, 2))
    if random.random() < 0.5:
        return f"Is {number} a prime number?", str(prime)
    return f"Is {number} a composite number?", str(not prime)


def base_conversion(random: Random) -> Question:
    """A number in one base, asked for in another."""
    number, (old, new) = abs(_number(random)), random.sample(range(2, 17), 2)
    return f"What is {_in_base(number, old)} (base {old}) in base {new}?", _in_base(number, new)


def rounding(random: Random) -> Question:
    """Rounding to a power of ten; never half way, where customs differ."""
    step, name = random.choice(((10, "ten"), (100, "one hundred"), (1000, "one thousand"), (10_000, "ten thousand")))
    number = _number(random, 7)
    while number % step == step // 2:
        number += 1
    return f"Round {number} to the nearest {name}.", str((number + step // 2) // step * step)


def comparison(random: Random) -> Question:
    """Which of two different fractions is bigger."""
    a, b = (Fraction(_number(random, 2), random.randint(1, 99)) for _ in range(2))
    while a == b:
        b += 1
    if random.random() < 0.5:
        return f"Which is bigger: {a} or {b}?", str(max(a, b))
    return f"Is {a} > {b}?", str(a > b)


def sequence(random: Random) -> Question:
    """The next term of a sequence that is a polynomial of its place."""
    start, slope, curve = _number(random, 4), _number(random, 3), random.choice((0, 0, _number(random, 2)))
    terms = [start + slope * place + curve * place**2 for place in range(random.randint(4, 7) + 1)]
    return f"What is next in {', '.join(map(str, terms[:-1]))}?", str(terms[-1])


def sorting(random: Random) -> Question:
    """A few different integers in increasing order."""
    numbers = list({_number(random, 4) for _ in range(random.randint(3, 7))})
    random.shuffle(numbers)
    question = f"Sort {', '.join(map(str, numbers))} in increasing order."
    return question, ", ".join(map(str, sorted(numbers)))


def linear_equation(random: Random) -> Question:
    """One unknown, once on each side, with a whole solution."""
    letter, solution = random.choice("abcdfghjkmnpqrstuvwxyz"), _number(random, 2)
    left, right = random.sample([number for number in range(-30, 31) if number], 2)
    constant = _number(random, 3)
    sides = _polynomial((constant, left), letter), _polynomial((constant + (left - right) * solution, right), letter)
    return f"Solve {sides[0]} = {sides[1]} for {letter}.", str(solution)


def derivative(random: Random) -> Question:
    """The first or second derivative of a polynomial."""
    letter = random.choice("abcdfghjkmnpqrstuvwxyz")
    coefficients = [_number(random, 3) for _ in range(random.randint(2, 5))]
    order = random.randint(1, 2)
    answer = coefficients
    for _ in range(order):
        answer = [power * coefficient for power, coefficient in enumerate(answer)][1:]
    which, asked = ("first", "second")[order - 1], _polynomial(coefficients, letter)
    return f"What is the {which} derivative of {asked} wrt {letter}?", _polynomial(answer, letter)


def evaluation(random: Random) -> Question:
    """The value of a polynomial at a small integer."""
    name, letter = random.sample("abcdfghjkmnpqrstuvwxyz", 2)
    coefficients = [_number(random, 2) for _ in range(random.randint(2, 4))]
    place = random.randint(-12, 12)
    value = sum(coefficient * place**power for power, coefficient in enumerate(coefficients))
    return f"Let {name}({letter}) = {_polynomial(coefficients, letter)}. Give {name}({place}).", str(value)


KINDS: tuple[Callable[[Random], Question], ...] = (
    addition,
    multiplication,
    division,
    remainder,
    common_divisor,
    primality,
    base_conversion,
    rounding,
    comparison,
    sequence,
    sorting,
    linear_equation,
    derivative,
    evaluation,
)


def arithmetic_document(number: int, seed: int = 0) -> str:
    """Document `number` (from 0): question and answer lines of one kind, the kinds taken in turn."""
    kind = KINDS[number % len(KINDS)]
    random = Random(f"{kind.__name__} {seed} {number}")
    lines, size = [], 0
    while size < CHUNK_BYTES:
        question, answer = kind(random)
        lines += [question, answer]
        size += len(question) + len(answer) + 2  # all of it is ASCII
    return "\n".join(lines) + "\n"


def arithmetic_documents(total_bytes: int, seed: int = 0) -> Iterator[str]:
    """Documents 0, 1, 2, ... until they hold `total_bytes` bytes of text."""
    written = 0
    for number in count():
        if written >= total_bytes:
            return
        text = arithmetic_document(number, seed)
        written += len(text)
        yield text
