"""`pilekit demo`: the whole way on one small corpus, each step a command that a newcomer can repeat.

The corpus is made from what this Python brought along, so nothing is downloaded. Then every step is printed as it would
be typed and run exactly so, in a process of its own: what is shown is what anyone would get.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import click

from pilekit.assemble import demo_corpus
from pilekit.errors import PilekitError, visible


def run(*arguments: str) -> None:
    """Print `$ pilekit ARGUMENTS` and run it, its output going where ours goes."""
    click.echo(f"\n$ {visible(shlex.join(('pilekit', *arguments)))}")
    sys.stdout.flush()
    # -P: as with the installed command, a file in the current folder is no module of ours.
    code = subprocess.call([sys.executable, "-P", "-m", "pilekit.cli.main", *arguments])
    if code:
        raise PilekitError(f"the demo stopped: `pilekit {arguments[0]}` ended with exit code {code}")


@click.command()
@click.option(
    "--out",
    default="demo",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the corpus and what is made from it.",
)
def command(out: Path) -> None:
    """Make a small corpus from what Python ships and run everything on it.

    Four training shards, a validation and a test shard: standard-library source, docstrings, the language reference and
    generated arithmetic. Then a tokenizer is trained on them, they are counted, and streamed as packed batches. Takes a
    minute, needs no network; run again, it keeps the corpus that is there.

    \b
    Example:
      pilekit demo
      pilekit demo --out /tmp/demo
    """
    corpus, train, tokenizer = out / "corpus", out / "corpus" / "train", out / "tokenizer.json"
    if out.is_dir() and any(out.iterdir()) and not corpus.is_dir():
        raise PilekitError(f"{visible(str(out))} is not empty and holds no demo; name another folder with --out")
    made = demo_corpus(corpus)
    click.echo(
        f"{visible(str(corpus))}: {'made from' if made else 'kept; it holds'} text that this Python brought along"
    )
    run("train-tokenizer", f"{train}", "--vocab-size", "4096", "--out", f"{tokenizer}")
    counting = ("--manifest", "demo", "--tokenizer", f"{tokenizer}", "--copies", "--plot", f"{out / 'stats.png'}")
    run("stats", f"{corpus}", *counting)
    run("stream", f"{train}", "--tokenizer", f"{tokenizer}", "--steps", "50")
    click.echo(f"\nEverything is in {visible(str(out))}; take any command from above and change it.")
