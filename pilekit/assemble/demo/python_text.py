"""Text that every Python installation has: the standard library's source, its docstrings, the language reference.

It is about 10 MB of real prose and code. It is on the user's disk already, so it needs no network and raises no
question of licence. Tests, `site-packages` and files about this machine's build are left out, so two installations of
one Python version give nearly the same text. Files that cannot be read, are not UTF-8, or have 100,000 bytes or more
(the Pile's own limit for code) are skipped.

Documents that share text (a file and its docstrings, two copies of one file) have the same `group`. A split by group
never has the same text on both sides.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_BYTES = 100_000

_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A document for a corpus."""

    text: str
    subset: str
    group: str
    """The source of the document. Documents with overlapping text have the same group."""


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
        if len(stored) < MAX_FILE_BYTES and not text.isspace() and text:
            yield relative.as_posix(), text


def docstrings(path: str, text: str) -> Iterator[tuple[str, str]]:
    """(qualified name, docstring) of the module, its classes and functions; nothing if the file does not parse."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old escapes in the library's own strings
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    waiting: list[tuple[str, ast.AST]] = [(module, tree)]
    while waiting:
        name, node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = ast.get_docstring(node)
            if found and not found.isspace():
                yield name, found
        for child in reversed(list(ast.iter_child_nodes(node))):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                waiting.append((f"{name}.{child.name}", child))
            else:
                waiting.append((name, child))


def language_reference() -> Iterator[tuple[str, str]]:
    """(topic, text) of the chapters that `help()` shows; nothing if Python was installed without them."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return
    yield from sorted(topics.items())


def python_documents(library: Path | None = None) -> Iterator[SourceDocument]:
    """Everything above as documents of three subsets, in a fixed order.

    `Github`             source files, as they are
    `Docstrings`         a docstring under its qualified name: name, blank line, text
    `Python Reference`   a chapter of the language reference
    """
    for path, text in source_files(library or standard_library()):
        yield SourceDocument(text, "Github", group=text)
        for name, docstring in docstrings(path, text):
            yield SourceDocument(f"{name}\n\n{docstring}\n", "Docstrings", group=text)
    for _, text in language_reference():
        yield SourceDocument(text, "Python Reference", group=text)
