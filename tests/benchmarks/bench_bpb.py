"""`pilekit bpb` beside lm-evaluation-harness: the same model on the same documents, in speed and in memory.

    python tests/benchmarks/bench_bpb.py [--kilobytes 600] [--batch-sizes 1 4 8] [--rounds 2] [--json]
    python tests/benchmarks/bench_bpb.py --gpu [--kilobytes 20000] [--batch-sizes 1 8 32]

The model has the shape of Pythia-14M with its 50,304 rows of vocabulary and 2,048 positions. Its weights are random,
which does not change the speed. The text comes from `$PILEKIT_REAL_CORPUS` (val.jsonl.zst and 20B_tokenizer.json) if
that is set, else it is generated. Documents longer than a tenth of the text are left out, so that none dominates.

Each measurement is a process of its own. They take turns. The best speed, the fewest CPU seconds and the most memory of
each count. Not timed: imports, loading model and tokenizer, and a first pass over a few documents. A batch size is the
harness's number of windows. pilekit gets as many tokens (windows x 2,048), and once its default. Memory is the peak
resident memory while scoring, above the memory with model and tokenizer loaded. All totals of negative log-likelihoods
must agree to 1e-6, or there is no table. `tokenizing` is its share of pilekit's time, measured inside.

`--gpu`: the shape of Pythia-160M in bfloat16 on a GPU. Memory is then the peak of tensors on the GPU. Totals must agree
to 1 % there, because the harness rounds each token's loss and each window's sum to bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from tests.benchmarks.generating import write_shard  # noqa: E402
from tests.benchmarks.lm_eval_peer import log_likelihoods  # noqa: E402
from tests.benchmarks.peers import BENCH, run_peer  # noqa: E402

MAX_LENGTH = 2048
WARM_UP_BYTES = 30_000
HARNESS, PILEKIT = "lm-eval", "pilekit"
SHAPES = {"pythia-14m": (128, 6, 4), "pythia-160m": (768, 12, 12)}
"""Width, layers, heads."""

SCORE = """
import json, sys, time
import torch
from pilekit import Corpus, load_tokenizer
from pilekit.evaluate.bits_per_byte import score_corpus
from pilekit.evaluate.model.causal import load_causal_lm
from pilekit.tokenize import Tokenizer
from tests.benchmarks.lm_eval_peer import forget_peak, held_memory, peak_memory

model_dir, shard, warm_up, dtype = sys.argv[1:5]
settings = {"batch_tokens": int(sys.argv[5])} if len(sys.argv) > 5 else {}
lm, tokenizer = load_causal_lm(model_dir, dtype=getattr(torch, dtype)), load_tokenizer(model_dir)
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
score_corpus(lm, tokenizer, Corpus(warm_up), **settings)
forget_peak()
tokenizing, begin, used = 0.0, time.perf_counter(), time.process_time()
overall = score_corpus(lm, tokenizer, Corpus(shard), **settings).overall
seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - used
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "memory": peak_memory() - model,
                  "tokenizing": tokenizing / seconds, "nll": overall.nll, "tokens": overall.tokens,
                  "bytes": overall.bytes}))
"""


@dataclass
class Measured:
    """The results of one contestant at one batch size (None: its default), over all rounds."""

    contestant: str
    batch_size: int | None
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    memory: int = 0
    tokenizing: float | None = None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kilobytes", type=int, help="text that is scored (default: 600, on a GPU 20000)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="windows (default: 1 4 8, on a GPU 1 8 32)")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each (default: 2)")
    parser.add_argument("--gpu", action="store_true", help="a model of 160 M parameters in bfloat16, on a GPU")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args()
    shape, dtype, kilobytes, batch_sizes = "pythia-14m", "float32", 600, [1, 4, 8]
    if chosen.gpu:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("error: --gpu: PyTorch finds no GPU on this machine")
        shape, dtype, kilobytes, batch_sizes = "pythia-160m", "bfloat16", 20_000, [1, 8, 32]
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        folder = Path(temporary)
        shard, tokenizer = source("val.jsonl.zst")
        model_dir = pythia(folder / "model", tokenizer, shape)
        documents = some_documents(shard, (chosen.kilobytes or kilobytes) * 1000)
        results, facts = compare(
            folder, model_dir, documents, chosen.batch_sizes or batch_sizes, chosen.rounds, dtype=dtype
        )
    figures = [
        {
            "name": result.contestant,
            "batch_size": result.batch_size,
            "tokens_per_second": [round(facts["tokens"] / seconds) for seconds in result.seconds],
            "cpu_seconds": result.cpu_seconds,
            "memory": result.memory,
            "tokenizing": result.tokenizing,
        }
        for result in results
    ]
    facts = {"shape": shape, "dtype": dtype, "documents": len(documents), **facts}
    if not chosen.json:
        print(table(results, facts))
    print(json.dumps({**facts, "results": figures}, indent=2 if chosen.json else None))


def compare(
    folder: Path, model_dir: Path, documents: Sequence[str], batch_sizes: Sequence[int], rounds: int, *, dtype: str
) -> tuple[list[Measured], dict[str, Any]]:
    """Let the contestants take turns; also returns the (tokens, bytes, nll) on which all agree."""
    shard, warm_up = write(folder / "documents.jsonl.zst", documents), first(documents, WARM_UP_BYTES)
    tolerance = 1e-6 if dtype == "float32" else 1e-2
    warm_up_shard = write(folder / "warm-up.jsonl.zst", warm_up)
    results = [Measured(name, size) for size in batch_sizes for name in (HARNESS, PILEKIT)] + [Measured(PILEKIT, None)]
    facts: dict[str, Any] = {}
    totals: dict[str, float] = {}
    for number in range(rounds):
        for result in results:
            print(
                f"round {number + 1} of {rounds}: {result.contestant} at {result.batch_size or 'its default'}      ",
                end="\r",
                file=sys.stderr,
            )
            if result.contestant == HARNESS:
                assert result.batch_size is not None
                measured = log_likelihoods(
                    model_dir, documents, batch_size=result.batch_size, dtype=dtype, warm_up=warm_up
                )
                nll = -sum(measured["log_likelihoods"])
            else:
                tokens = [] if result.batch_size is None else [str(result.batch_size * MAX_LENGTH)]
                measured = run_peer(
                    Path(sys.executable),
                    SCORE,
                    model_dir,
                    shard,
                    warm_up_shard,
                    dtype,
                    *tokens,
                    environment={"PYTHONPATH": str(ROOT)},
                )
                nll = measured["nll"]
                result.tokenizing = max(result.tokenizing or 0.0, measured["tokenizing"])
                facts = {key: measured[key] for key in ("tokens", "bytes", "nll")}
            totals[f"{result.contestant} at {result.batch_size}"] = nll
            if max(totals.values()) - min(totals.values()) > tolerance * nll:
                raise SystemExit(f"error: the totals differ: {totals}")
            result.seconds.append(measured["seconds"])
            result.cpu_seconds.append(measured["cpu_seconds"])
            result.memory = max(result.memory, measured["memory"])
    return results, facts


def table(results: Sequence[Measured], facts: dict[str, Any]) -> str:
    """Best speed and most memory; pilekit's default beside the harness's fastest, others beside their batch size."""
    harness = {result.batch_size: result for result in results if result.contestant == HARNESS}
    fastest = min(harness.values(), key=lambda result: min(result.seconds))
    lines = [
        f"{facts['shape']}, {facts['dtype']}: {facts['documents']} documents, {facts['bytes'] / 1e3:,.0f} kB, "
        f"{facts['tokens']:,} tokens",
        f"{'':10}{'windows':>10}{'tokens/s':>10}{'× lm-eval':>11}{'CPU s':>8}{'memory MB':>11}{'× lm-eval':>11}"
        f"{'tokenizing':>12}",
    ]
    for result in results:
        other = harness.get(result.batch_size, fastest)  # the default stands beside the harness at its fastest
        speed, memory = min(other.seconds) / min(result.seconds), result.memory / other.memory
        lines.append(
            f"{result.contestant:10}{result.batch_size or 'default':>10}{facts['tokens'] / min(result.seconds):10,.0f}"
            f"{speed:11.2f}{min(result.cpu_seconds):8.1f}{result.memory / 1e6:11,.0f}{memory:11.3f}"
            + ("" if result.tokenizing is None else f"{result.tokenizing:12.2%}")
        )
    return "\n".join(lines)


def source(name: str) -> tuple[Path, Path]:
    """(shard, tokenizer.json): the real shard of this name, if real text is given; else both are made."""
    real = os.environ.get("PILEKIT_REAL_CORPUS")
    if real:
        return Path(real) / name, Path(real) / "20B_tokenizer.json"
    shard, tokenizer = BENCH / "data" / "generated-text.jsonl.zst", BENCH / "data" / "tokenizer-16k.json"
    if not shard.exists():
        write_shard(shard, 10_000_000, seed=40)
    if not tokenizer.exists():
        from pilekit import Corpus
        from pilekit.tokenize import train_tokenizer

        train_tokenizer(Corpus(shard), 16_000, tokenizer, sample_bytes=10_000_000)
    return shard, tokenizer


def pythia(folder: Path, tokenizer: Path, shape: str) -> Path:
    """A model_dir: a model of `SHAPES` with the published shape and random weights, and `tokenizer`."""
    import torch
    from transformers import AutoModelForCausalLM, GPTNeoXConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    width, layers, heads = SHAPES[shape]
    config = GPTNeoXConfig(
        vocab_size=50304,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=MAX_LENGTH,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


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
