"""The one exception that users see, and how messages show foreign text and numbers of things.

Everything that a user can cause (a damaged shard, a misspelt subset, a manifest with an unknown field) is raised as a
`PilekitError`. Its text is one clear line: the problem, the place (file, frame, line, field), and the remedy. The
command line prints that line and exits with 1. Any other exception is a bug and keeps its traceback.

Document text, labels and file names may hold escape sequences, which must not reach a terminal. `PilekitError` and the
filter of `message_logger` spell them out, so a message is a plain f-string. Output that is neither, as a table's cell,
uses `visible`. Spelling out twice changes nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path


class PilekitError(Exception):
    """Bad input or a wrong argument, in one line that names the place and the remedy, with `visible` text."""

    setting: str | None = None
    """The name of the wrong setting, if the code that raised it knows it (artifacts/settings.py)."""

    def __init__(self, message: str | BaseException = "") -> None:
        super().__init__(visible(message))


class AlreadyReported(PilekitError):
    """An error that rank 0, or the process that started the ranks, also prints. Other ranks do not print it."""


class RankLost(AlreadyReported):
    """A connection to another rank of this machine broke. The program that started the ranks names the dead one."""


_OUT_OF_MEMORY = (
    *("can't allocate memory", "Cannot allocate memory", "out of memory", "bad_alloc", "ALLOC_FAILED"),
    *("failed to map segment from shared object", "can't start new thread"),
)
"""Words in errors of libraries that have no class of their own: from a CPU, the system, the GPU's driver, C++, cuBLAS,
and from loading libraries and starting threads, which take memory too."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error says that the machine, a limit of this process or a GPU has run out of memory."""
    if isinstance(error, RuntimeError | ImportError | OSError):
        says_so = any(words in str(error) for words in _OUT_OF_MEMORY)
        return says_so or (isinstance(error, OSError) and is_out_of_memory(error.__context__))
    return isinstance(error, MemoryError)


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

    With `limit`, at most that many characters of the original are shown, followed by an ellipsis.
    """
    return (str(text) if limit is None else shortened(text, limit)).translate(_ESCAPES)


def shortened(text: object, limit: int) -> str:
    """At most `limit` characters of `text`, a path or an error's message; an ellipsis stands for the rest."""
    text = str(text)
    return text if len(text) <= limit else text[:limit] + "…"


def visible_lines(text: str) -> str:
    """`text` as `visible` shows it, but with its line breaks and tabs as they are."""
    return text.translate(_ESCAPES_IN_LINES)


def message_logger(name: str) -> logging.Logger:
    """The logger of a module; its messages have `visible` text, whichever handler prints them."""
    logger = logging.getLogger(name)
    logger.addFilter(_make_visible)
    return logger


def _make_visible(record: logging.LogRecord) -> bool:
    record.msg = visible(str(record.msg))
    if isinstance(record.args, tuple):  # they stay apart, for handlers that group messages
        record.args = tuple(arg if isinstance(arg, int | float) else visible(str(arg)) for arg in record.args)
    return True
