"""How long training waits for its checkpoints, saved beside it and not, and how long a resume takes to verify and load.

    python tests/benchmarks/bench_checkpoint.py [--preset pythia-14m] [--ranks 2] [--zero 3] [--saves 4] [--out FOLDER]

Real steps of the engine on random tokens, in processes of their own joined by gloo, one thread each. Every
third step is followed by a save. Waiting is what `Checkpoints.blocked_seconds` says: copying buffers, waiting for the
copy before the update, and for the save before. A save that is waited for as a whole is the measure. What waits at the
end of a run for the last save is shown by itself. Reading again comes from the page cache.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, GPTNeoXConfig  # noqa: E402

from pilekit.evaluate.causal_lm import as_causal_lm  # noqa: E402
from pilekit.train.checkpoint import Checkpoints, Progress  # noqa: E402
from pilekit.train.config import OptimizerConfig, ParallelConfig, TrainConfig, TrainSection  # noqa: E402
from pilekit.train.engine import Engine  # noqa: E402
from pilekit.train.presets import PRESETS  # noqa: E402
from pilekit.train.ranks import join  # noqa: E402
from tests.process_groups import ProcessGroups  # noqa: E402

ROWS, SEQ_LEN, EVERY = 2, 256, 3


def measure(out: Path, preset: str, zero: int, saves: int, asynchronous: bool) -> dict[str, float]:
    """In each rank: train and save; seconds, and the bytes of one checkpoint."""
    ranks = join()
    shape = PRESETS[preset]
    settings = GPTNeoXConfig(
        vocab_size=50_304,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden_size,
        max_position_embeddings=SEQ_LEN,
    )
    config = TrainConfig(
        train=TrainSection(steps=1),
        optimizer=OptimizerConfig(lr=1e-3),
        parallel=ParallelConfig(zero=zero),  # type: ignore[arg-type]
    )
    auto: Any = AutoModelForCausalLM
    engine = Engine(as_causal_lm(auto.from_config(settings)), config, ranks)
    checkpoints = Checkpoints(out / "checkpoints", out / "latest", ranks, keep_last=2, asynchronous=asynchronous)
    ids = torch.randint(0, 50_000, (ROWS, SEQ_LEN))
    rows = {
        "input_ids": ids,
        "labels": ids,
        "position_ids": torch.arange(SEQ_LEN).repeat(ROWS, 1),
        "doc_ids": torch.zeros_like(ids),
    }
    steps, waits = [], []
    for step in range(1, saves * EVERY + EVERY):
        began, waited = time.perf_counter(), checkpoints.blocked_seconds
        engine.forward_backward(rows, scale=1 / ids.numel(), last=True)
        checkpoints.poll()
        checkpoints.before_update()
        engine.update(1e-3)
        if step % EVERY == 0:
            checkpoints.save(engine.lm.model, engine.optimizer, Progress(step, 0, {}, 1), {})
        waits.append(checkpoints.blocked_seconds - waited)
        steps.append(time.perf_counter() - began - waits[-1])
    waited = checkpoints.blocked_seconds
    checkpoints.finish()
    last = checkpoints.blocked_seconds - waited
    ranks.gather(None)
    began = time.perf_counter()
    newest = checkpoints.newest()
    assert newest is not None
    verified = time.perf_counter() - began
    checkpoints.load(newest, engine.lm.model, engine.optimizer)
    return {
        "step": statistics.median(steps),
        "waiting per save": sum(waits) / saves,
        "at the end": last,
        "verify": verified,
        "load": time.perf_counter() - began - verified,
        "bytes": float(sum(file.stat().st_size for file in newest.iterdir())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="pythia-14m", choices=list(PRESETS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--zero", type=int, default=3, choices=range(4))
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--out", type=Path, help="a folder on the disk to measure (default: the system's temporary)")
    given = parser.parse_args()
    from tests.benchmarks.bench_checkpoint import measure  # by the name that the processes know it by

    groups = ProcessGroups()
    waiting = {}
    try:
        for asynchronous in (False, True):
            with tempfile.TemporaryDirectory(dir=given.out) as out:
                results = groups(given.ranks).run(
                    measure, Path(out), given.preset, given.zero, given.saves, asynchronous, timeout=3600
                )
            slowest = {name: max(result[name] for result in results) for name in results[0]}
            waiting[asynchronous] = slowest["waiting per save"]
            shown = ", ".join(f"{name} {value:.4f} s" for name, value in slowest.items() if name != "bytes")
            print(f"{'beside' if asynchronous else 'waited for'}: {slowest['bytes'] / 1e6:,.0f} MB, {shown}")
    finally:
        groups.close()
    print(f"training waits {waiting[True] / waiting[False]:.1%} of the time of a save that is waited for")


if __name__ == "__main__":
    main()
