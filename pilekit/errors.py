"""The one exception that users see, and how messages show foreign text and numbers of things.

Everything that a user can cause (a damaged shard, a misspelt subset, a manifest with an unknown field) is raised as a
`PilekitError`. Its text is one clear line: the problem, the place (file, frame, line, field), and the remedy. The
command line prints that line and exits with 1. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path


class PilekitError(Exception):
    """Bad input or a wrong argument, in one line that names the place and the remedy."""


class ToldElsewhere(PilekitError):
    """An error that rank 0, or the process that started the ranks, also prints. Other ranks do not print it."""


class RankLost(ToldElsewhere):
    """A connection to another rank of this machine broke. The program that started the ranks tells which one died."""


_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
# Direction overrides and other invisible format characters can make a terminal show another text than the real one.
# Lone surrogates (bytes of a file name that are not UTF-8) could not be printed at all.
_INVISIBLE = (0x061C, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
_ESCAPES |= {code: f"\\u{code:04x}" for code in (*_INVISIBLE, *range(0xD800, 0xE000))}
_ESCAPES_IN_LINES = {code: shown for code, shown in _ESCAPES.items() if chr(code) not in "\n\t"}


def counted(number: int, noun: str = "document", plural: str | None = None) -> str:
    """A number of things in words: "1 document", "1,204 documents"."""
    return f"1 {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def visible(text: str | Path | BaseException, limit: int | None = None) -> str:
    """`text`, a path or an error's message, with control and invisible format characters spelt out.

    Document text, labels and file names may hold escape sequences, which must not reach the terminal.
    With `limit`, at most that many characters of the original are shown, followed by an ellipsis.
    """
    text = str(text)
    if limit is not None and len(text) > limit:
        return text[:limit].translate(_ESCAPES) + "…"
    return text.translate(_ESCAPES)


def visible_lines(text: str) -> str:
    """`text` as `visible` shows it, but with its line breaks and tabs as they are."""
    return text.translate(_ESCAPES_IN_LINES)
