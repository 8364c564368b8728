"""`pilekit`: the group of commands, and the one place where errors become exit codes.

Commands load on use, so `pilekit --help` starts in well under 0.3 s: the table below holds each command's one-line
help, and its module is imported only when the command itself runs. Exit codes: 0 done, 1 failed with one clear line (a
traceback only under `--debug`), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pilekit import __version__
from pilekit.errors import PilekitError, ToldElsewhere, visible

if TYPE_CHECKING:
    from typing_extensions import Buffer

COMMANDS = {
    "stats": "Count documents, bytes and tokens per subset.",
    "index": "Index shards: random access, and counts in an instant.",
    "show": "Print one document of a shard.",
    "verify": "Check frames, lines, labels and sums; say where they are wrong.",
    "reframe": "Write shards anew in checksummed frames that can be sought.",
    "select": "Write part of a corpus: subsets, a sample, a match.",
    "dedup": "Remove copies and near-duplicates, with a proof for each.",
    "duplicates": "Show removed documents beside the kept ones, word by word.",
    "stream": "Pack raw shards into training batches and show a few.",
    "train": "Train a language model straight from raw shards.",
    "bpb": "Score a model in bits per byte, per subset.",
    "train-tokenizer": "Train a byte-level BPE tokenizer on a sample of a corpus.",
    "demo": "Make a small corpus from what Python ships and run everything on it.",
}


TELLING_SECONDS = 30.0
"""So long a rank waits for the one that tells what went wrong: whoever starts ranks kills all when the first ends."""


class LazyGroup(click.Group):
    """A click group that knows its commands' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import `pilekit.cli.<name>` and return its `command`."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"pilekit.cli.{cmd_name.replace('-', '_')}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader of the output that has gone (`| head`) is no failure, as it is to click."""
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()  # Later, what is wrong with it could not be told any more.
            return result
        except BrokenPipeError:
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help page's table from the one-line helps, importing nothing."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pilekit")
@click.option("--debug", is_flag=True, help="Show the whole traceback when something fails.")
def pilekit(debug: bool) -> None:
    """Trust, cut, deduplicate, stream and train on Pile-format corpora (*.jsonl.zst); score models in bits per byte.

    \b
    Example:
      pilekit stats 00.jsonl.zst
      pilekit verify data/ --sums SHA256SUMS
      pilekit select data/ --subsets ArXiv,GitHub --out papers-and-code
      pilekit dedup data/ --subsets ArXiv,GitHub --out unique
      pilekit stream 00.jsonl.zst --tokenizer 20B_tokenizer.json
      pilekit train run.toml
      pilekit bpb runs/run/model val.jsonl.zst

    Every command that takes a corpus takes a file, a folder, a glob or a URL; without one it looks in $PILEKIT_DATA, in
    ./data and in the current folder.
    """


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    # Taken out here, so that it may stand behind the command too, where one adds it when something went wrong.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    # A terminal that lacks a character gets its number, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _named(sys.stdout)
    try:
        code = pilekit.main(args=arguments, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except (PilekitError, OSError) as error:
        if debug:
            raise
        if isinstance(error, ToldElsewhere) and os.environ.get("RANK", "0") != "0":
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(TELLING_SECONDS)
        else:
            click.echo(f"error: {visible(str(error))}", err=True)
        sys.exit(1)


def rank_main() -> NoReturn:
    """The same for a process that may be one rank of many: a rank that fails among others leaves without taking leave.

    Closing its connections in good order can mean waiting for ranks that wait for it, while nobody has been told yet.
    """
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code == 0 or os.environ.get("WORLD_SIZE", "1") == "1":
            raise
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


class _StandardOutput(io.FileIO):
    """Standard output whose failures say that it is what failed; that nobody reads it is for `LazyGroup`."""

    def write(self, data: Buffer) -> int:
        try:
            return super().write(data) if memoryview(data).nbytes else 0  # click tries what it is with nothing
        except OSError as error:
            # Point it away so that Python's own flush at exit does not complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            raise PilekitError(f"standard output: cannot be written: {error.strerror}") from error


def _named(stdout: io.TextIOWrapper) -> io.TextIOWrapper:
    """The same output through `_StandardOutput`, if it is a file, a pipe or a terminal."""
    unbuffered = isinstance(stdout.buffer, io.FileIO)  # as PYTHONUNBUFFERED asks
    if not unbuffered and not isinstance(getattr(stdout.buffer, "raw", None), io.FileIO):
        return stdout
    file: Any = _StandardOutput(stdout.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(
        file if unbuffered else io.BufferedWriter(file),
        stdout.encoding,
        stdout.errors,
        line_buffering=stdout.line_buffering,
        write_through=unbuffered,
    )


if __name__ == "__main__":
    main()
