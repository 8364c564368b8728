"""`pilekit memorised` beside `pilekit bpb` in windows of 64 tokens, and beside generating: the same tokens.

    python tests/benchmarks/bpb/memorised_peer.py [--preset pythia-14m] [--sequences 300] [--batches 1 8 64]

The model has the shape of a Pythia model with random weights. Each document of the shard is exactly 64 tokens, so all
read the same tokens: `bpb` scores all of them, `memorised` the last 32, and `generate` of transformers makes 32 tokens
behind the first 32, so many prompts at a time, greedily and with its cache. Each measurement is a process of its own.
They take turns. Not timed: imports, loading model and tokenizer. `passes` are the best seconds inside forward passes
and losses, or inside `generate`; `process` and `process CPU` those of the whole process, which starts Python, imports
and loads too. On a busy machine set OMP_NUM_THREADS=1 and compare tokens a CPU second.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from tests.benchmarks.bench_bpb import write  # noqa: E402
from tests.benchmarks.generating import pythia_dir, real_or_generated  # noqa: E402
from tests.benchmarks.harness import options, show, table, take_turns  # noqa: E402
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

model_dir, shard, batch = sys.argv[1:4]
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
begin, used = time.perf_counter(), time.process_time()
"""
END = """
seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - used
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "passes": passes, "amount": amount}))
"""
SCRIPTS = {
    MEMORISED: 'amount = 64 * module.memorised(model_dir, shard, manifest="pile").overall.sequences',
    BPB: """
settings = ScoreSettings(max_length=64, prefix="0")
amount = bits_per_byte.score_corpus(lm, tokenizer, Corpus(shard), settings).overall.tokens
""",
    GENERATE: """
rows = torch.tensor([tokenizer.encode(text)[:64] for batch in read(shard) for text in batch.texts])
with torch.no_grad():
    for part in rows.split(int(batch)):
        inputs = part[:, :32]
        mask = torch.ones_like(inputs)
        timed(lm.model.generate)(
            inputs, attention_mask=mask, do_sample=False, min_new_tokens=32, max_new_tokens=32
        )
amount = rows.numel()
""",
}


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, rounds=3, sequences=(300, "documents of 64 tokens"))
    parser.add_argument("--preset", default="pythia-14m", help="the model's shape (default: pythia-14m)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64], help="prompts (default: 1 8 64)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        folder = Path(temporary)
        shard, tokenizer = real_or_generated("val.jsonl.zst")
        model_dir = pythia_dir(folder / "model", tokenizer, chosen.preset, seq_len=2048)
        documents = write(folder / "documents.jsonl.zst", some_sequences(shard, model_dir, chosen.sequences))

        def measured(script: str, batch: int = 0) -> Any:
            begin, used, python = time.perf_counter(), os.times(), Path(sys.executable)
            figures = run_peer(python, script, model_dir, documents, str(batch), environment={"PYTHONPATH": str(ROOT)})
            seconds, cpu = time.perf_counter() - begin, os.times()
            cpu_seconds = cpu.children_user + cpu.children_system - used.children_user - used.children_system
            return {**figures, "process": seconds, "process CPU": cpu_seconds}

        contestants = {name: partial(measured, START + SCRIPTS[name] + END) for name in (MEMORISED, BPB)}
        names = [f"{GENERATE}, {batch} at a time" for batch in chosen.batches]
        for name, batch in zip(names, chosen.batches, strict=True):
            contestants[name] = partial(measured, START + SCRIPTS[GENERATE] + END, batch)
        rounds = take_turns(contestants, chosen.rounds)
    extra = {
        f"{name}, s": lambda rounds, name=name: f"{min(figures[name] for figures in rounds):.2f}"
        for name in ("passes", "process", "process CPU")
    }
    title = f"{chosen.sequences} sequences of 64 tokens, {chosen.preset}, float32"
    show(chosen, {"results": rounds}, [table(title, rounds, names[-1], unit="tokens", scale=1, extra=extra)])


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
