"""`pilekit demo`: all of pilekit on one small corpus, in commands that a newcomer can repeat.

The corpus is made from text that Python ships, so nothing is downloaded. Every step is printed as a person would type
it and runs in its own process.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import click

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.header import write_header
from pilekit.assemble.demo import write_demo_sources
from pilekit.assemble.demo_story import PHRASE, PROMPT, SUBSET, write_story
from pilekit.cli.display.output import say
from pilekit.errors import PilekitError, visible

# The model has 2 million parameters. Models this small take a higher learning rate than larger ones.
_RUN = """\
tokenizer = {tokenizer}
seq_len = 256

[model]
preset = "pythia-14m"

[train]
steps = 40
global_batch_size = 8
micro_batch_size = 4

[parallel]
zero = 2

[optimizer]
lr = 3e-3

[schedule]
kind = "cosine"
warmup = 5
min_lr = 1e-4
"""

CONFIG = f"""\
[data]
path = {{corpus}}
manifest = "demo"
{_RUN}"""

# A few documents, and a sentence that is read hundreds of times. After the last step the model continues it.
BY_HEART = f"""\
[data]
path = [{{sample}}, {{planted}}]
label = "meta.pile_set_name"
repeats = {{{{ {SUBSET} = 150 }}}}
window = 32
{_RUN}
[log]
samples_every = 40
samples_prompts = ["{PROMPT}"]
"""

# Prints a JSON line per optimizer step: {"step": 0, "rows": [sha256 of each row that this rank gets]}.
STEPS = """\
import hashlib
import json
from itertools import islice

from pilekit import PileStream

# RANK and WORLD_SIZE say which rank this is. A step has 16 rows and a batch has 4. One rank makes four batches for a
# step; two ranks make two each.
stream = PileStream({corpus}, tokenizer={tokenizer}, seq_len=512, global_batch_size=16, batch_size=4)
batches = iter(stream)
for step in range(6):
    rows = [row for batch in islice(batches, stream.grad_accum) for row in batch["input_ids"]]
    hashes = [hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in rows]
    print(json.dumps({{"step": step, "rows": hashes}}), flush=True)
"""


def run(*arguments: str | Path, expected: int = 0, into: Path | None = None) -> None:
    """Print `$ pilekit ARGUMENTS` and run it; PilekitError unless it ends with exit code `expected`.

    into   the file for its output, as `> FILE`
    """
    words = list(map(str, arguments))
    shown = shlex.join(("pilekit", *words)) + (f" > {shlex.quote(str(into))}" if into is not None else "")
    click.echo(f"\n$ {visible(shown)}")
    sys.stdout.flush()
    with nullcontext() if into is None else write_atomically(into) as output:
        # -P: a file in the current folder must not be imported, as with the installed command.
        code = subprocess.call([sys.executable, "-P", "-m", "pilekit.cli.main", *words], stdout=output)
    if code != expected:
        raise PilekitError(f"the demo stopped: `pilekit {words[0]}` ended with exit code {code}, not {expected}")


@click.command()
@click.option(
    "--out",
    default="demo",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the corpus and everything made from it.",
)
def command(out: Path) -> None:
    """Make a small corpus from text that Python ships and run everything on it.

    The corpus is assembled from standard-library source, docstrings, the language reference and generated arithmetic:
    four training shards, a validation and a test shard. The demo reframes and verifies the shards, verifies a copy with
    one wrong bit, removes near-duplicates, and cleans a subset by Gopher's rules. It cuts out the test shard's text and
    repeated passages. It trains a tokenizer, counts the corpus and streams packed batches. One rank and two ranks make
    the same steps. Token files of two halves are merged and streamed. Two ranks train a small model for some seconds.
    Its bits per byte on documents of the validation shard, before and after, are compared and drawn. The model learns a
    sentence by heart: what it writes is traced to the documents that have the sentence, to their copies, and to the
    steps that saw them. The report shows all of this on one page. It takes 2.5 minutes on two cores, and no network. A
    second run keeps the corpus, the models and the scores.

    \b
    Example:
      pilekit demo
      pilekit demo --out /tmp/demo
    """
    sources, corpus, tokenizer = out / "sources", out / "corpus", out / "tokenizer.json"
    train = corpus / "train"
    if out.is_dir() and any(out.iterdir()) and not sources.is_dir():
        raise PilekitError(f"{out} is not empty and holds no demo; name another folder with --out")
    are_new = write_demo_sources(sources)
    say(f"{sources}: {'made from' if are_new else 'kept; it holds'} text that this Python ships")
    demo = ("--manifest", "demo")
    run("assemble", sources / "demo.toml", "--out", corpus)
    reframed, damaged = out / "reframed", out / "damaged" / "00.jsonl.zst"
    run("reframe", corpus, "--out", reframed)
    run("verify", reframed, *demo)
    _damage(reframed / "train" / damaged.name, damaged)
    run("verify", damaged, *demo, expected=1)
    for path, code, name in ((reframed, 0, "verify.json"), (damaged, 1, "verify-damaged.json")):
        run("verify", path, *demo, "--json", expected=code, into=out / name)
    unique = out / "unique"
    run("dedup", train, *demo, "--out", unique)
    run("duplicates", unique, "--min-similarity", "0.9", "-n", "2")
    rules = ("--subsets", "Python Reference", "--rules", "gopher")
    run("clean", train, *demo, *rules, "--out", out / "clean")
    run("decontaminate", train, *demo, "--against", corpus / "test.jsonl.zst", "--out", out / "decontaminated")
    run("substrings", train, *demo, "--dedup", unique, "--out", out / "substrings")
    run("train-tokenizer", train, "--vocab-size", "4096", "--out", tokenizer)
    run("stats", corpus, *demo, "--tokenizer", tokenizer, "--copies", "--plot", out / "stats.png")
    run("stream", reframed / "train", "--tokenizer", tokenizer)
    with write_atomically(out / "steps.py") as file:
        places = {"corpus": json.dumps(f"{reframed / 'train'}"), "tokenizer": json.dumps(f"{tokenizer}")}
        file.write(STEPS.format(**places).encode())
    _compare_steps(out / "steps.py")
    halves = [out / "tokens" / name for name in ("first", "second")]
    for half, numbers in zip(halves, ("[01]", "[23]"), strict=True):
        run("tokenize", f"{train}/0{numbers}.jsonl.zst", "--tokenizer", tokenizer, "--out", half)
    run("merge", *halves, "--out", out / "tokens" / "demo")
    run("stream", out / "tokens" / "demo", "--tokenizer", tokenizer)
    sample, planted, trained = out / "sample", out / "planted", out / "trained"
    run("select", train, *demo, "--subsets", "Github,DM Mathematics", "--sample", "0.01", "--out", sample)
    is_new = write_story(planted)
    click.echo()
    say(f"{planted}: {'made; it holds' if is_new else 'kept; it holds'} a sentence, a copy, and a near-duplicate")
    files = {"corpus": train, "sample": sample, "planted": planted, "tokenizer": tokenizer}
    places = {name: json.dumps(f"{path}") for name, path in files.items()}
    for name, config in (("train.toml", CONFIG), ("by-heart.toml", BY_HEART)):
        with write_atomically(out / name) as file:
            file.write(config.format(**places).encode())
    held_out = (corpus / "val.jsonl.zst", *demo, "--limit", "10")
    scores = [out / "one-step" / "bpb", trained / "bpb"]
    trainings = [("train.toml", "--set", "train.steps=1"), ("by-heart.toml", "--nproc-per-node", "2")]
    for score, (config, *changes) in zip(scores, trainings, strict=True):
        run("train", out / config, *changes, "--out", score.parent)
        run("bpb", score.parent / "model", *held_out, "--out", score, "--plot", score.parent / "bpb.png")
    run("bpb", "--compare", *scores, "--plot", out / "gain.png")
    samples, traces, copies = trained / "samples.jsonl", trained / "traces.parquet", out / "copies"
    click.echo()
    say(f'{samples}: how the trained model continues "{PROMPT}"')
    run("trace", samples, sample, planted, *demo, "--out", traces)
    run("count", "--phrase", PHRASE, corpus, planted, *demo)
    run("dedup", sample, planted, *demo, "--no-write", "--out", copies)
    run("seen", trained, "--trace", traces, "--copies", copies)
    run("report", corpus, out, *demo, "--tokenizer", tokenizer, "--out", out / "report.html")
    click.echo()
    say(f"Everything is in {out}; take any command from above and change it.")


def _damage(shard: Path, copy: Path) -> None:
    """Write a copy of `shard` with one wrong bit in its middle byte, as a bad disk leaves it."""
    stored = bytearray(shard.read_bytes())
    middle = len(stored) // 2
    stored[middle] ^= 1
    # The header keeps this folder out of searches for shards.
    write_header(copy.parent, kind="damaged copy", parameters={"byte": middle, "bit": 0}, inputs={"shard": str(shard)})
    with write_atomically(copy) as file:
        file.write(stored)
    click.echo()
    say(f"{copy}: a copy of {shard} with one bit of byte {middle:,} flipped")


def _compare_steps(script: Path) -> None:
    """Run `script` as one rank and as two, and print a hash of each step's rows. The steps must be equal."""
    places = [(0, 1), (0, 2), (1, 2)]
    click.echo()
    for rank, world in places:
        click.echo(f"$ RANK={rank} WORLD_SIZE={world} {visible(shlex.join(('python', f'{script}')))}")

    def steps_of(place: tuple[int, int]) -> list[list[str]]:
        rank, world = place
        environment = {**os.environ, "RANK": f"{rank}", "WORLD_SIZE": f"{world}"}
        command = [sys.executable, "-P", f"{script}"]
        process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
        if process.returncode:
            raise PilekitError(f"the demo stopped: rank {rank} of {world} ended with exit code {process.returncode}")
        return [json.loads(line)["rows"] for line in process.stdout.splitlines()]

    def digest(rows: list[str]) -> str:
        # The order of the rows within a step depends on the topology, so the rows are sorted first.
        return hashlib.sha256("".join(sorted(rows)).encode()).hexdigest()[:16]

    with ThreadPoolExecutor() as pool:
        steps_of_ranks = list(pool.map(steps_of, places))
    click.echo("\nOptimizer steps by 1 rank and by 2, each as a hash of all its rows")
    for step, (rows, *parts) in enumerate(zip(*steps_of_ranks, strict=True)):
        expected, actual = digest(rows), digest([row for part in parts for row in part])
        sizes = " + ".join(f"{len(part)}" for part in parts)
        if actual != expected:
            raise PilekitError(f"2 ranks make another step {step} than one: {actual} of {sizes} rows, not {expected}")
        click.echo(f"step {step}  {expected} of {len(rows)} rows  {actual} of {sizes} rows  equal")
