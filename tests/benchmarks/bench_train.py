"""pilekit's trainer beside bare PyTorch loops, DeepSpeed and accelerate: speed, memory, and the cost of checkpoints.

    python tests/benchmarks/bench_train.py [--quick] [--parts loop peers checkpoint documents] [--stages 0 1 2 3]
    python tests/benchmarks/bench_train.py --gpu [--shapes pythia-160m pythia-1.4b]

All train the same weights (the shape of Pythia-14M) on the same rows through the same micro-batches, documents kept
apart by position_ids, with the same AdamW and clipping; see train/training_loops.py. pilekit reads them from the raw
shard while it trains; the others get them as tensors in memory.

    loop         one rank: `Trainer.fit` beside a bare loop, whose loss is the model's (`labels`) or made of its logits
                 (`cross_entropy`); two ranks: `Trainer.fit` under each ZeRO stage, under 0 beside PyTorch's DDP
    peers        two ranks: beside DeepSpeed under each stage and accelerate, its DDP (0) and, if it has one for the
                 machine, its FSDP2 (2 and 3); each with its defaults, in the environment of tests/frameworks
    checkpoint   how long an asynchronous save blocks training, beside one that is not asynchronous
    documents    one rank with the log of documents and without, four times as many steps; and the log alone

Each contestant has a process per rank. It runs for one step in its turn and is stopped otherwise. A step's time is wall
time from one step's end to the next, metrics included. The first steps warm up; meanwhile pilekit's stream starts
reading at all places from which it mixes documents (with `--quick` this takes longer than the warm-up). Memory is the
peak resident memory of any rank in a measured step, above that of the same process after its imports. All losses must
agree, or there is no table. `pilekit ×` is pilekit's speed divided by theirs, and its memory divided by theirs. On a
busy machine, CPU time tells more than wall time. The text is that of `$PILEKIT_REAL_CORPUS` (minipile-00.jsonl.zst and
20B_tokenizer.json) if set, else generated; `--small-vocabulary` has the rows made with a tokenizer of 4,096 ids, and a
model to match. `--gpu` is train/training_on_gpus.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from tests.benchmarks.generating import pythia_dir, real_or_generated, trained_tokenizer  # noqa: E402
from tests.benchmarks.peers import BENCH  # noqa: E402
from tests.benchmarks.train.taking_turns import Contestant, Ended, Running, compare, threads  # noqa: E402

TOLERANCE = {"fp32": (1e-5, 1e-3), "bf16": (1e-3, 1e-2)}
"""The largest relative difference from pilekit's losses, in the first step and in later steps."""

PARTS = ("loop", "peers", "checkpoint", "documents")


def main() -> None:
    """Measure and print."""
    chosen = arguments()
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        folder = Path(temporary)
        if chosen.gpu:
            from tests.benchmarks.train.training_on_gpus import measure_on_gpus

            figures = measure_on_gpus(folder, chosen)
        else:
            rows = (
                f"{chosen.rows} rows of {chosen.seq_len} tokens in a step, {chosen.micro} in a forward pass of a rank"
            )
            show(chosen, rows)
            config, vocabulary = material(folder, chosen)
            show(chosen, f"{vocabulary:,} rows of vocabulary")
            for world_size in (1, 2):
                figures += race(folder / f"world-{world_size}", config, world_size, chosen)
            if "checkpoint" in chosen.parts:
                figures += checkpoints(folder / "checkpoints", config, chosen)
            if "documents" in chosen.parts:
                figures += documents(folder, config, chosen)
    if not record(chosen, figures):
        print(json.dumps(figures, indent=2 if chosen.json else None))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured (default: all)")
    add("--dtypes", nargs="+", choices=["fp32", "bf16"], help="(default: both)")
    add("--stages", nargs="+", type=int, choices=range(4), help="ZeRO stages (default: all)")
    add("--steps", type=int, help="measured steps of each (default: 4)")
    add("--warm-up", type=int, help="steps of each before; pilekit begins its lanes in 4 (default: 4)")
    add("--rows", type=int, help="rows per step over all ranks (default: 8)")
    add("--micro", type=int, help="rows per forward pass of a rank (default: 2)")
    add("--seq-len", type=int, help="tokens in a row (default: 512)")
    add("--small-vocabulary", action="store_true", help="a tokenizer and a model with 4,096 ids")
    add("--quick", action="store_true", help="a look whether all runs: small, few steps, bf16, stages 0 and 3")
    add("--gpu", action="store_true", help="on all GPUs of this machine, in bf16")
    add("--shapes", nargs="+", help="with --gpu: presets (default: pythia-160m pythia-1.4b)")
    add("--variants", nargs="+", help="with --gpu: only contestants with one of these in their names (default: all)")
    add("--dry-run", action="store_true", help="with --gpu: without a GPU too, in fp32")
    add("--peak-tflops", type=float, help="with --gpu: of one GPU in bf16, where its name does not tell")
    add(
        "--figures", type=Path, help="write the figures to this file, and do not print them; with --gpu after each loop"
    )
    add("--json", action="store_true", help="print the figures as indented JSON alone")
    chosen = parser.parse_args()
    full = {"dtypes": ["fp32", "bf16"], "stages": [0, 1, 2, 3], "warm_up": 4, "steps": 4}
    full |= {"rows": 8, "micro": 2, "seq_len": 512}
    quick = {"dtypes": ["bf16"], "stages": [0, 3], "warm_up": 2, "steps": 2, "rows": 8, "micro": 2, "seq_len": 128}
    if chosen.gpu:  # sizes are the shape's
        full |= {"rows": None, "micro": None, "seq_len": 2048, "stages": [0, 3], "warm_up": 8, "steps": 16}
    for name, value in (quick if chosen.quick else full).items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    chosen.small_vocabulary |= chosen.quick
    chosen.shapes = chosen.shapes or ["pythia-160m", "pythia-1.4b"]
    return chosen


def material(folder: Path, chosen: argparse.Namespace, preset: str = "pythia-14m") -> tuple[dict[str, Any], int]:
    """(the shared config, the number of vocabulary rows of its model)."""
    shard, tokenizer = real_or_generated("minipile-00.jsonl.zst")
    if chosen.small_vocabulary:
        name = f"tokenizer-4k-{shard.stem.partition('.')[0]}.json"
        tokenizer = trained_tokenizer(shard, BENCH / "data" / name, vocabulary=4096)
    vocabulary = 4096 if chosen.small_vocabulary else 50304
    model = pythia_dir(folder / preset, tokenizer, preset, vocabulary=vocabulary, seq_len=chosen.seq_len)
    config = {
        "data": {"path": str(shard), "seq_len": chosen.seq_len, "packing": "concat"},
        "model": {"path": str(model)},
        "train": {"steps": 1_000_000, "global_batch_size": chosen.rows, "micro_batch_size": chosen.micro},
        "optimizer": {"lr": 3e-4},
        "schedule": {"kind": "constant"},
        "checkpoint": {"every": 1_000_000},
    }
    return config, vocabulary


def write_rows(path: Path, config: dict[str, Any], world_size: int, steps: int) -> Path:
    """The rows that `Trainer` sees in `steps` steps, as tensors [steps, ranks, rows of a rank, seq_len] in a file."""
    import torch
    from safetensors.torch import save_file

    from tests.benchmarks.train.document_log_cost import stream_of

    ranks = []
    for rank in range(world_size):
        stream = iter(stream_of(config, rank, world_size))
        ranks.append([next(stream) for _ in range(steps)])
    names = ("input_ids", "labels", "position_ids")
    columns = {
        name: torch.stack([torch.stack([batch[name] for batch in batches]) for batches in ranks], dim=1)
        for name in names
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(columns, path)
    return path


def race(folder: Path, config: dict[str, Any], world_size: int, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """All comparisons on this many ranks, by precision and stage: print the tables, and return the figures."""
    if not {"loop", "peers"} & set(chosen.parts) or (world_size == 1 and "loop" not in chosen.parts):
        return []
    rows = str(write_rows(folder / "rows.safetensors", config, world_size, chosen.warm_up + chosen.steps))
    figures = []
    for dtype in chosen.dtypes:
        for stage in chosen.stages if world_size > 1 else [0]:
            own = {**config, "precision": {"dtype": dtype}, "parallel": {"zero": stage}}
            task = {"config": own, "rows": rows, "stage": stage}
            title = f"{dtype}, 1 rank" if world_size == 1 else f"{dtype}, {world_size} ranks, stage {stage}"
            group = contestants(task, world_size, stage, chosen.parts)
            compare(title, group, folder / f"{dtype}-{stage}", warm_up=chosen.warm_up, steps=chosen.steps)
            if group[0].failed is not None:
                raise SystemExit(f"error: {title}: pilekit: {group[0].failed}")
            check_losses(title, group, dtype)
            tokens = chosen.rows * chosen.seq_len
            show(chosen, table(title, group, tokens))
            about = {"dtype": dtype, "ranks": world_size, "stage": stage, "tokens_per_step": tokens}
            figures += [{**about, **told(each)} for each in group]
    return figures


def contestants(task: dict[str, Any], world_size: int, stage: int, parts: Sequence[str]) -> list[Contestant]:
    """pilekit first, then the tools that are compared with it."""
    group = [Contestant("pilekit", {**task, "loop": "pilekit"}, world_size=world_size)]
    if world_size == 1:
        losses = ("labels", "cross_entropy")
        return group + [Contestant(f"bare, {loss}", {**task, "loop": "bare", "loss": loss}) for loss in losses]
    if "loop" in parts and stage == 0:
        bare = {**task, "loop": "bare", "loss": "labels"}
        group.append(Contestant("bare, DDP", bare, world_size=world_size))
    if "peers" in parts:
        from tests.frameworks.environment import SETTINGS, frameworks_python

        strategy = {0: "ddp", 2: "fsdp2", 3: "fsdp2"}
        peers = {"DeepSpeed": {**task, "loop": "deepspeed"}}
        if stage in strategy:
            peers[f"accelerate, {strategy[stage].upper()}"] = {
                **task,
                "loop": "accelerate",
                "strategy": strategy[stage],
            }
        python, environment = frameworks_python(), {**SETTINGS, **threads(world_size)}
        for lock in Path(SETTINGS["TORCH_EXTENSIONS_DIR"]).glob("*/lock"):
            lock.unlink()  # left by a process that was killed while it compiled; all others would wait for it
        group += [Contestant(name, own, python, world_size, environment) for name, own in peers.items()]
    return group


def check_losses(title: str, group: Sequence[Contestant], dtype: str) -> None:
    """Exit unless all losses agree, step by step."""
    ours = group[0]
    for each in group[1:]:
        if each.failed is None:
            first, *later = apart(ours, each)
            if first > TOLERANCE[dtype][0] or max(later) > TOLERANCE[dtype][1]:
                losses = "; ".join(f"{a:.6f} and {b:.6f}" for a, b in zip(ours.losses, each.losses, strict=True))
                raise SystemExit(f"error: {title}: the losses of pilekit and of {each.name} differ: {losses}")


def apart(ours: Contestant, each: Contestant) -> list[float]:
    """The relative differences from pilekit's losses, step by step."""
    return [abs(b / a - 1) for a, b in zip(ours.losses, each.losses, strict=True)]


def table(title: str, group: Sequence[Contestant], tokens: int) -> str:
    """Medians of each contestant; pilekit's speed (step by step) and memory divided by theirs; the wait for data."""
    ours = group[0]
    lines = [
        f"\n{title:26}{'s a step':>9}{'tokens/s':>10}{'pilekit ×':>10}{'by step':>8}{'CPU s':>8}{'memory MB':>10}"
        f"{'pilekit ×':>10}{'data wait':>10}{'loss apart':>11}"
    ]
    for each in group:
        if each.failed is not None:
            lines.append(f"{each.name:26} does not run: {each.failed[:120]}")
            continue
        middle, cpu = statistics.median(each.seconds), statistics.median(each.cpu_seconds)
        by_step = statistics.median(b / a for a, b in zip(ours.seconds, each.seconds, strict=True))
        last = f"{wait(each):10.2%}" if each is ours else f"{'':10}{max(apart(ours, each)):11.1e}"
        lines.append(
            f"{each.name:26}{middle:9.3f}{tokens / middle:10,.0f}{middle / statistics.median(ours.seconds):10.3f}"
            f"{by_step:8.3f}{cpu:8.3f}{each.memory / 1e6:10,.0f}{ours.memory / each.memory:10.3f}{last}"
        )
    return "\n".join(lines)


def wait(each: Contestant) -> float:
    """The share of the measured time that the loop waited for its next batch."""
    return sum(each.data_wait) / sum(each.seconds)


def told(each: Contestant) -> dict[str, Any]:
    """All figures of a contestant."""
    if each.failed is not None:
        return {"name": each.name, "failed": each.failed}
    return {
        "name": each.name,
        "step_seconds": each.seconds,
        "cpu_seconds": each.cpu_seconds,
        "data_wait_share": wait(each),
        "memory": each.memory,
        "losses": each.losses,
    }


SAVES, EVERY = 3, 3
"""The number of measured saves, and the steps between two."""


def checkpoints(folder: Path, config: dict[str, Any], chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """One rank, and two under stage 3: the same run with blocking and with asynchronous saves."""
    figures = []
    saves = 1 if chosen.quick else SAVES
    heads = ("blocked s", "share", "written s", "MB/s", "MB", "step beside")
    lines = [f"\n{'checkpoints, fp32':26}" + "".join(f"{head:>12}" for head in heads)]
    for world_size, stage in ((1, 0), (2, 3)):
        blocked: dict[bool, float] = {}
        for asynchronous in (False, True):
            own = {
                **config,
                "train": {**config["train"], "steps": EVERY * (saves + 1)},
                "parallel": {"zero": stage},
                "checkpoint": {"every": EVERY, "asynchronous": asynchronous},
            }
            name = f"{world_size} rank{'s' * (world_size > 1)}, {'asynchronous' if asynchronous else 'synchronous'}"
            run = Contestant(name, {"loop": "saving", "config": own}, world_size=world_size)
            with ExitStack() as until:
                try:
                    ranks = Running(run, folder / f"{world_size}-{asynchronous}", until).told()
                except Ended as ended:
                    raise SystemExit(f"error: checkpoints, {name}: {ended}") from ended
            blocked[asynchronous] = max(statistics.median(rank["blocked"]) for rank in ranks)
            written = max(statistics.median(rank["written"]) for rank in ranks)
            size, seconds = ranks[0]["bytes"], ranks[0]["step_seconds"]
            # Steps of the first period are warm-up, without a concurrent save.
            beside, others = seconds[EVERY::EVERY], [s for n, s in enumerate(seconds) if n >= EVERY and n % EVERY]
            lines.append(
                f"{name:26}{blocked[asynchronous]:12.4f}{blocked[asynchronous] / blocked[False]:12.2%}{written:12.3f}"
                f"{size / 1e6 / written:12,.0f}{size / 1e6:12,.0f}"
                f"{statistics.median(beside) / statistics.median(others):11.3f}×"
            )
            figures.append({"name": name, "stage": stage, "asynchronous": asynchronous, "ranks": ranks})
    show(chosen, "\n".join(lines))
    return figures


def documents(folder: Path, config: dict[str, Any], chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """One rank with the log of documents and without, and what the log alone costs."""
    from tests.benchmarks.train.document_log_cost import document_log_cost

    figures = []
    for dtype in chosen.dtypes:
        group = [
            Contestant(
                f"{name} the log",
                {"loop": "pilekit", "config": {**config, "precision": {"dtype": dtype}, "log": {"documents": is_on}}},
            )
            for name, is_on in (("with", True), ("without", False))
        ]
        compare("documents", group, folder / f"documents-{dtype}", warm_up=chosen.warm_up, steps=4 * chosen.steps)
        if failed := group[0].failed or group[1].failed:
            raise SystemExit(f"error: documents: {failed}")
        show(chosen, table(f"documents, {dtype}", group, chosen.rows * chosen.seq_len))
        figures += [{"dtype": dtype, **told(each)} for each in group]
    cost = document_log_cost(folder / "log", config, steps=20 if chosen.quick else 1000)
    seconds = 1e-6 * (cost["step_us"] + cost["rows"] * cost["row_us"])
    share = seconds / statistics.median(group[1].seconds)
    show(
        chosen,
        f"the log alone: {cost['step_us']:.1f} us a step, {cost['row_us']:.1f} us and {cost['row_bytes']:.1f} bytes a "
        f"row at a save, {cost['rows']:.1f} rows a step: {share:.4%} of a step",
    )
    return [*figures, {"name": "the log alone", **cost, "share": share}]


def record(chosen: argparse.Namespace, figures: list[dict[str, Any]]) -> bool:
    """Write the figures so far to the file of `--figures`. Returns whether there is one."""
    if chosen.figures:
        chosen.figures.write_text(json.dumps(figures, indent=1))
    return bool(chosen.figures)


def show(chosen: argparse.Namespace, text: str) -> None:
    """Print, unless only JSON is requested."""
    if not chosen.json:
        print(text, flush=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"error: {error}") from error
