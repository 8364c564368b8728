"""`pilekit memorised` beside generating the same tokens, and beside `pilekit bpb` in windows of 64 tokens.

    python tests/benchmarks/bpb/memorised_peer.py [--sequences 64] [--batches 1 64] [--presets pythia-14m pythia-160m]

A model has the shape of a Pythia model with random weights. Each document of the shard is exactly 64 tokens, so all
read the same tokens: `memorised` scores the last 32, `generate` of transformers makes 32 tokens behind the first 32, so
many prompts at a time, greedily and with its cache, and `bpb` (with `--bpb`) scores all.

Each measurement is a process of its own, of which the better of two runs counts, but for one prompt at a time, which
runs once. They take turns. Not timed: imports, loading model and tokenizer. `time` and `CPU time` are those of
`memorised`, times so much. `passes` are the seconds inside forward passes and losses, or inside `generate`; `process`
and `process CPU` those of the whole process, with its start and all runs. All takes some minutes on two idle cores. On
a busy machine set OMP_NUM_THREADS=1, and read the CPU time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from tests.benchmarks.bench_bpb import write  # noqa: E402
from tests.benchmarks.generating import pythia_dir, real_or_generated  # noqa: E402
from tests.benchmarks.harness import Figures, Rounds, options, show, table, take_turns  # noqa: E402
from tests.benchmarks.peers import run_peer  # noqa: E402

LENGTH = 64
BPB, MEMORISED, GENERATE = "bpb, windows of 64", "memorised", "generate"
START = """
import json, sys, time
from dataclasses import replace
import torch
from pilekit import Corpus, load_tokenizer, read
from pilekit.evaluate import bits_per_byte
from pilekit.exposure import memorised as module
from pilekit.evaluate.settings import ScoreSettings
from pilekit.models.causal import load_causal_lm

model_dir, shard, batch, repeats = sys.argv[1:5]
lm, tokenizer = load_causal_lm(model_dir), load_tokenizer(model_dir)
sum(float(parameter.detach().sum()) for parameter in lm.model.parameters())  # every page of the weights is in
module.load_causal_lm = lambda *_, **__: lm
passes = 0.0

def timed(work):
    def call(*arguments, **options):
        global passes
        begin = time.perf_counter()
        result = work(*arguments, **options)
        passes += time.perf_counter() - begin
        return result
    return call

def timing(scoring_of):
    def scoring(*arguments, **options):
        scoring = scoring_of(*arguments, **options)
        return replace(scoring, numbers_of=timed(scoring.numbers_of))
    return scoring

module.continuation_scoring = timing(module.continuation_scoring)
bits_per_byte.causal_scoring = timing(bits_per_byte.causal_scoring)
"""
END = """
runs = []
for _ in range(int(repeats)):
    passes, begin, used = 0.0, time.perf_counter(), time.process_time()
    amount = work()
    runs.append((time.perf_counter() - begin, time.process_time() - used, passes))
best = dict(zip(("seconds", "cpu_seconds", "passes"), map(min, zip(*runs))))
print(json.dumps({**best, "amount": amount}))
"""
SCRIPTS = {
    MEMORISED: """
def work():
    return 64 * module.memorised(model_dir, shard, manifest="pile").overall.sequences
""",
    BPB: """
settings = ScoreSettings(max_length=64, prefix="0")
def work():
    return bits_per_byte.score_corpus(lm, tokenizer, Corpus(shard), settings).overall.tokens
""",
    GENERATE: """
rows = torch.tensor([tokenizer.encode(text)[:64] for batch in read(shard) for text in batch.texts])
def work():
    with torch.no_grad():
        for part in rows.split(int(batch)):
            inputs = part[:, :32]
            mask = torch.ones_like(inputs)
            timed(lm.model.generate)(
                inputs, attention_mask=mask, do_sample=False, min_new_tokens=32, max_new_tokens=32
            )
    return rows.numel()
""",
}


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, rounds=1, sequences=(64, "documents of 64 tokens"))
    presets = ["pythia-14m", "pythia-160m"]
    parser.add_argument("--presets", nargs="+", default=presets, help=f"shapes (default: {' '.join(presets)})")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64], help="prompts at a time (default: 1 64)")
    parser.add_argument("--bpb", action="store_true", help="beside bpb too")
    chosen = parser.parse_args()
    results, tables = {}, []
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        shard, tokenizer = real_or_generated("val.jsonl.zst")
        for preset in chosen.presets:
            model_dir = pythia_dir(Path(temporary, preset), tokenizer, preset, seq_len=2048)
            texts = some_sequences(shard, model_dir, chosen.sequences)
            documents = write(Path(temporary, f"{preset}.jsonl.zst"), texts)
            results[preset] = rounds = take_turns(contestants_of(model_dir, documents, chosen), chosen.rounds)
            title = f"{len(texts)} sequences of 64 tokens, {preset}, float32"
            tables.append(table(title, rounds, MEMORISED, unit="tokens", scale=1, extra=columns(rounds)))
    show(chosen, {"results": results}, tables)


def contestants_of(model_dir: Path, documents: Path, chosen: argparse.Namespace) -> dict[str, Callable[[], Figures]]:
    """What is measured on a model and a shard of sequences, by name."""

    def measured(name: str, batch: int = 0) -> Figures:
        begin, used, script = time.perf_counter(), os.times(), START + SCRIPTS[name] + END
        arguments = [model_dir, documents, str(batch), "1" if batch == 1 else "2"]
        figures = run_peer(Path(sys.executable), script, *arguments, environment={"PYTHONPATH": str(ROOT)})
        seconds, cpu = time.perf_counter() - begin, os.times()
        cpu_seconds = cpu.children_user + cpu.children_system - used.children_user - used.children_system
        return {**figures, "process": seconds, "process CPU": cpu_seconds}

    contestants: dict[str, Callable[[], Figures]] = {
        name: partial(measured, name) for name in (MEMORISED, *([BPB] if chosen.bpb else []))
    }
    for batch in chosen.batches:
        contestants[f"{GENERATE}, {batch} at a time"] = partial(measured, GENERATE, batch)
    return contestants


def columns(rounds: Rounds) -> dict[str, Callable[[list[Figures]], str]]:
    """Further columns: how many times the time of `memorised` each takes, and seconds."""

    def least(rounds: list[Figures], name: str) -> float:
        return float(min(figures[name] for figures in rounds))

    def times(name: str) -> Callable[[list[Figures]], str]:
        return lambda own: f"{least(own, name) / least(rounds[MEMORISED], name):.2f}"

    def seconds(name: str) -> Callable[[list[Figures]], str]:
        return lambda own: f"{least(own, name):.2f}"

    ratios = {"time": times("seconds"), "CPU time": times("cpu_seconds")}
    return ratios | {f"{name}, s": seconds(name) for name in ("passes", "process", "process CPU")}


def some_sequences(shard: Path, model_dir: Path, count: int) -> list[str]:
    """Texts of exactly 64 tokens: the beginnings of documents."""
    from pilekit import load_tokenizer
    from pilekit.shards.read.reader import read

    tokenizer, taken = load_tokenizer(model_dir), list[str]()
    for batch in read(shard):
        for text in batch.texts:
            start = tokenizer.decode(tokenizer.encode(text)[:LENGTH])
            if len(tokenizer.encode(start)) == LENGTH:
                taken.append(start)
            if len(taken) == count:
                return taken
    return taken


if __name__ == "__main__":
    main()
