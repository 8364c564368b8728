"""`pilekit tokenize` and `merge` beside their peers: tokens/s and MB/s of wall and of CPU time.

    python tests/benchmarks/bench_tokenize.py [--shards PATH...] [--tokenizer F] [--megabytes 200] [--rounds 3]

From raw shards to `.bin`:

    bare loop     only zstandard, orjson and fastokens, on one core; writes the ids as 16 bits, and no index
    pilekit       `tokenize_corpus`: table of documents, index, header, and all files flushed to disk, as always
    tokenizers    `encode_batch` of the first megabytes, decoded before, on one core; writes nothing
    datatrove     its JsonlReader and MegatronDocumentTokenizer over the first megabytes, on one core

Two token files into one, on one core:

    cat           of the two `.bin` files, and `sync` of the result
    pilekit       `merge_token_files`: every size, pointer and row of the tables is checked, joined and written

Each measurement is a process of its own, pinned to its cores. Not timed: imports, loading the tokenizer, and a first
run over one megabyte (pilekit: five megabytes). Timed: each worker process loads the tokenizer again. "Start-up" is
pilekit over five megabytes after such a run: its seconds are printed. CPU time is that of all processes and threads.
Without --shards, text is generated; without --tokenizer, one is trained on it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, from any folder
from pilekit import tokenize_corpus
from tests.benchmarks.generating import generated, trained_tokenizer
from tests.benchmarks.harness import Figures, options, show, table, take_turns
from tests.benchmarks.peers import peer_environment, run_peer

PEER = ["datatrove==0.10.1", "humanize==4.17.0", "loguru==0.7.3"]

COMMON = """
import json, os, sys, time
OUT, TOKENIZER, WARM_UP, SLOW, *SHARDS = sys.argv[1:]

def measure(work):
    work([WARM_UP], OUT + "/warm-up")
    started, used = time.perf_counter(), sum(os.times()[:4])
    amount = work(SHARDS, OUT + "/all")
    seconds, cpu_seconds = time.perf_counter() - started, sum(os.times()[:4]) - used
    print(json.dumps({"amount": amount, "seconds": seconds, "cpu_seconds": cpu_seconds}))
"""

BARE = """
import fastokens, numpy, orjson, zstandard
tokenizer = fastokens.Tokenizer.from_file(TOKENIZER)

def work(shards, out):
    amount = 0
    with open(out, "wb") as written:
        for shard in shards:
            rest = b""
            with open(shard, "rb") as file:
                frames = zstandard.ZstdDecompressor(max_window_size=1 << 31)
                text = frames.stream_reader(file, read_across_frames=True)
                while piece := text.read(2 << 20):
                    lines = (rest + piece).split(b"\\n")
                    rest = lines.pop()
                    texts = [orjson.loads(line)["text"] for line in lines]
                    ids, offsets = tokenizer.encode_batch_flat(texts, split_special_tokens=True)
                    ids = numpy.frombuffer(ids, numpy.uint32)
                    written.write(ids.astype(numpy.uint16).data)
                    amount += len(ids)
    return amount

measure(work)
"""

PILEKIT = """
from pilekit import load_tokenizer, tokenize_corpus
tokenizer = load_tokenizer(TOKENIZER)

def work(shards, out):
    # Two shards to warm up, so that the process from which workers are forked has its imports.
    options = {"jobs": len(os.sched_getaffinity(0))} if WARM_UP in shards else {}
    return tokenize_corpus([WARM_UP, SLOW] if options else shards, out, tokenizer, **options).summary["tokens"]

measure(work)
"""

REFERENCE = """
import tokenizers
from pilekit import read
os.environ["TOKENIZERS_PARALLELISM"] = "false"
tokenizer = tokenizers.Tokenizer.from_file(TOKENIZER)
tokenizer.encode_special_tokens = True
with read(SLOW) as batches:
    texts = [text for batch in batches for text in batch.texts]
measure(lambda shards, out: sum(len(one.ids) for one in tokenizer.encode_batch(texts, add_special_tokens=False)))
"""


DATATROVE = """
from pathlib import Path
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import MegatronDocumentTokenizer
os.environ["TOKENIZERS_PARALLELISM"] = "false"

def work(shards, out):
    path = Path(WARM_UP if shards == [WARM_UP] else SLOW)
    documents = JsonlReader(str(path.parent), glob_pattern=path.name, compression="zstd")()
    for _ in MegatronDocumentTokenizer(out, "tokens", TOKENIZER, eos_token=None)(documents) or ():
        pass
    return sum(os.path.getsize(path) for path in Path(out).glob("*.bin")) // 2

measure(work)
"""

CAT = """
import subprocess
def work(prefixes, out):
    bins = [prefix + "_text_document.bin" for prefix in prefixes]
    with open(out, "wb") as file:
        subprocess.run(["cat", *bins], stdout=file, check=True)
        os.fsync(file.fileno())
    return os.path.getsize(out)

measure(work)
"""

MERGE = """
from pilekit import merge_token_files
def work(prefixes, out):
    return merge_token_files(prefixes, out).summary["tokens"] * 2

measure(work)
"""


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, megabytes=(200, "text to generate"))
    parser.add_argument("--shards", type=Path, nargs="+", help="tokenize these .jsonl.zst files instead")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json (default: trained on the first shard)")
    chosen = parser.parse_args()
    size = chosen.megabytes << 20
    shards = chosen.shards or [
        generated(f"tokenize-{chosen.megabytes}-{number}", size, 60 + number) for number in (0, 1)
    ]
    warm_up, slow = generated("tokenize-warm-up", 1 << 20, 62), generated("tokenize-slow", 4 << 20, 63)
    datatrove = peer_environment("datatrove-tokens", PEER, ["--no-deps"], on_top=True)
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-", dir=chosen.shards and Path.cwd()) as folder:
        tokenizer = chosen.tokenizer or trained_tokenizer(shards[0], Path(folder) / "tokenizer.json")

        def run(source: str, shards: list[Path], on: int, python: Path = Path(sys.executable)) -> Figures:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                environment = {"RAYON_NUM_THREADS": "1"}
                arguments = (out, tokenizer, warm_up, slow, *(path.resolve() for path in shards))
                figures: Figures = run_peer(
                    python, COMMON + source, *arguments, environment=environment, cores=cores[:on]
                )
                return figures

        contestants = {
            "bare loop": partial(run, BARE, shards, 1),
            "pilekit, one core": partial(run, PILEKIT, shards, 1),
            "tokenizers": partial(run, REFERENCE, shards[:1], 1),
            "datatrove": partial(run, DATATROVE, shards[:1], 1, datatrove),
        }
        if len(cores) > 1:
            contestants["pilekit, two cores, one shard"] = partial(run, PILEKIT, shards[:1], 2)
            contestants["pilekit, two cores, all shards"] = partial(run, PILEKIT, shards, 2)
            contestants["pilekit, two cores, start-up"] = partial(run, PILEKIT, [warm_up], 2)
        measured = take_turns(contestants, chosen.rounds)
        halves = [Path(folder) / name for name in ("a", "b")]
        for half, shard in zip(halves, shards, strict=False):
            tokenize_corpus(shard, half, tokenizer)
        warm_up = halves[0]
        merged = take_turns(
            {"cat": partial(run, CAT, halves * 8, 1), "merge": partial(run, MERGE, halves * 8, 1)}, chosen.rounds
        )
    seconds = {"seconds": lambda rounds: f"{min(figures['seconds'] for figures in rounds):.2f}"}
    tables = [table("", measured, "bare loop", unit="M tokens", extra=seconds), table("", merged, "cat")]
    show(chosen, measured | merged, tables)


if __name__ == "__main__":
    main()
