"""What weights by step cost: a stream under a schedule beside the same stream in one order of all documents.

    python tests/benchmarks/bench_schedule.py --shard PATH --tokenizer F [--megabytes N] [--subsets K]

The schedule has one entry: the corpus's own shares. So both streams read the same text in the same proportions. It is
that of the shard's K largest subsets, repeated up to N megabytes of JSON lines, and stands in four forms: shards that
mix all subsets in frames of 1 MiB and of 256 KiB, a shard for each subset in frames of 1 MiB, and a token file. Each
contestant is a process on the same core with one tokenizer thread. There are four lanes, so that units are as long as
in a large corpus, and so that a lane fills many windows in a short run. Not timed: the start, and filling the lanes'
first windows. Text counts when its tokens are in a batch. A token file gives ten times as many.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, from any folder
from tests.benchmarks.harness import Figures, options, show, table, take_turns
from tests.benchmarks.peers import run_peer

STREAM = """
import json, sys, time
from itertools import islice
from pilekit import PileStream
SOURCE, TOKENIZER, WEIGHTS, TOKENS = sys.argv[1:5]
settings = {"weights": [(0, json.loads(WEIGHTS))]} if WEIGHTS else {}
stream = PileStream(SOURCE, TOKENIZER, seq_len=2048, batch_size=32, lanes=(2, 2), **settings)

def given():
    return sum(tokens for documents, tokens in stream.state_dict()["counts"]["subsets"].values())

batches = iter(stream)
next(islice(batches, 4 * stream.grid.columns, None))
first, started, used = given(), time.perf_counter(), time.process_time()
while (tokens := given() - first) < int(TOKENS):
    next(islice(batches, 16, None))
seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - used
print(json.dumps({"amount": tokens, "seconds": seconds, "cpu_seconds": cpu_seconds}))
"""


def main() -> None:
    """Make the corpora, let the contestants take turns, and print."""
    parser = options(__doc__, megabytes=(300, "text"), subsets=(5, "subsets"), tokens=(12, "million tokens to give"))
    parser.add_argument("--shard", type=Path, required=True, help="a .jsonl.zst shard in the Pile's format")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        compare(Path(temporary), chosen)


def compare(folder: Path, chosen: argparse.Namespace) -> None:
    """Measure and print, with all files in `folder`."""
    from pilekit import tokenize_corpus
    from pilekit.shards.write.reframe import reframe_corpus

    lines: dict[bytes, str] = {}
    size: Counter[str] = Counter()
    with chosen.shard.open("rb") as file:
        for line in zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(file).readall().splitlines():
            record = orjson.loads(line)
            name = lines[line] = record["meta"]["pile_set_name"]
            size[name] += len(record["text"].encode())
    weights = dict(size.most_common(chosen.subsets))
    kept = [line for line, name in lines.items() if name in weights]
    copies = max(1, (chosen.megabytes << 20) // sum(map(len, kept)))
    for name in weights:
        of_subset = [line for line in kept if lines[line] == name]
        write(folder / "raw" / "by-subset" / f"{name}.jsonl.zst", of_subset * copies)
    write(folder / "raw" / "mixed" / "all.jsonl.zst", kept * copies)
    reframe_corpus(folder / "raw" / "mixed", folder / "mixed, 1 MiB")
    reframe_corpus(folder / "raw" / "mixed", folder / "mixed, 256 KiB", frame_bytes=256 << 10)
    reframe_corpus(folder / "raw" / "by-subset", folder / "a shard a subset")
    tokenize_corpus(folder / "raw" / "mixed", folder / "token file", chosen.tokenizer)
    core = sorted(os.sched_getaffinity(0))[:1]
    environment = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

    def run(source: Path, shares: str) -> Any:
        tokens = chosen.tokens * 10 ** (7 if source.name == "token file" else 6)
        arguments = (source, chosen.tokenizer, shares, tokens)
        return run_peer(Path(sys.executable), STREAM, *arguments, environment=environment, cores=core)

    tables, figures = [], {}
    for form in ("mixed, 1 MiB", "mixed, 256 KiB", "a shard a subset", "token file"):
        contestants: dict[str, Callable[[], Figures]] = {
            "one order": partial(run, folder / form, ""),
            "weights by step": partial(run, folder / form, json.dumps(weights)),
        }
        figures[form] = take_turns(contestants, chosen.rounds)
        tables.append(table(form, figures[form], "one order", unit="M tokens"))
    show(chosen, figures, tables)


def write(path: Path, lines: list[bytes]) -> None:
    """A shard of one frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.compress(b"\n".join(lines) + b"\n"))


if __name__ == "__main__":
    main()
