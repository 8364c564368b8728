"""The texts of the demo's corpus: the Python installation's own, edited copies of some, and generated arithmetic.

Every Python has about 10 MB of real prose and code: the standard library's source, its docstrings, the language
reference. They are on the user's disk already, so they need no network and raise no question of licence. Tests,
`site-packages` and files about this machine's build are left out, so two installations of one Python version give
nearly the same text. Files that cannot be read, are not UTF-8, or have 100,000 bytes or more (the Pile's own limit for
code) are skipped.

Documents that share text (a file and its docstrings, a document and its edited copy) have the same `group`. A split by
group never has the same text on both sides.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import xxhash

MAX_FILE_BYTES = 100_000
CHUNK_BYTES = 8192
"""The least text of a document of arithmetic."""
LEAST_WORDS = 300
"""An edit would change too much of a shorter document."""

_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


class SourceDocument(NamedTuple):
    """A document for a corpus; documents with overlapping text have the same group."""

    text: str
    subset: str
    group: str


def standard_library() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(folder: Path) -> Iterator[tuple[str, str]]:
    """(path relative to `folder`, text) of each readable Python file below it, in the order of the paths."""
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        relative = path.relative_to(folder)
        # _sysconfigdata describes how and where this Python was built.
        if not _LEFT_OUT.isdisjoint(relative.parts) or path.name.startswith("_sysconfigdata"):
            continue
        try:
            stored = path.read_bytes()
            text = stored.decode()
        except (OSError, UnicodeDecodeError):
            continue
        if len(stored) < MAX_FILE_BYTES and text.strip():
            yield relative.as_posix(), text


def language_reference() -> Iterator[tuple[str, str]]:
    """(topic, text) of the chapters that `help()` shows; nothing if Python was installed without them."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return
    yield from sorted(topics.items())


def python_documents(library: Path | None = None) -> Iterator[SourceDocument]:
    """The Python installation's texts as documents of three subsets, in a fixed order.

    `Github`             source files, as they are
    `Docstrings`         a docstring under its qualified name: name, blank line, text
    `Python Reference`   a chapter of the language reference
    """
    for path, text in source_files(library or standard_library()):
        yield SourceDocument(text, "Github", group=text)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about old escapes in the library's own strings
                tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name, docstring in _docstrings(module, tree):
            yield SourceDocument(f"{name}\n\n{docstring}\n", "Docstrings", group=text)
    for _, text in language_reference():
        yield SourceDocument(text, "Python Reference", group=text)


def _docstrings(name: str, node: ast.AST) -> Iterator[tuple[str, str]]:
    """(qualified name, docstring) of the module, class or function called `name`, and of those in it."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring and not docstring.isspace():
            yield name, docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(f"{name}.{child.name}", child)
        elif not isinstance(child, ast.expr):
            yield from _docstrings(name, child)


def _with_note(text: str) -> str:
    return f"# Mirrored from another archive; see the original for its licence and its authors.\n\n{text}"


def _cut_off(text: str) -> str:
    return text[: len(text) * 19 // 20]


def _with_other_words(text: str) -> str:
    """Replace every hundredth word."""
    words = re.split(r"(\W+)", text)
    for place in range(200, len(words), 200):  # words and separators take turns
        words[place] = "changed"
    return "".join(words)


EDITS = (_with_note, _cut_off, _with_other_words)


def reposts(documents: Iterable[SourceDocument], one_in: int) -> Iterator[SourceDocument]:
    """An edited copy of one in `one_in` of the documents with `LEAST_WORDS` words or more, as on the web.

    A hash of the text decides which documents are copied, and how: a note before the text, its end cut off, or some
    words changed. Near-duplicate removal has to find these copies.
    """
    for document in documents:
        place = xxhash.xxh3_64_intdigest(document.text.encode())
        if place % one_in == 0 and len(document.text.split()) >= LEAST_WORDS:
            yield document._replace(text=EDITS[place // one_in % len(EDITS)](document.text))


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
"""Question and answer of each kind of arithmetic. Both numbers are at least 1, and answers are exact."""


def arithmetic_document(number: int, seed: int = 0) -> str:
    """Document `number` (from 0), like the Pile's `DM Mathematics`: lines of questions of one kind and their answers.

    The kinds take turns. `Random` is seeded with a string, which gives the same numbers on every machine.
    """
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


def arithmetic_documents(total_bytes: int, seed: int = 0) -> Iterator[SourceDocument]:
    """Documents 0, 1, 2, ... until they hold `total_bytes` bytes of text."""
    written = 0
    for number in count():
        if written >= total_bytes:
            return
        text = arithmetic_document(number, seed)
        written += len(text)
        yield SourceDocument(text, "DM Mathematics", group=text)
