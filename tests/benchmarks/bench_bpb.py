"""`pilekit bpb` beside lm-evaluation-harness: the same model on the same documents, in speed and in memory.

    python tests/benchmarks/bench_bpb.py [--kilobytes 600] [--batch-sizes 1 4 8] [--rounds 2] [--json]
    python tests/benchmarks/bench_bpb.py --gpu [--kilobytes 20000] [--batch-sizes 1 8 32]

The model has the shape of Pythia-14M with its 50,304 rows of vocabulary and 2,048 positions. Its weights are random,
which does not change the speed. The text comes from `$PILEKIT_REAL_CORPUS` (val.jsonl.zst and 20B_tokenizer.json) if
that is set, else it is generated. Documents longer than a tenth of the text are left out, so that none dominates.

Each measurement is a process of its own. They take turns. Not timed: imports, loading model and tokenizer, and a first
pass over a few documents. A batch size is the harness's number of windows. pilekit gets as many tokens (windows x
2,048), and once its default. Memory is the peak resident memory while scoring, above the memory with model and
tokenizer loaded. All totals of negative log-likelihoods must agree to 1e-6, or there is no table. `tokenizing` is its
share of pilekit's time, measured inside.

`--gpu`: the shape of Pythia-160M in bfloat16 on a GPU. Memory is then the peak of tensors on the GPU. Totals must agree
to 1 % there, because the harness rounds each token's loss and each window's sum to bfloat16.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import zstandard

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from tests.benchmarks.bpb.lm_eval_peer import log_likelihoods  # noqa: E402
from tests.benchmarks.generating import pythia_dir, real_or_generated  # noqa: E402
from tests.benchmarks.harness import Figures, Rounds, options, show, table, take_turns  # noqa: E402
from tests.benchmarks.peers import run_peer  # noqa: E402

MAX_LENGTH = 2048
WARM_UP_BYTES = 30_000
HARNESS, PILEKIT = "lm-eval", "pilekit"

SCORE = """
import json, sys, time
import torch
from pilekit import Corpus, load_tokenizer
from pilekit.evaluate.bits_per_byte import score_corpus
from pilekit.evaluate.settings import ScoreSettings
from pilekit.models.causal import load_causal_lm
from pilekit.tokenize import Tokenizer
from tests.benchmarks.bpb.lm_eval_peer import forget_peak, held_memory, peak_memory

model_dir, shard, warm_up, dtype = sys.argv[1:5]
settings = {"batch_tokens": int(sys.argv[5])} if len(sys.argv) > 5 else {}
device = "cuda" if torch.cuda.is_available() else "cpu"
lm, tokenizer = load_causal_lm(model_dir, dtype=getattr(torch, dtype), device=device), load_tokenizer(model_dir)
sum(float(parameter.detach().sum()) for parameter in lm.model.parameters())  # every page of the weights is in
encode, tokenizing = Tokenizer.encode_batch, 0.0

def timed(self, texts):
    global tokenizing
    begin = time.perf_counter()
    try:
        return encode(self, texts)
    finally:
        tokenizing += time.perf_counter() - begin

Tokenizer.encode_batch = timed
model = held_memory()
score_corpus(lm, tokenizer, Corpus(warm_up), ScoreSettings(**settings))
forget_peak()
tokenizing, begin, used = 0.0, time.perf_counter(), time.process_time()
overall = score_corpus(lm, tokenizer, Corpus(shard), ScoreSettings(**settings)).overall
seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - used
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "memory": peak_memory() - model,
                  "tokenizing": tokenizing / seconds, "nll": overall.nll, "amount": overall.tokens}))
"""


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, rounds=2)
    parser.add_argument("--kilobytes", type=int, help="text that is scored (default: 600, on a GPU 20000)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="windows (default: 1 4 8, on a GPU 1 8 32)")
    parser.add_argument("--gpu", action="store_true", help="a model of 160 M parameters in bfloat16, on a GPU")
    chosen = parser.parse_args()
    shape, dtype, kilobytes, sizes = "pythia-14m", "float32", 600, [1, 4, 8]
    if chosen.gpu:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("error: --gpu: PyTorch finds no GPU on this machine")
        shape, dtype, kilobytes, sizes = "pythia-160m", "bfloat16", 20_000, [1, 8, 32]
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        folder = Path(temporary)
        shard, tokenizer = real_or_generated("val.jsonl.zst")
        model_dir = pythia_dir(folder / "model", tokenizer, shape, seq_len=MAX_LENGTH)
        documents = some_documents(shard, (chosen.kilobytes or kilobytes) * 1000)
        found = compare(folder, model_dir, documents, chosen.batch_sizes or sizes, chosen.rounds, dtype)
    extra = {"tokenizing": share_of_tokenizing}
    tables = [
        table(f"{shape}, {dtype}, {windows}", rounds, HARNESS, unit="tokens", scale=1, extra=extra)
        for windows, rounds in found.items()
    ]
    show(chosen, {"shape": shape, "dtype": dtype, "documents": len(documents), "results": found}, tables)


def share_of_tokenizing(rounds: list[Figures]) -> str:
    """The largest share of pilekit's time; empty for the harness, which does not tell it."""
    shares = [figures["tokenizing"] for figures in rounds if "tokenizing" in figures]
    return f"{max(shares):.2%}" if shares else ""


def compare(
    folder: Path, model_dir: Path, documents: Sequence[str], sizes: Sequence[int], rounds: int, dtype: str
) -> dict[str, Rounds]:
    """The figures by number of windows in a batch; pilekit's default stands beside the last."""
    shard, warm_up = write(folder / "documents.jsonl.zst", documents), first(documents, WARM_UP_BYTES)
    warm_up_shard = write(folder / "warm-up.jsonl.zst", warm_up)
    tolerance = 1e-6 if dtype == "float32" else 1e-2
    tokens = 0

    def ours(*batch_tokens: str) -> Figures:
        nonlocal tokens
        arguments: list[str | Path] = [model_dir, shard, warm_up_shard, dtype, *batch_tokens]
        found: Figures = run_peer(Path(sys.executable), SCORE, *arguments, environment={"PYTHONPATH": str(ROOT)})
        tokens = found["amount"]
        return found

    def theirs(size: int) -> Figures:
        found = log_likelihoods(model_dir, documents, batch_size=size, dtype=dtype, warm_up=warm_up, alone=True)
        figures = {name: found[name] for name in ("seconds", "cpu_seconds", "memory")}
        return {"amount": tokens, "nll": -sum(found["log_likelihoods"]), **figures}

    measured: dict[str, Rounds] = {}
    for size in sizes:
        contestants: dict[str, Callable[[], Figures]] = {PILEKIT: partial(ours, str(size * MAX_LENGTH))}
        contestants[HARNESS] = partial(theirs, size)
        if size == sizes[-1]:
            contestants[f"{PILEKIT}, its default batch"] = ours
        measured[f"{size} windows"] = take_turns(contestants, rounds)
    totals = [one["nll"] for of in measured.values() for figures in of.values() for one in figures]
    if max(totals) - min(totals) > tolerance * min(totals):
        raise SystemExit(f"error: the totals differ: {totals}")
    return measured


def some_documents(shard: Path, size: int) -> list[str]:
    """The first documents of `shard` with `size` bytes in all, those longer than a tenth of it left out."""
    from pilekit.shards.read.reader import read

    texts = (text for batch in read(shard) for text in batch.texts)
    return first((text for text in texts if len(text.encode()) <= size // 10), size)


def first(documents: Any, size: int) -> list[str]:
    """Documents until they have `size` bytes in all."""
    taken, total = [], 0
    for text in documents:
        taken.append(text)
        total += len(text.encode())
        if total >= size:
            break
    return taken


def write(path: Path, documents: Sequence[str]) -> Path:
    """A shard with `documents`."""
    lines = (json.dumps({"text": text, "meta": {"pile_set_name": "Pile-CC"}}) for text in documents)
    path.write_bytes(zstandard.compress("".join(line + "\n" for line in lines).encode()))
    return path


if __name__ == "__main__":
    main()
