"""pilekit's trainer beside a bare PyTorch loop, DeepSpeed and accelerate: speed, memory, and the cost of checkpoints.

    python tests/benchmarks/bench_train.py [--quick] [--no-peers] [--stages 0 1 2 3] [--dtypes fp32 bf16]
    python tests/benchmarks/bench_train.py --gpu [--presets pythia-160m pythia-1.4b]

All train the same weights on the same rows through the same micro-batches, documents kept apart by position_ids, with
the same AdamW and clipping; see training_loops.py. pilekit reads the rows from the raw shard while it trains; the
others get them as tensors in memory.

    one rank     `Trainer.fit` beside a bare loop
    two ranks    under each ZeRO stage: DeepSpeed; accelerate with its DDP (0) or, if it has one for the machine, its
                 FSDP2 (2 and 3), each with its defaults, in the environment of tests/frameworks; PyTorch's DDP (0)
    checkpoints  how long a save blocks training, if training waits for it and if it is written beside training

The contestants take turns. A step's time is wall time from one step's end to the next, metrics included, of the slowest
rank; the median of the steps counts. The first steps warm up; meanwhile pilekit's stream starts reading at all places
from which it mixes documents. Memory is the peak resident memory of any rank in a measured step, above that of the same
process after its imports. All losses must agree, or there is no table. The text is that of `$PILEKIT_REAL_CORPUS`
(minipile-00.jsonl.zst and 20B_tokenizer.json) if set, else generated.

`--gpu`: the same in bf16 on all GPUs of a machine, for larger shapes. Memory is then the peak of tensors on a GPU, and
`formula` the estimate of pilekit/train/estimate.py. MFU is the share of the GPUs' bf16 peak that the model's
multiplications take: 6 operations a token for each parameter but the embedding's, and 12 · layers · width · seq_len for
attention, as if a token saw all of its row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from tests.benchmarks.harness import Figures, Rounds, options, show, table, take_turns  # noqa: E402
from tests.benchmarks.material import pythia, text_and_tokenizer  # noqa: E402

LOOPS = Path(__file__).with_name("training_loops.py")
TOLERANCE = {"fp32": (1e-5, 1e-3), "bf16": (1e-3, 1e-2)}
"""The largest relative difference from pilekit's losses, in the first step and in later steps."""

PEAK_TFLOPS = {"H100": 989.4, "H200": 989.4, "A100": 312.0, "B200": 2250.0, "L40S": 362.05}
"""Dense bf16, by what a GPU's name contains."""

EVERY = 3
"""Steps between two measured checkpoints."""


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, rounds=2)
    parser.add_argument("--quick", action="store_true", help="a look whether all runs: few short steps, bf16")
    parser.add_argument("--no-peers", action="store_true", help="only pilekit and PyTorch")
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"], help="(default: both)")
    parser.add_argument("--stages", nargs="+", type=int, choices=range(4), default=range(4), help="(default: all)")
    parser.add_argument("--gpu", action="store_true", help="on all GPUs of this machine, in bf16")
    parser.add_argument("--presets", nargs="+", default=["pythia-160m", "pythia-1.4b"], help="shapes with --gpu")
    chosen = parser.parse_args()
    chosen.warm_up, chosen.steps = (8, 16) if chosen.gpu else (2, 2) if chosen.quick else (4, 4)
    chosen.seq_len = 2048 if chosen.gpu else 128 if chosen.quick else 512
    chosen.dtypes = ["bf16"] if chosen.gpu or chosen.quick else chosen.dtypes or ["fp32", "bf16"]
    sizes, presets = [1, 2], ["pythia-14m"]
    if chosen.gpu:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("error: --gpu: PyTorch finds no GPU on this machine")
        sizes, presets = [torch.cuda.device_count()], chosen.presets
    figures: dict[str, Rounds] = {}
    tables = []
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        for preset in presets:
            folder = Path(temporary, preset)
            config = common_config(folder, preset, chosen)
            for world_size in sizes:
                rows = write_rows(folder / f"rows-{world_size}", config, world_size, chosen.warm_up + chosen.steps)
                for dtype in chosen.dtypes:
                    for stage in chosen.stages if world_size > 1 else [0]:
                        title = f"{preset}, {dtype}, ranks {world_size}, stage {stage}"
                        own = {**config, "precision": {"dtype": dtype}, "parallel": {"zero": stage}}
                        measured = race(own, rows, world_size, chosen)
                        check_losses(title, measured, TOLERANCE[dtype])
                        figures[title] = measured
                        extra = gpu_columns(own, world_size) if chosen.gpu else {"data wait": data_wait}
                        tables.append(table(title, measured, "pilekit", unit="tokens", scale=1, extra=extra))
            if not chosen.gpu:
                measured = figures["checkpoints"] = checkpoints(config, folder, chosen)
                blocked = {"training stops for": lambda rounds: f"{min(one['seconds'] for one in rounds):.4f} s"}
                tables.append(table("checkpoints", measured, next(iter(measured)), extra=blocked))
    show(chosen, figures, tables)


def common_config(folder: Path, preset: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """The config that all runs of one shape share; its model folder is made here."""
    shard, tokenizer = text_and_tokenizer("minipile-00.jsonl.zst")
    micro = {"pythia-14m": 2, "pythia-160m": 16}.get(preset, 4)
    return {
        "data": {"path": str(shard), "seq_len": chosen.seq_len, "packing": "concat"},
        "model": {"path": str(pythia(folder / "model", tokenizer, preset, chosen.seq_len))},
        "train": {"steps": chosen.warm_up + chosen.steps, "global_batch_size": 4 * micro, "micro_batch_size": micro},
        "optimizer": {"lr": 3e-4},
        "schedule": {"kind": "constant"},
        "checkpoint": {"every": 1_000_000},
    }


def write_rows(path: Path, config: dict[str, Any], world_size: int, steps: int) -> Path:
    """The rows that `Trainer` sees in `steps` steps, as tensors [steps, ranks, rows of a rank, seq_len] in a file."""
    import torch
    from safetensors.torch import save_file

    from pilekit import PileStream

    streams = [
        iter(
            PileStream(
                config["data"]["path"],
                tokenizer=config["model"]["path"],
                seq_len=config["data"]["seq_len"],
                packing=config["data"]["packing"],
                global_batch_size=config["train"]["global_batch_size"],
                grad_accum=1,
                rank=rank,
                world_size=world_size,
            )
        )
        for rank in range(world_size)
    ]
    ranks = [[next(stream) for _ in range(steps)] for stream in streams]
    columns = {
        name: torch.stack([torch.stack([batch[name] for batch in batches]) for batches in ranks], dim=1)
        for name in ("input_ids", "labels", "position_ids")
    }
    save_file(columns, path)
    return path


def race(config: dict[str, Any], rows: Path, world_size: int, chosen: argparse.Namespace) -> Rounds:
    """All comparisons on this many ranks, for one precision and stage."""
    stage = config["parallel"]["zero"]
    run = partial(steps_of, config=config, rows=rows, world_size=world_size, warm_up=chosen.warm_up)
    contestants: dict[str, Callable[[], Figures]] = {"pilekit": partial(run, "pilekit")}
    if chosen.gpu and stage == 0:
        compiled = {**config, "parallel": {"zero": 0, "compile": True}}
        contestants["pilekit, compiled"] = partial(run, "pilekit", config=compiled)
    if stage == 0:
        contestants["bare" if world_size == 1 else "bare, DDP"] = partial(run, "bare")
    if world_size > 1 and not chosen.no_peers:
        from tests.frameworks.environment import SETTINGS, frameworks_python

        peer = partial(run, python=frameworks_python(), environment={} if chosen.gpu else SETTINGS)
        contestants["DeepSpeed"] = partial(peer, "deepspeed")
        if stage != 1:
            contestants["accelerate"] = partial(peer, "accelerate")
    return take_turns(contestants, chosen.rounds)


def ranks_of(
    loop: str, config: dict[str, Any], rows: Path, world_size: int, python: Path, environment: dict[str, str]
) -> list[list[Figures]]:
    """Run a loop of training_loops.py in every rank; the figures of its steps, by rank."""
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        task = Path(temporary, "task.json")
        task.write_text(json.dumps({"loop": loop, "config": config, "rows": str(rows), "run": temporary + "/run"}))
        threads = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // world_size)), "PYTHONPATH": str(ROOT)}
        torchrun = [str(python), "-m", "torch.distributed.run", "--standalone", "--local-addr=localhost"]
        subprocess.run(
            [*torchrun, f"--nproc-per-node={world_size}", str(LOOPS), str(task)],
            check=True,
            stdout=sys.stderr,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", **environment, **threads},
        )
        return [json.loads(task.with_name(f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def steps_of(
    loop: str,
    *,
    config: dict[str, Any],
    rows: Path,
    world_size: int,
    warm_up: int,
    python: Path = Path(sys.executable),
    environment: dict[str, str] | None = None,
) -> Figures:
    """One run: the medians of its steps, its peak memory, and the losses of all steps."""
    steps = list(zip(*ranks_of(loop, config, rows, world_size, python, environment or {}), strict=True))
    measured = steps[warm_up:]
    seconds = [max(rank["seconds"] for rank in step) for step in measured]
    return {
        "amount": config["train"]["global_batch_size"] * config["data"]["seq_len"],
        "seconds": statistics.median(seconds),
        "cpu_seconds": statistics.median(sum(rank["cpu_seconds"] for rank in step) for step in measured),
        "memory": max(rank["memory"] for step in measured for rank in step),
        "data_wait": sum(max(rank["data_wait"] for rank in step) for step in measured) / sum(seconds),
        "losses": [sum(rank["loss"] for rank in step) for step in steps],
    }


def check_losses(title: str, measured: Rounds, tolerance: tuple[float, float]) -> None:
    """Exit unless all losses agree, step by step."""
    ours = measured["pilekit"][0]["losses"]
    for name, rounds in measured.items():
        for figures in rounds:
            first, *later = (abs(b / a - 1) for a, b in zip(ours, figures["losses"], strict=True))
            if first > tolerance[0] or max(later) > tolerance[1]:
                raise SystemExit(f"error: {title}: the losses of {name} differ: {ours}; {figures['losses']}")


def data_wait(rounds: list[Figures]) -> str:
    """The share of the measured time that the loop waited for its next batch."""
    return f"{min(figures['data_wait'] for figures in rounds):.2%}"


def gpu_columns(config: dict[str, Any], world_size: int) -> dict[str, Callable[[list[Figures]], str]]:
    """MFU, and the GPU memory that pilekit expects a rank to take."""
    import msgspec
    import torch
    from transformers import AutoConfig

    from pilekit.train.config import TrainConfig
    from pilekit.train.estimate import estimate

    model = AutoConfig.from_pretrained(config["model"]["path"])
    layers, width = model.num_hidden_layers, model.hidden_size
    parameters = layers * (4 * width * width + 2 * width * model.intermediate_size) + model.vocab_size * width
    flops = 6 * parameters + 12 * layers * width * config["data"]["seq_len"]
    name = torch.cuda.get_device_name()
    peak = next((peak for part, peak in PEAK_TFLOPS.items() if part in name), float("nan"))
    stages = estimate(msgspec.convert(config, TrainConfig), world_size).stages
    return {
        f"MFU, {world_size} × {name}": lambda rounds: (
            f"{max(one['amount'] / one['seconds'] for one in rounds) * flops / (world_size * peak * 1e12):.1%}"
        ),
        "formula MB": lambda rounds: f"{stages[config['parallel']['zero']].device / 1e6:,.0f}",
    }


def checkpoints(config: dict[str, Any], folder: Path, chosen: argparse.Namespace) -> Rounds:
    """One rank, and two under stage 3: the same run with saves that training waits for, and with saves beside it."""

    def save(world_size: int, stage: int, asynchronous: bool) -> Figures:
        own = {**config, "parallel": {"zero": stage}, "checkpoint": {"every": EVERY, "asynchronous": asynchronous}}
        own["train"] = {**config["train"], "steps": 4 * EVERY}
        ranks = ranks_of("pilekit", own, folder / "rows-1", world_size, Path(sys.executable), {})
        # A save blocks the step that follows it. The first save is warm-up.
        blocked = [statistics.median(step["blocked"] for step in rank[2 * EVERY :: EVERY]) for rank in ranks]
        weights = sum(path.stat().st_size for path in Path(config["model"]["path"]).glob("*.safetensors"))
        return {"amount": 3 * weights, "seconds": max(blocked)}  # with both moments of AdamW

    contestants = {
        f"ranks {world_size}, {'beside training' if asynchronous else 'waiting'}": partial(
            save, world_size, stage, asynchronous
        )
        for world_size, stage in ((1, 0), (2, 3))
        for asynchronous in (False, True)
    }
    return take_turns(contestants, chosen.rounds)


if __name__ == "__main__":
    main()
