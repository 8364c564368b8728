"""Standard input, output and error of the command line, however the process was started.

A scheduler may start a command with them closed (`>&-`). Then Python has no `sys.stdout`, and the first file that the
command opens gets descriptor 1, so that a stray line would end up in a shard. Closed ones become /dev/null first.

Results go to standard output. If it cannot be written, the command fails and says so. If only the reader of a pipe has
gone (`| head`), it had all that it needed, and the command ends without an error. Messages go to standard error. If
nobody can read them, the work and the exit code stay the same.

Both rules stand below the buffers, where text and bytes meet. They raise no OSError, because rich and click give the
error of a closed pipe an exit code of their own.

All messages pass the text layer of standard error: messages of pilekit, of click, of loggers and of other libraries. So
this layer breaks their long lines at spaces. A terminal would break them inside words.
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
    sys.stdout = _text_layer(_Results, 1, sys.stdout, sys.__stdout__)
    sys.stderr = _text_layer(_Messages, 2, sys.stderr, sys.__stderr__)
    atexit.register(flush_standard_output)


def flush_standard_output() -> None:
    """Write the rest of the output when the exit code is known already, and let no failure change it."""
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


def _text_layer(raw: type[io.FileIO], descriptor: int, stream: TextIO | None, original: TextIO | None) -> TextIO:
    """A new text layer of a standard stream. A stream that was replaced, as by a notebook, is returned as it is."""
    if stream is not None and (stream is not original or not isinstance(stream, io.TextIOWrapper)):
        return stream
    return (_MessageText if raw is _Messages else io.TextIOWrapper)(
        io.BufferedWriter(raw(descriptor, "wb", closefd=False)),
        None if stream is None else stream.encoding,
        errors="backslashreplace",  # If a terminal lacks a character, its number is printed.
        line_buffering=raw is _Messages or (stream is not None and (stream.line_buffering or stream.write_through)),
    )


_LINE = re.compile(r"((?:\r|\x1b\[[\d;?]*[A-Za-z])*)([^\r\x1b\n]*)")
"""A line: what moves a terminal's cursor, as from below a line of progress, and text without that."""


def wrapped(text: str, stream: TextIO, indent: str = "") -> str:
    """`text` with its long lines broken at spaces, to fit the terminal; the text itself for a pipe or a file.

    indent   stands before each further part of a broken line

    A line with colours is left as it is, because rich has fitted it.
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
