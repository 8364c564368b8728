"""`pilekit demo`: the whole way on one small corpus, each step a command that a newcomer can repeat.

The corpus is made from what this Python brought along, so nothing is downloaded. Then every step is printed as it would
be typed and run exactly so, in a process of its own: what is shown is what anyone would get.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, Popen

import click
from rich import box
from rich.console import Console
from rich.table import Table

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.header import write_header
from pilekit.assemble import demo_corpus
from pilekit.errors import PilekitError, visible

# A model of 2 million parameters, which takes a higher rate than larger ones do.
CONFIG = """\
[data]
path = {corpus}
manifest = "demo"
tokenizer = {tokenizer}
seq_len = 512

[model]
preset = "pythia-14m"

[train]
steps = 120
global_batch_size = 8
micro_batch_size = 4

[parallel]
zero = 2

[optimizer]
lr = 3e-3

[schedule]
kind = "cosine"
warmup = 15
min_lr = 1e-4
"""

# Prints one JSON line per optimizer step: {"step": 0, "rows": [sha256 of each row that this rank gets]}.
STEPS = """\
import hashlib
import json
from itertools import islice

from pilekit import PileStream

# Its place among the ranks it takes from RANK and WORLD_SIZE. Rows of a step over all ranks, rows of a batch: so one
# rank makes a step of four batches, two ranks make it of two batches each.
stream = PileStream({corpus}, tokenizer={tokenizer}, seq_len=512, global_batch_size=16, batch_size=4)
batches = iter(stream)
for step in range(6):
    rows = [row for batch in islice(batches, stream.grad_accum) for row in batch["input_ids"]]
    hashes = [hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in rows]
    print(json.dumps({{"step": step, "rows": hashes}}), flush=True)
"""


def run(*arguments: str, expected: int = 0) -> None:
    """Print `$ pilekit ARGUMENTS` and run it, its output going where ours goes; it must end with exit code `expected`.

    Raises PilekitError if it does not.
    """
    click.echo(f"\n$ {visible(shlex.join(('pilekit', *arguments)))}")
    sys.stdout.flush()
    # -P: as with the installed command, a file in the current folder is no module of ours.
    code = subprocess.call([sys.executable, "-P", "-m", "pilekit.cli.main", *arguments])
    if code != expected:
        raise PilekitError(f"the demo stopped: `pilekit {arguments[0]}` ended with exit code {code}, not {expected}")


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
    generated arithmetic. They are written anew in frames that can be sought, and verified, as is a copy with one wrong
    bit; copies and near-duplicates are removed, and two shown. Then a tokenizer is trained on them, they are counted
    and streamed as packed batches, by one rank and by two, which make the same steps; and a small model is trained for
    a minute by two ranks and scored in bits per byte, before and after, which is compared and drawn. Takes two to three
    minutes and no network; run again, it keeps the corpus, the models and the scores that are there.

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
    reframed, damaged = out / "reframed", out / "damaged" / "00.jsonl.zst"
    run("reframe", f"{corpus}", "--out", f"{reframed}")
    run("verify", f"{reframed}", "--manifest", "demo")
    _damage(reframed / "train" / damaged.name, damaged)
    run("verify", f"{damaged}", "--manifest", "demo", expected=1)
    unique = f"{out / 'unique'}"
    run("dedup", f"{train}", "--manifest", "demo", "--out", unique)
    run("duplicates", unique, "--min-similarity", "0.9", "-n", "2")
    run("train-tokenizer", f"{train}", "--vocab-size", "4096", "--out", f"{tokenizer}")
    counting = ("--manifest", "demo", "--tokenizer", f"{tokenizer}", "--copies", "--plot", f"{out / 'stats.png'}")
    run("stats", f"{corpus}", *counting)
    run("stream", f"{reframed / 'train'}", "--tokenizer", f"{tokenizer}")
    with write_atomically(out / "steps.py") as file:
        places = {"corpus": json.dumps(f"{reframed / 'train'}"), "tokenizer": json.dumps(f"{tokenizer}")}
        file.write(STEPS.format(**places).encode())
    _compare_steps(*_steps(out / "steps.py", [(0, 1), (0, 2), (1, 2)]))
    with write_atomically(out / "train.toml") as file:
        file.write(CONFIG.format(corpus=json.dumps(f"{train}"), tokenizer=json.dumps(f"{tokenizer}")).encode())
    held_out = (f"{corpus / 'val.jsonl.zst'}", f"{corpus / 'test.jsonl.zst'}", "--manifest", "demo")
    one_step = ("--set", "train.steps=1", "--set", "schedule.warmup=1")
    scores = [out / "before" / "bpb", out / "after" / "bpb"]
    for score, changes in zip(scores, (one_step, ()), strict=True):
        run("train", f"{out / 'train.toml'}", *changes, "--out", f"{score.parent}", "--nproc-per-node", "2")
        plot = f"{score.parent / 'bpb.png'}"
        run("bpb", f"{score.parent / 'model'}", *held_out, "--out", f"{score}", "--plot", plot)
    run("bpb", "--compare", *map(str, scores), "--plot", f"{out / 'gain.png'}")
    _check_fallen(*(score / "result.json" for score in scores))
    click.echo(f"\nEverything is in {visible(str(out))}; take any command from above and change it.")


def _damage(shard: Path, copy: Path) -> None:
    """Write a copy of `shard` whose middle byte has one bit wrong, as a bad disk or a bad line leaves it."""
    stored = bytearray(shard.read_bytes())
    middle = len(stored) // 2
    stored[middle] ^= 1
    # The header keeps a search for shards out of this folder.
    write_header(copy.parent, kind="damaged copy", parameters={"byte": middle, "bit": 0}, inputs={"shard": str(shard)})
    with write_atomically(copy) as file:
        file.write(stored)
    click.echo(f"\n{visible(str(copy))}: a copy of {visible(str(shard))} with one bit of byte {middle:,} flipped")


def _steps(script: Path, ranks: Sequence[tuple[int, int]]) -> list[list[list[str]]]:
    """The rows' hashes of each step, as `script` prints them when it runs as each (rank, world size), all at once.

    Raises PilekitError if one of them fails.
    """
    click.echo()
    for rank, world in ranks:
        click.echo(f"$ RANK={rank} WORLD_SIZE={world} {visible(shlex.join(('python', f'{script}')))}")
    processes = [
        Popen(
            [sys.executable, "-P", f"{script}"],
            env={**os.environ, "RANK": f"{rank}", "WORLD_SIZE": f"{world}"},
            stdout=PIPE,
        )
        for rank, world in ranks
    ]
    try:
        printed = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for (rank, world), process in zip(ranks, processes, strict=True):
        if process.returncode:
            raise PilekitError(f"the demo stopped: rank {rank} of {world} ended with exit code {process.returncode}")
    return [[json.loads(line)["rows"] for line in output.splitlines()] for output in printed]


def _compare_steps(alone: list[list[str]], *ranks: list[list[str]]) -> None:
    """Print a hash of each step's rows as one rank makes them and as several do together; they must be the same."""
    title = f"Optimizer steps by 1 rank and by {len(ranks)}, each as a hash of all its rows"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("step", justify="right")
    for name in ("1 rank", "rows", f"{len(ranks)} ranks", "rows"):
        table.add_column(name, justify="right" if name == "rows" else "left")
    table.add_column("")
    differing = []
    for step, (whole, *parts) in enumerate(zip(alone, *ranks, strict=True)):
        # Who makes a row decides when it comes, so a step is its rows without their order.
        together = [row for part in parts for row in part]
        one, other = (hashlib.sha256("".join(sorted(rows)).encode()).hexdigest()[:16] for rows in (whole, together))
        shares = " + ".join(f"{len(part)}" for part in parts)
        table.add_row(f"{step}", one, f"{len(whole)}", other, shares, "equal" if one == other else "different")
        if one != other:
            differing.append(f"{step}")
    click.echo()
    Console().print(table)
    if differing:
        raise PilekitError(f"{len(ranks)} ranks make other steps than one: {', '.join(differing)}")


def _check_fallen(before: Path, after: Path) -> None:
    """Raise PilekitError unless bits per byte have fallen in every subset."""
    first, last = (json.loads(path.read_bytes())["subsets"] for path in (before, after))
    if risen := [name for name, score in first.items() if last[name]["bpb"] >= score["bpb"]]:
        raise PilekitError(
            f"training did not help with {visible(', '.join(risen), 200)}; look at {visible(str(after))}"
        )
