"""bench_train.py --gpu: the same loops in bf16 on all GPUs of a machine, larger shapes, MFU, and the estimated peak.

pilekit runs under some ZeRO stages, and with compiled blocks. Bare loops run too, and DeepSpeed and accelerate if this
Python has them. A GPU's memory cannot hold all at once, and memory cached by one process is lost to others, so each
runs alone, one after the other, with one CPU thread per rank, as under torchrun. If one fails, the table says so and
the rest still run. A dry run without a GPU computes in fp32, because torch 2.13 cannot compile blocks in bf16 there.

MFU is the share of the GPUs' bf16 peak that the model's multiplications take: 6 operations a token for each parameter
but the embedding's, and 12 · layers · width · seq_len for attention, as if a token saw all of its row. Memory is the
peak of tensors; `formula` is the estimate of pilekit/train/estimate.py beforehand.
"""

from __future__ import annotations

import argparse
import statistics
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.benchmarks.train.taking_turns import Contestant, compare

MICRO = {"pythia-160m": (16, 2), "pythia-1.4b": (4, 4)}
"""Rows of a forward pass, and forward passes of a rank in a step; of other shapes (4, 2)."""


def measure_on_gpus(folder: Path, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Print a table of each shape; the figures."""
    import torch

    from pilekit.train.log.mfu import peak_of
    from tests.older_torch import allow_older_torch

    allow_older_torch()
    on_gpu = torch.cuda.is_available()
    if not on_gpu and not chosen.dry_run:
        raise SystemExit("error: --gpu: PyTorch finds no GPU on this machine")
    name, world_size = (torch.cuda.get_device_name(), torch.cuda.device_count()) if on_gpu else ("CPU", 1)
    known = peak_of(torch.device("cuda"), "bf16") if on_gpu else None
    peak = chosen.peak_tflops or (known and known / 1e12)
    figures: list[dict[str, Any]] = []
    for shape in chosen.shapes:
        _race(folder / shape, shape, name, world_size, peak, chosen, figures)
    return figures


def _race(
    folder: Path,
    shape: str,
    gpu: str,
    world_size: int,
    peak: float | None,
    chosen: argparse.Namespace,
    figures: list[dict[str, Any]],
) -> None:
    """Add the figures of all loops of a shape to `figures`, and record them, each as soon as it is measured."""
    import torch
    from transformers import AutoConfig

    from tests.benchmarks.bench_train import apart, material, record, show, told, write_rows

    micro, passes = MICRO.get(shape, (4, 2))
    micro = chosen.micro or micro
    sizes = argparse.Namespace(**{**vars(chosen), "micro": micro, "rows": chosen.rows or micro * passes * world_size})
    config, _ = material(folder, sizes, shape)
    config["precision"] = {"dtype": "bf16" if torch.cuda.is_available() else "fp32"}
    more = 3 if torch.cuda.is_available() else 0
    rows = write_rows(folder / "rows.safetensors", config, world_size, chosen.warm_up + chosen.steps + more)
    tokens = sizes.rows * chosen.seq_len
    about = f"{shape} on {world_size} × {gpu}, {sizes.rows} rows of {chosen.seq_len}, {micro} in a forward pass"
    heads = ("s a step", "tokens/s", "pilekit ×", "MFU", "data wait", "idle", "memory GB", "formula GB", "loss apart")
    show(chosen, f"\n{about}\n{'':28}" + "".join(f"{head:>11}" for head in heads))
    group = _contestants(config, str(rows), world_size, chosen)
    for number, each in enumerate(group):
        each.task["profiled"] = chosen.warm_up + chosen.steps + 1 if more else 0
        compare(shape, [each], folder / str(number), warm_up=chosen.warm_up, steps=chosen.steps, more=more)
        if each.failed is not None:
            show(chosen, f"{each.name:28} does not run: {each.failed[:150]}")
            figures.append({"shape": shape, **told(each)})
            record(chosen, figures)
            continue
        middle, ours = statistics.median(each.seconds), group[0]
        flops = flops_per_token(AutoConfig.from_pretrained(config["model"]["path"]), chosen.seq_len)
        mfu = None if peak is None else tokens / middle * flops / (world_size * peak * 1e12)
        formula = _estimated(each, world_size)
        ran = ours.failed is None
        cells = [
            f"{middle:.4f}",
            f"{tokens / middle:,.0f}",
            f"{middle / statistics.median(ours.seconds):.3f}" if ran else "-",
            "-" if mfu is None else f"{mfu:.1%}",
            f"{sum(each.data_wait) / sum(each.seconds):.2%}" if each.loop == "pilekit" else "-",
            "-" if each.busy is None else f"{1 - each.busy / middle:.1%}",
            f"{each.memory / 1e9:.2f}",
            "-" if formula is None else f"{formula / 1e9:.2f}",
            f"{max(apart(ours, each)):.1e}" if ran else "-",
        ]
        show(chosen, f"{each.name:28}" + "".join(f"{cell:>11}" for cell in cells))
        about_run = {"shape": shape, "gpu": gpu, "ranks": world_size, "mfu": mfu, "formula": formula}
        about_run |= {
            "torch": torch.__version__,
            "rows": sizes.rows,
            "micro": micro,
            "tokens_per_second": tokens / middle,
        }
        idle = None if each.busy is None else 1 - each.busy / middle
        figures.append({**about_run, "idle": idle, "kernels": each.kernels, **told(each)})
        record(chosen, figures)


def _contestants(config: dict[str, Any], rows: str, world_size: int, chosen: argparse.Namespace) -> list[Contestant]:
    def one(name: str, loop: str, stage: int = 0, **more: Any) -> Contestant:
        own = {**config, "parallel": {"zero": stage, "compile": more.pop("compile", False)}}
        own["model"] = {**config["model"], "attention_implementation": more.pop("attention", "sdpa")}
        environment = {"OMP_NUM_THREADS": "1", **more.pop("environment", {})}
        task = {"loop": loop, "config": own, "rows": rows, "stage": stage, **more}
        return Contestant(name, task, world_size=world_size, environment=environment)

    group = [one(f"pilekit, stage {stage}", "pilekit", stage) for stage in chosen.stages]
    group.append(one("pilekit, blocks", "pilekit", compile=True))
    group.append(one("pilekit, blocks, varlen", "pilekit", compile=True, attention="varlen"))
    group.append(one("pilekit, step, varlen", "pilekit", compile="step", attention="varlen"))
    group += [one(f"bare, {loss}", "bare", loss=loss) for loss in ("labels", "cross_entropy")]
    graphs = {"TORCHINDUCTOR_CUDAGRAPHS": "1"}
    group.append(
        one("pilekit, step, varlen, CUDA graphs", "pilekit", compile="step", attention="varlen", environment=graphs)
    )
    group = [each for each in group if not chosen.variants or any(name in each.name for name in chosen.variants)]
    if "peers" in chosen.parts and find_spec("deepspeed"):
        group += [one(f"DeepSpeed, stage {stage}", "deepspeed", stage) for stage in chosen.stages]
    if "peers" in chosen.parts and find_spec("accelerate"):
        group.append(one("accelerate, DDP", "accelerate", strategy="ddp"))
        sharded = [stage for stage in chosen.stages if stage >= 2]
        group += [one(f"accelerate, FSDP2 ({stage})", "accelerate", stage, strategy="fsdp2") for stage in sharded]
    return group


def flops_per_token(model: Any, seq_len: int) -> float:
    """Operations of a forward and backward pass of a model with this config; a third of them are the forward pass's."""
    layers, width = model.num_hidden_layers, model.hidden_size
    block = 4 * width * width + 2 * width * model.intermediate_size
    parameters = layers * block + model.vocab_size * width
    return float(6 * parameters + 12 * layers * width * seq_len)


def _estimated(each: Contestant, world_size: int) -> int | None:
    """The GPU memory that pilekit expects a rank to take."""
    import msgspec

    from pilekit.train.config.sections import TrainConfig
    from pilekit.train.estimate import estimate

    if each.loop != "pilekit":
        return None
    config = msgspec.convert(each.task["config"], TrainConfig)
    return estimate(config, world_size).stages[config.parallel.zero].device
