"""Standard input, output and error of the command line, however the process was started.

A scheduler may start a command with them closed (`>&-`). Then Python has no `sys.stdout`, and the first file that the
command opens gets descriptor 1, so that a stray line would end up in a shard. Closed ones become /dev/null first.

Results go to standard output. If it cannot be written, the command fails with its name. If only the reader of a pipe
has gone (`| head`), it had all that it wanted, and the command ends without an error. Messages go to standard error,
and change nothing: the work and the exit code are the same if nobody can read them.

Both rules stand below the buffers, where text and bytes meet. They raise no OSError, because rich and click give that
of a closed pipe an exit code of their own.

All messages pass the text layer of standard error: pilekit's, click's, logged ones and those of libraries. So it is the
place that breaks their long lines at spaces. A terminal would break them inside words.
"""

from __future__ import annotations

import atexit
import io
import os
import re
import sys
import textwrap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from pilekit.errors import PilekitError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def prepare_standard_streams() -> None:
    """Open closed standard streams, and put both rules below the outputs. Call it before anything opens a file."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # The lowest free number is this descriptor.
    sys.stdout = _text_over(_Results, 1, sys.stdout, sys.__stdout__)
    sys.stderr = _text_over(_Messages, 2, sys.stderr, sys.__stderr__)
    atexit.register(flush_standard_output)


def flush_standard_output() -> None:
    """Write what is left when the exit code is known already, and let no failure change it."""
    with suppress(PilekitError, SystemExit):
        sys.stdout.flush()


class _Results(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # What is buffered cannot fail again.
            if isinstance(error, BrokenPipeError):
                sys.exit(0)
            raise PilekitError(f"standard output: cannot be written: {error.strerror}") from error


class _Messages(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


class _MessageText(io.TextIOWrapper):
    def write(self, text: str, /) -> int:
        super().write(wrapped(text, self))
        return len(text)


def _text_over(kind: type[io.FileIO], descriptor: int, now: TextIO | None, own: TextIO | None) -> TextIO:
    """The text layer of a standard stream. One that was replaced, as by a notebook, is returned as it is."""
    if now is not None and (now is not own or not isinstance(now, io.TextIOWrapper)):
        return now
    return (_MessageText if kind is _Messages else io.TextIOWrapper)(
        io.BufferedWriter(kind(descriptor, "wb", closefd=False)),
        None if now is None else now.encoding,
        errors="backslashreplace",  # If a terminal lacks a character, its number is printed.
        line_buffering=kind is _Messages or (now is not None and (now.line_buffering or now.write_through)),
    )


_LINE = re.compile(r"((?:\r|\x1b\[[\d;?]*[A-Za-z])*)([^\r\x1b\n]*)")
"""A line: what moves a terminal's cursor, as from below a line of progress, and text without that."""


def wrapped(text: str, stream: TextIO, indent: str = "") -> str:
    """`text` with lines that fit the terminal, broken at spaces only, all but the first indented; unchanged in a log.

    A line with colours is left as it is: rich has fitted it.
    """
    if not stream.isatty():
        return text
    width = os.get_terminal_size(stream.fileno()).columns or 80
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": indent}

    def fitted(line: str) -> str:
        parts = _LINE.fullmatch(line)
        if parts is None or len(parts[2]) <= width:
            return line
        return parts[1] + textwrap.fill(parts[2], width, **options)

    return "\n".join(map(fitted, text.split("\n")))
