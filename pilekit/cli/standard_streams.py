"""Standard input, output and error of the command line, however the process was started.

A scheduler may start a command with them closed (`>&-`). Then Python has no `sys.stdout`, and the first file that the
command opens gets descriptor 1, so that a stray line would end up in a shard. Closed ones become /dev/null first.

Results go to standard output. If it cannot be written, the command fails with its name. If only the reader of a pipe
has gone (`| head`), it had all that it wanted, and the command ends without an error. Messages go to standard error,
and change nothing: the work and the exit code are the same if nobody can read them.

Both rules stand below the buffers, where text and bytes meet. They raise no OSError, because rich and click give that
of a closed pipe an exit code of their own.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import textwrap
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

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


def _text_over(kind: type[io.FileIO], descriptor: int, now: TextIO | None, own: TextIO | None) -> TextIO:
    """The text layer of a standard stream. One that was replaced, as by a notebook, is returned as it is."""
    if now is not None and (now is not own or not isinstance(now, io.TextIOWrapper)):
        return now
    return io.TextIOWrapper(
        io.BufferedWriter(kind(descriptor, "wb", closefd=False)),
        None if now is None else now.encoding,
        errors="backslashreplace",  # If a terminal lacks a character, its number is printed.
        line_buffering=kind is _Messages or (now is not None and (now.line_buffering or now.write_through)),
    )


def wrapped(line: str, stream: TextIO, indent: str = "") -> str:
    """`line` as lines that fit the terminal, broken at spaces only, all but the first indented; unchanged in a log."""
    if not stream.isatty():
        return line
    width = os.get_terminal_size(stream.fileno()).columns or 80
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
