"""pilekit's trainer beside a bare PyTorch loop over tokens that already lie in memory: seconds per step, wait for data.

    python tests/benchmarks/bench_train.py [--steps 8] [--dtypes fp32 bf16] [--rows 8] [--micro 4] [--seq-len 1024]

All train the same weights (the shape of Pythia-14M, 50,304 rows of vocabulary) on the same rows, documents kept apart
by restarting position_ids, with the same accumulation, clipping and fused AdamW. pilekit reads them from the raw shard
as it goes; the bare loops find them as tensors:

    pilekit         `Trainer.fit`, as `pilekit train` calls it
    labels          `model(input_ids, labels=labels).loss`, as most write it
    cross_entropy   `F.cross_entropy` on the logits, the labels shifted rather than the logits

Each is a process of its own that runs only in its turn, one step long, and is stopped otherwise: what slows the machine
for a while slows all alike. A step's time is the wall's, from one step's end to the next's, metrics and all; the first
steps warm up. The first losses must agree, or there is no table. While others use the machine, the processor's time
under OMP_NUM_THREADS=1 tells more than the wall's. Memory is the most that was resident in a measured step (on a GPU,
allocated). Text is of `$PILEKIT_REAL_CORPUS` (minipile-00.jsonl.zst and 20B_tokenizer.json) if set, else generated.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from tests.benchmarks.bench_bpb import pythia_14m, source  # noqa: E402

WARM_UP = 2

# `turn(loss)` is called at the end of every step; it returns when the next may begin.
TURN = """
import json, sys, time
import torch
from tests.benchmarks.lm_eval_peer import forget_peak, resident
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
wall, cpu = time.perf_counter(), time.process_time()
def turn(loss, data_wait=0.0):
    global wall, cpu
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else resident("VmHWM")
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "data_wait": data_wait, "memory": memory,
                      "loss": loss}), flush=True)
    sys.stdin.readline()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        forget_peak()
    wall, cpu = time.perf_counter(), time.process_time()
task = json.loads(sys.argv[1])
"""

PILEKIT = """
import msgspec
from pilekit.train.config import TrainConfig
from pilekit.train.trainer import Trainer
config = msgspec.convert(task["config"], TrainConfig)
Trainer(config, task["run"]).fit(lambda metrics: turn(metrics.loss, metrics.data_wait * metrics.step_seconds))
"""

BARE = """
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
config, vocabulary = task["config"], 50304
batches = {name: column.to(device) for name, column in load_file(task["rows"]).items()}
micro, rows = config["train"]["micro_batch_size"], config["train"]["global_batch_size"]
model = AutoModelForCausalLM.from_pretrained(config["model"]["path"], attn_implementation="sdpa").to(device).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=config["optimizer"]["lr"], betas=(0.9, 0.95), eps=1e-8,
                              weight_decay=0.1, fused=True)

def loss_of(part):
    inputs = {"input_ids": part["input_ids"], "position_ids": part["position_ids"], "use_cache": False}
    if task["loss"] == "labels":
        return model(**inputs, labels=part["labels"]).loss / (rows // micro)
    logits = model(**inputs).logits
    shifted = F.pad(part["labels"][:, 1:], (0, 1), value=-100)
    return F.cross_entropy(logits.flatten(0, 1).float(), shifted.flatten()) / (rows // micro)

for first in range(0, len(batches["input_ids"]), rows):
    total = 0.0
    for start in range(first, first + rows, micro):
        part = {name: column[start : start + micro] for name, column in batches.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=config["precision"]["dtype"] == "bf16"):
            loss = loss_of(part)
        loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    turn(float(total))
"""


@dataclass
class Contestant:
    """A process that trains a step whenever it is its turn, and what its steps were like."""

    name: str
    process: subprocess.Popen[str]
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    data_wait: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    memory: int = 0

    def step(self, *, counts: bool) -> None:
        """Let it run until the next step is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.losses:
            self.process.send_signal(signal.SIGCONT)
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"error: {self.name} ended early, with status {self.process.wait()}")
        self.process.send_signal(signal.SIGSTOP)
        told = json.loads(line)
        self.losses.append(told["loss"])
        if counts:
            self.memory = max(self.memory, told["memory"])
            self.seconds.append(told["seconds"])
            self.cpu_seconds.append(told["cpu_seconds"])
            self.data_wait.append(told["data_wait"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="measured steps of each (default: 8)")
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--rows", type=int, default=8, help="rows per step (default: 8)")
    parser.add_argument("--micro", type=int, default=4, help="rows per forward pass (default: 4)")
    parser.add_argument("--seq-len", type=int, default=1024, help="tokens in a row (default: 1024)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args()
    results: dict[str, list[Contestant]] = {}
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        folder = Path(temporary)
        shard, tokenizer = source("minipile-00.jsonl.zst")
        model_dir = pythia_14m(folder / "model", tokenizer, max_length=chosen.seq_len)
        config = {
            "data": {"path": str(shard), "seq_len": chosen.seq_len},
            "model": {"path": str(model_dir)},
            "train": {"steps": 1_000_000, "global_batch_size": chosen.rows, "micro_batch_size": chosen.micro},
            "optimizer": {"lr": 3e-4},
            "schedule": {"kind": "constant"},
            "checkpoint": {"every": 1_000_000},
        }
        rows = write_rows(folder / "rows.safetensors", config, WARM_UP + chosen.steps)
        for dtype in chosen.dtypes:
            task = {"config": {**config, "precision": {"dtype": dtype}}, "rows": str(rows)}
            results[dtype] = compare(task, folder / f"run-{dtype}", chosen.steps)

    if not chosen.json:
        print(f"steps of {chosen.rows} rows of {chosen.seq_len} tokens, {chosen.micro} rows in a forward pass")
        print("\n".join(table(dtype, contestants) for dtype, contestants in results.items()))
    figures = [
        {
            "dtype": dtype,
            "name": contestant.name,
            "step_seconds": contestant.seconds,
            "cpu_seconds": contestant.cpu_seconds,
            "data_wait_share": data_wait_share(contestant),
            "memory": contestant.memory,
        }
        for dtype, contestants in results.items()
        for contestant in contestants
    ]
    print(json.dumps(figures, indent=2 if chosen.json else None))


def compare(task: dict[str, Any], run: Path, steps: int) -> list[Contestant]:
    """Start all, and let them take turns, one step each."""
    scripts = {
        "pilekit": (PILEKIT, {**task, "run": str(run)}),
        "labels": (BARE, {**task, "loss": "labels"}),
        "cross_entropy": (BARE, {**task, "loss": "cross_entropy"}),
    }
    with ExitStack() as started:
        contestants = []
        for name, (script, own) in scripts.items():
            process = subprocess.Popen(
                [sys.executable, "-c", TURN + script, json.dumps(own)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            started.enter_context(process)
            started.callback(process.kill)  # a stopped process, too
            contestants.append(Contestant(name, process))
            contestants[-1].step(counts=False)
        first = [contestant.losses[0] for contestant in contestants]
        if max(first) > 1.001 * min(first):
            raise SystemExit(f"error: the losses of the first step differ: {dict(zip(scripts, first, strict=True))}")
        for number in range(1, WARM_UP + steps):
            print(f"{task['config']['precision']['dtype']}: step {number}      ", end="\r", file=sys.stderr)
            for contestant in contestants:
                contestant.step(counts=number >= WARM_UP)
    return contestants


def write_rows(path: Path, config: dict[str, Any], steps: int) -> Path:
    """The rows that the trainer will see in so many steps, as tensors in one file."""
    import torch
    from safetensors.torch import save_file

    from pilekit import PileStream

    stream = iter(
        PileStream(
            config["data"]["path"],
            tokenizer=config["model"]["path"],
            seq_len=config["data"]["seq_len"],
            batch_size=config["train"]["global_batch_size"],
            packing="concat",
        )
    )
    batches = [next(stream) for _ in range(steps)]
    columns = {name: torch.cat([batch[name] for batch in batches]) for name in ("input_ids", "labels", "position_ids")}
    save_file(columns, path)
    return path


def data_wait_share(contestant: Contestant) -> float:
    """The part of all measured time in which the loop waited for its next batch."""
    return sum(contestant.data_wait) / sum(contestant.seconds)


def table(title: str, contestants: Sequence[Contestant]) -> str:
    """Median seconds of each, pilekit's over them, the median of step-by-step ratios, wait for data, peak memory."""
    ours = contestants[0]
    lines = [
        f"{title:14}{'median s':>9}{'pilekit ×':>10}{'by step':>8}{'CPU s':>8}{'pilekit ×':>10}{'data wait':>10}"
        f"{'memory MB':>10}"
    ]
    for contestant in contestants:
        middle, cpu = statistics.median(contestant.seconds), statistics.median(contestant.cpu_seconds)
        by_step = statistics.median(a / b for a, b in zip(ours.seconds, contestant.seconds, strict=True))
        wait = f"{data_wait_share(contestant):.2%}" if contestant is ours else ""
        lines.append(
            f"{contestant.name:14}{middle:9.3f}{statistics.median(ours.seconds) / middle:10.3f}{by_step:8.3f}"
            f"{cpu:8.3f}{statistics.median(ours.cpu_seconds) / cpu:10.3f}{wait:>10}{contestant.memory / 1e6:10,.0f}"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
