"""`pilekit`: the group of commands, and the one place where errors become exit codes.

Commands load on use, so `pilekit --help` starts in well under 0.3 s. The table below holds each command's one-line
help; a command's module is imported only when the command runs. Exit codes: 0 done, 1 failed with one clear line (a
traceback only under `--debug`), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import signal
import sys
import time
import traceback
from typing import NoReturn

import click

from pilekit.cli.standard_streams import flush_standard_output, prepare_standard_streams
from pilekit.display.wrong_names import command_name
from pilekit.errors import AlreadyReported, PilekitError, RankLost, is_out_of_memory, visible
from pilekit.version import __version__

GROUPS = {
    "Look at a corpus; begin with stats and head": {
        "stats": "Count documents, bytes and tokens per subset.",
        "head": "Print the first documents, as text or JSON lines.",
        "sample": "Print random documents, as text or JSON lines.",
        "grep": "Print or count the documents in which a pattern is found.",
        "count": "Count how often phrases occur, and in how many documents.",
        "trace": "Show the passages of texts that stand in a corpus.",
        "show": "Print one document of a shard.",
        "explore": "Browse documents, copies, tokens and bits in a local page.",
    },
    "Trust it, and reach any document": {
        "index": "Index shards: random access, and counts in an instant.",
        "verify": "Check frames, lines, labels and sums, and name each damage.",
        "reframe": "Rewrite shards in small frames with sums, for random access.",
    },
    "Make a cleaner one; dedup is the usual first step": {
        "select": "Write part of a corpus: subsets, a sample, a match.",
        "assemble": "Build a corpus from sources: epochs, shards, a hold-out.",
        "clean": "Drop documents by quality or language, hide addresses.",
        "dedup": "Remove copies and near-duplicates, with a proof for each.",
        "duplicates": "Show removed documents beside the kept ones, word by word.",
        "decontaminate": "Cut out the text of evaluations, with a proof for each cut.",
        "substrings": "Cut out the passages that an earlier document has.",
    },
    "Turn it into tokens; stream shows what training sees": {
        "train-tokenizer": "Train a byte-level BPE tokenizer on a sample of a corpus.",
        "tokenize": "Write token files for Megatron, GPT-NeoX and others.",
        "merge": "Join token files, or write them in another format.",
        "stream": "Pack raw shards into training batches and show a few.",
    },
    "Train and measure models": {
        "train": "Train a language model straight from raw shards.",
        "bpb": "Score a model in bits per byte, per subset.",
        "memorised": "Count the sequences that a model continues word for word.",
        "generate": "Continue prompts, or the beginnings of documents.",
        "embed": "Write a vector for each document, and find near ones.",
        "mix": "Choose the mixture of subsets from small runs.",
        "seen": "Tell in which steps a run has seen documents or a text.",
        "prune": "Set a model's smallest weights or heads to 0, or cut them.",
    },
    "Show results on one page": {
        "report": "Show corpora, and results made from them, on one HTML page.",
    },
    "Find out what works here; begin with demo": {
        "doctor": "Check the installed packages, and name the hardware.",
        "demo": "Run everything on a small corpus of text that Python ships.",
    },
}
"""The commands with their one-line helps, grouped by what a person wants to do."""

COMMANDS = {name: help for group in GROUPS.values() for name, help in group.items()}

MODEL_COMMANDS = ("train", "bpb", "memorised", "generate", "embed", "prune", "demo")
"""Commands that multiply matrices."""

MODULES = {
    **dict.fromkeys(("head", "sample"), "look.head_sample"),
    **{name: f"look.{name}" for name in ("grep", "count", "trace", "show", "duplicates", "explore", "report")},
    **{name: f"models.{name}" for name in ("bpb", "embed", "generate", "memorised", "mix", "prune", "seen", "train")},
    **{name: f"tokens.{name}" for name in ("tokenize", "merge", "train-tokenizer")},
}
"""The modules of commands that are not in `pilekit.cli.<name>`."""

RESUMED = (
    *("index", "reframe", "select", "assemble", "dedup", "clean", "decontaminate", "substrings"),
    *("tokenize", "merge", "train", "embed", "demo", "mix"),
)
"""Commands that keep finished work."""

RESUMED_WITH_OUT = ("bpb", "memorised", "count", "trace")
"""Commands that keep finished work if they have `--out`."""

REPORT_SECONDS = 30.0
"""How long a silent rank waits for rank 0 to print the error. The launcher kills all ranks when the first one ends."""


NARROW = 52
"""Click writes help for this many columns where a terminal has fewer, which would break its lines inside words."""


class LazyGroup(click.Group):
    """A click group that knows its commands' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its `command`, or the command of this name if it has several."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in MODEL_COMMANDS:  # NumPy's BLAS, which they do not use, starts a thread for each CPU.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        module = importlib.import_module(f"pilekit.cli.{MODULES.get(cmd_name, cmd_name)}".replace("-", "_"))
        command: click.Command = getattr(module, "command" if hasattr(module, "command") else cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does. The error for an unknown command names the closest commands."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(error.message.rstrip(".") + (command_name(args[0], COMMANDS) or "."), ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help page's tables from the one-line helps, one for each group, importing nothing."""
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
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
      pilekit tokenize data/ --tokenizer 20B_tokenizer.json --out tokens/pile
      pilekit stream 00.jsonl.zst --tokenizer 20B_tokenizer.json
      pilekit train run.toml
      pilekit bpb runs/run/model val.jsonl.zst

    Every command that takes a corpus takes a file, a folder, a glob or a URL; without one it looks in $PILEKIT_DATA, in
    ./data and in the current folder.
    """


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    # `--debug` may also follow the command, where people add it after an error.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    prepare_standard_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # A shell's `&` has Ctrl-C ignored.
        signal.signal(signal.SIGINT, _interrupt)
    try:
        columns = shutil.get_terminal_size().columns
        narrow = columns - 2 if columns < NARROW else None
        code = pilekit.main(args=arguments, standalone_mode=False, terminal_width=narrow)
        with contextlib.suppress(SystemExit):  # A reader that has gone now does not change the exit code.
            sys.stdout.flush()  # An error at Python's own flush, at exit, could not be reported.
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        name = arguments[0]
        option = "--out" if name in RESUMED_WITH_OUT else "--against" if name == "seen" else None
        resumes = name in RESUMED or option in arguments
        again = "begins again; --out would resume" if name in RESUMED_WITH_OUT else "begins again"
        outcome = "resumes" if resumes else again
        click.echo(f"interrupted; the same command {outcome}", err=True)
        sys.exit(130)
    except Exception as error:
        lacks_memory = is_out_of_memory(error)
        if debug or not (lacks_memory or isinstance(error, PilekitError | OSError)):
            raise
        if is_reported_elsewhere(error):
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(REPORT_SECONDS)
        else:
            # Without memory, libraries give no message, the shape of an array, or say that they are not installed.
            message = "memory ran out; free some, or raise its limit" if lacks_memory else visible(error)
            click.echo(f"error: {message}", err=True)
        if isinstance(error, ImportError):  # Python would crash in the library that is half there, as it ends.
            flush_standard_output()
            os._exit(1)
        sys.exit(1)
    finally:  # The exit code is known. Ctrl-C while Python ends would print a traceback or change the code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()  # Or Python would look for cycles among all modules and free them one by one: 0.03 to 0.1 s.


def is_reported_elsewhere(error: Exception) -> bool:
    """Whether another process prints this error: rank 0, or the launcher of a rank of this machine that has ended."""
    environment = os.environ
    if isinstance(error, RankLost) and "TORCHELASTIC_RUN_ID" in environment:
        return environment.get("RANK") != "0" or environment.get("LOCAL_WORLD_SIZE") == environment.get("WORLD_SIZE")
    return isinstance(error, AlreadyReported) and environment.get("RANK", "0") != "0"


def _interrupt(number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A second Ctrl-C would interrupt the cleaning up.
    raise KeyboardInterrupt


def rank_main() -> NoReturn:
    """`main` for a process that may be one rank of many. A failed rank exits at once, without closing connections.

    Closing them could wait for ranks that wait for this rank, before the error is printed.
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
    flush_standard_output()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
