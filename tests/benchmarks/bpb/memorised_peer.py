"""`pilekit memorised` beside `pilekit bpb` in windows of 64 tokens, and beside generating: the same tokens.

    python tests/benchmarks/bpb/memorised_peer.py [--sequences 300] [--rounds 3] [--json]

The model has the shape of Pythia-14M with random weights. Each document of the shard is exactly 64 tokens, so all three
read the same tokens: `bpb` scores all of them, `memorised` the last 32, and `generate` of transformers makes 32 tokens
behind the first 32, 64 prompts at a time, greedily and with its cache. Each measurement is a process of its own. They
take turns. Not timed: imports, loading model and tokenizer.
"""

from __future__ import annotations

import sys
import tempfile
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
import torch
from pilekit import Corpus, load_tokenizer, read
from pilekit.exposure import memorised as module
from pilekit.evaluate.bits_per_byte import score_corpus
from pilekit.evaluate.settings import ScoreSettings
from pilekit.models.causal import load_causal_lm

model_dir, shard = sys.argv[1:3]
lm, tokenizer = load_causal_lm(model_dir), load_tokenizer(model_dir)
sum(float(parameter.detach().sum()) for parameter in lm.model.parameters())  # every page of the weights is in
module.load_causal_lm = lambda *_, **__: lm
begin, used = time.perf_counter(), time.process_time()
"""
END = """
seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - used
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "amount": amount}))
"""
SCRIPTS = {
    MEMORISED: 'amount = 64 * module.memorised(model_dir, shard, manifest="pile").overall.sequences',
    BPB: 'amount = score_corpus(lm, tokenizer, Corpus(shard), ScoreSettings(max_length=64, prefix="0")).overall.tokens',
    GENERATE: """
rows = torch.tensor([tokenizer.encode(text)[:64] for batch in read(shard) for text in batch.texts])
with torch.no_grad():
    for part in rows.split(64):
        inputs = part[:, :32]
        mask = torch.ones_like(inputs)
        lm.model.generate(inputs, attention_mask=mask, do_sample=False, min_new_tokens=32, max_new_tokens=32)
amount = rows.numel()
""",
}


def main() -> None:
    """Measure and print."""
    chosen = options(__doc__, rounds=3, sequences=(300, "documents of 64 tokens")).parse_args()
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        folder = Path(temporary)
        shard, tokenizer = real_or_generated("val.jsonl.zst")
        model_dir = pythia_dir(folder / "model", tokenizer, "pythia-14m", seq_len=2048)
        documents = write(folder / "documents.jsonl.zst", some_sequences(shard, model_dir, chosen.sequences))

        def measured(script: str) -> Any:
            environment = {"PYTHONPATH": str(ROOT)}
            return run_peer(Path(sys.executable), START + script + END, model_dir, documents, environment=environment)

        rounds = take_turns({name: partial(measured, script) for name, script in SCRIPTS.items()}, chosen.rounds)
    title = f"{chosen.sequences} sequences of 64 tokens, pythia-14m, float32"
    show(chosen, {"results": rounds}, [table(title, rounds, GENERATE, unit="tokens", scale=1)])


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
