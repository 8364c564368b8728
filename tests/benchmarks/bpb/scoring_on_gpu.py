"""How fast `pilekit bpb` scores on a GPU in bf16: tokens/s, MFU, and the share of time in which the GPU waits.

    python tests/benchmarks/bpb/scoring_on_gpu.py FIGURES.json [--shapes pythia-160m pythia-1.4b] [--dry-run]

Weights are random and made in memory, which changes no speed. Not timed: imports, the model, and a first pass over a
few documents. MFU counts a third of a training step's operations (train/training_on_gpus.py). `idle` is the share of a
further pass, over an eighth of the text, in which the GPU computed nothing. `tokenizing` is that share of the whole
time. The figures are written after each shape. --dry-run: also on a CPU, in fp32.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

import torch  # noqa: E402

from pilekit import Corpus, load_tokenizer  # noqa: E402
from pilekit.evaluate.bits_per_byte import score_corpus  # noqa: E402
from pilekit.models.causal import as_causal_lm  # noqa: E402
from pilekit.tokenize import Tokenizer  # noqa: E402
from pilekit.train.log.mfu import peak_of  # noqa: E402
from tests.benchmarks.bench_bpb import MAX_LENGTH, WARM_UP_BYTES, first, some_documents, write  # noqa: E402
from tests.benchmarks.bpb.lm_eval_peer import peak_memory  # noqa: E402
from tests.benchmarks.generating import pythia_model, real_or_generated  # noqa: E402
from tests.benchmarks.train.training_on_gpus import flops_per_token  # noqa: E402


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--shapes", nargs="+", default=["pythia-160m", "pythia-1.4b"])
    parser.add_argument("--kilobytes", type=int, default=8000, help="text that is scored (default: 8000)")
    parser.add_argument("--dry-run", action="store_true")
    chosen = parser.parse_args()
    if not torch.cuda.is_available() and not chosen.dry_run:
        raise SystemExit("error: PyTorch finds no GPU on this machine")
    source, tokenizer = real_or_generated("val.jsonl.zst")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        documents = some_documents(source, chosen.kilobytes * 1000)
        sizes = {"all": chosen.kilobytes * 1000, "eighth": chosen.kilobytes * 125, "few": WARM_UP_BYTES}
        shards = {name: write(Path(temporary, f"{name}.jsonl.zst"), first(documents, sizes[name])) for name in sizes}
        for shape in chosen.shapes:
            found.append(score(shape, load_tokenizer(tokenizer), shards))
            chosen.figures.write_text(json.dumps(found, indent=1))
            print(json.dumps(found[-1]), flush=True)


def score(shape: str, tokenizer: Tokenizer, shards: dict[str, Path]) -> dict[str, Any]:
    """The figures of one shape."""
    on_gpu = torch.cuda.is_available()
    lm = as_causal_lm(pythia_model(shape, seq_len=MAX_LENGTH).to(torch.bfloat16 if on_gpu else torch.float32).eval())
    score_corpus(lm, tokenizer, Corpus(shards["few"]))
    encode, tokenizing = Tokenizer.encode_batch, 0.0

    def timed(self: Tokenizer, texts: Any) -> Any:
        nonlocal tokenizing
        begun = time.perf_counter()
        try:
            return encode(self, texts)
        finally:
            tokenizing += time.perf_counter() - begun

    Tokenizer.encode_batch = timed  # type: ignore[method-assign]
    begun = time.perf_counter()
    tokens = score_corpus(lm, tokenizer, Corpus(shards["all"])).overall.tokens
    seconds = time.perf_counter() - begun
    Tokenizer.encode_batch = encode  # type: ignore[method-assign]
    peak = peak_of(torch.device("cuda"), "bf16") if on_gpu else None
    return {
        "shape": shape,
        "gpu": torch.cuda.get_device_name() if on_gpu else "CPU",
        "torch": torch.__version__,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "mfu": peak and tokens / seconds * flops_per_token(lm.model.config, MAX_LENGTH) / 3 / peak,
        "tokenizing": tokenizing / seconds,
        "memory": peak_memory(),
        "idle": idle(lambda: score_corpus(lm, tokenizer, Corpus(shards["eighth"]))) if on_gpu else None,
    }


def idle(work: Any) -> float:
    """The share of the time of `work` in which the GPU computes nothing."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begun
    busy = sum(
        entry.self_device_time_total
        for entry in profiler.key_averages()
        if entry.device_type.name == "CUDA" and not entry.is_user_annotation
    )
    return float(1 - busy / 1e6 / seconds)


if __name__ == "__main__":
    main()
