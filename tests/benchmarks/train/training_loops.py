"""The training loops that bench_train.py compares, each run as one rank of a process group by a Python that has it.

    python training_loops.py TASK.json

All begin with the same weights and take the same rows through the same micro-batches, documents kept apart by
position_ids; all use AdamW with the same groups and the same clipping, and divide a step's loss by its targets on all
ranks. All other settings are each tool's defaults. This file also runs in the environment of the frameworks, so it
imports only test modules without dependencies.

A rank reports each step as a line of JSON on its original standard output, then waits for a line on standard input
before it continues. All other output goes to standard error.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.bpb.lm_eval_peer import forget_peak, resident

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
COLUMNS = ("input_ids", "labels", "position_ids")
PROFILED = 3


class Turns:
    """`turns(loss)` is called at the end of every step; it returns when the next may begin.

    Made after the imports, before anything else is allocated: memory is the peak resident memory within a step above
    the memory now, or on a GPU the peak of allocated memory.
    """

    def __init__(self, profiled: int = 0) -> None:
        """`profiled`: the first of three steps whose GPU kernels are told; 0: none."""
        self._steps, self._profiled, self._profiler = 0, profiled, None
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        gc.collect()
        self._idle = resident("VmRSS")
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __call__(self, loss: float, data_wait: float = 0.0, gpu_memory: int | None = None) -> None:
        """End a step; `loss` is this rank's part of it: over all ranks they add up to the step's mean.

        `gpu_memory` is the peak of a loop that resets torch's own figure.
        """
        if self.cuda:
            torch.cuda.synchronize()
        seconds, cpu_seconds = time.perf_counter() - self._wall, time.process_time() - self._cpu
        on_gpu = torch.cuda.max_memory_allocated() if gpu_memory is None else gpu_memory
        memory = on_gpu if self.cuda else resident("VmHWM") - self._idle
        self._steps += 1
        kernels = self._kernels() if self._steps == self._profiled + PROFILED - 1 else {}
        told = {"seconds": seconds, "cpu_seconds": cpu_seconds, "data_wait": data_wait, "memory": memory, "loss": loss}
        self.tell(**told, **kernels)
        if not sys.stdin.readline():  # the parent has gone
            os._exit(1)
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            forget_peak()
        if self.cuda and self._steps == self._profiled - 1:
            self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profiler.start()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def _kernels(self) -> dict[str, Any]:
        """Seconds of a step in which the GPU computed, and its costliest kernels: name, seconds, calls."""
        if self._profiler is None:
            return {}
        self._profiler.stop()
        entries = [
            entry
            for entry in self._profiler.key_averages()
            if entry.device_type.name == "CUDA" and not entry.is_user_annotation
        ]
        entries.sort(key=lambda entry: -entry.self_device_time_total)
        found = [
            [each.key[:100], each.self_device_time_total / 1e6 / PROFILED, each.count / PROFILED] for each in entries
        ]
        return {"busy": sum(seconds for _, seconds, _ in found), "kernels": found[:30]}

    def tell(self, **figures: Any) -> None:
        print(json.dumps(figures), file=self._out, flush=True)


@dataclass(frozen=True)
class Step:
    """This rank's micro-batches of a step, and the number of targets of all ranks, by which its loss is divided."""

    parts: list[dict[str, torch.Tensor]]
    targets: int


def steps_of(task: dict[str, Any], device: torch.device) -> Iterator[Step]:
    """The steps of this rank, from tensors [steps, ranks, rows of a rank, seq_len] in memory."""
    from safetensors.torch import load_file

    columns = load_file(task["rows"])
    targets = (columns["labels"][..., 1:] != -100).sum(dim=(1, 2, 3)).tolist()
    own = {name: columns[name][:, RANK].contiguous().to(device) for name in COLUMNS}
    del columns
    micro = task["config"]["train"]["micro_batch_size"]
    for number, count in enumerate(targets):
        rows = {name: column[number] for name, column in own.items()}
        starts = range(0, len(rows["input_ids"]), micro)
        yield Step([{name: column[at : at + micro] for name, column in rows.items()} for at in starts], count)


def model_of(task: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    path = task["config"]["model"]["path"]
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa", dtype=torch.float32).train()


def groups_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Parameter groups: all parameters decay except norms, biases and embeddings."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    decays = {True: [], False: []}  # type: dict[bool, list[torch.nn.Parameter]]
    for parameter in model.parameters():
        decays[parameter.ndim > 1 and id(parameter) not in embeddings].append(parameter)
    return [{"params": decays[True], "weight_decay": 0.1}, {"params": decays[False], "weight_decay": 0.0}]


def adamw(model: torch.nn.Module, lr: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups_of(model), lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)


def loss_by_model(model: Any, part: dict[str, torch.Tensor], targets: float) -> torch.Tensor:
    """The loss summed over the part's targets, divided by `targets`, as transformers computes it from `labels`."""
    return model(**part, use_cache=False, num_items_in_batch=targets).loss  # type: ignore[no-any-return]


def loss_of_logits(model: Any, part: dict[str, torch.Tensor], targets: float) -> torch.Tensor:
    """The same, the labels shifted rather than the logits."""
    logits = model(input_ids=part["input_ids"], position_ids=part["position_ids"], use_cache=False).logits
    shifted = torch.nn.functional.pad(part["labels"][:, 1:], (0, 1), value=-100)
    total = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), shifted.flatten(), reduction="sum")
    return total / targets


def pilekit(task: dict[str, Any]) -> None:
    """`Trainer.fit` on the raw shard, as `pilekit train` calls it."""
    import msgspec

    from pilekit.train.config.sections import TrainConfig
    from pilekit.train.trainer import Trainer
    from tests.older_torch import allow_older_torch

    allow_older_torch()
    turns = Turns(task.get("profiled", 0))
    config = msgspec.convert(task["config"], TrainConfig)

    def on_step(metrics: Any) -> None:
        graphs = torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)  # type: ignore[attr-defined]
        print(f"step {metrics.step}: {graphs} graphs compiled", file=sys.stderr)
        turns((metrics.loss or 0.0) / WORLD_SIZE, metrics.data_wait * metrics.step_seconds, metrics.memory_bytes)

    Trainer(config, task["run"]).fit(on_step)


def bare(task: dict[str, Any]) -> None:
    """PyTorch alone: autocast for bf16, DistributedDataParallel where there are several ranks."""
    import safetensors.torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from transformers import GPTNeoXForCausalLM

    del safetensors, GPTNeoXForCausalLM  # imported before memory is measured
    turns = Turns(task.get("profiled", 0))
    steps = steps_of(task, turns.device)
    model = model_of(task).to(turns.device)
    optimizer = adamw(model, task["config"]["optimizer"]["lr"])
    parameters = list(model.parameters())
    if WORLD_SIZE > 1:
        dist.init_process_group("nccl" if turns.cuda else "gloo")
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    loss_of = {"labels": loss_by_model, "cross_entropy": loss_of_logits}[task["loss"]]
    bf16 = task["config"]["precision"]["dtype"] == "bf16"
    for step in steps:
        total = torch.zeros((), device=turns.device)
        for number, part in enumerate(step.parts, 1):
            sent = WORLD_SIZE == 1 or number == len(step.parts)
            with nullcontext() if sent else model.no_sync():
                with torch.autocast(turns.device.type, torch.bfloat16, enabled=bf16):
                    loss = loss_of(model, part, step.targets / WORLD_SIZE)
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        turns(total.item() / WORLD_SIZE)


def deepspeed(task: dict[str, Any]) -> None:
    """DeepSpeed's engine, its ZeRO stages and its optimizers around torch's AdamW."""
    import deepspeed  # type: ignore[import-not-found, unused-ignore]
    import safetensors.torch
    from transformers import GPTNeoXForCausalLM

    del safetensors, GPTNeoXForCausalLM
    turns = Turns()
    deepspeed.init_distributed("nccl" if turns.cuda else "gloo")
    steps, config = steps_of(task, turns.device), task["config"]
    model = model_of(task)
    micro_batches = config["train"]["global_batch_size"] // WORLD_SIZE // config["train"]["micro_batch_size"]
    adam = {"lr": config["optimizer"]["lr"], "betas": [0.9, 0.95], "eps": 1e-8, "torch_adam": True}
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=groups_of(model),
        config={
            "train_micro_batch_size_per_gpu": config["train"]["micro_batch_size"],
            "gradient_accumulation_steps": micro_batches,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": adam if turns.cuda else {**adam, "fused": True}},
            "bf16": {"enabled": config["precision"]["dtype"] == "bf16"},
            "zero_optimization": {"stage": task["stage"]},
            **task.get("settings", {}),
        },
    )
    for step in steps:
        total = torch.zeros((), device=turns.device)
        for part in step.parts:
            loss = loss_by_model(engine, part, step.targets / WORLD_SIZE)
            engine.backward(loss * micro_batches)  # which divides by as much
            engine.step()
            total += loss.detach()
        turns(total.item() / WORLD_SIZE)


def accelerate(task: dict[str, Any]) -> None:
    """Accelerate with its DDP, or with its FSDP2: resharding after the forward pass (stage 3) or not (stage 2)."""
    import safetensors.torch
    from accelerate import Accelerator  # type: ignore[import-not-found, unused-ignore]
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin  # type: ignore[import-not-found, unused-ignore]
    from transformers import GPTNeoXForCausalLM

    del safetensors, GPTNeoXForCausalLM
    turns = Turns()
    plugin = None
    if task["strategy"] == "fsdp2":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=task["stage"] == 3,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["GPTNeoXLayer"],
            state_dict_type="SHARDED_STATE_DICT",
        )
    train = task["config"]["train"]
    micro_batches = train["global_batch_size"] // WORLD_SIZE // train["micro_batch_size"]
    accelerator = Accelerator(
        cpu=not turns.cuda,
        mixed_precision="bf16" if task["config"]["precision"]["dtype"] == "bf16" else "no",
        gradient_accumulation_steps=micro_batches,
        fsdp_plugin=plugin,
    )
    if plugin is not None and accelerator.distributed_type != DistributedType.FSDP:
        sys.exit(f"accelerate would train with {accelerator.distributed_type} here, not with FSDP")
    steps = steps_of(task, turns.device)
    model = model_of(task)
    model, optimizer = accelerator.prepare(model, adamw(model, task["config"]["optimizer"]["lr"]))
    for step in steps:
        total = torch.zeros((), device=turns.device)
        for part in step.parts:
            with accelerator.accumulate(model):
                loss = loss_by_model(model, part, step.targets / WORLD_SIZE)
                accelerator.backward(loss * micro_batches)  # which divides by as much
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        turns(total.item() / WORLD_SIZE)


def saving(task: dict[str, Any]) -> None:
    """`Trainer.fit` with checkpoints: how long each save blocked training, its writing time, and its size."""
    import msgspec

    from pilekit.train import trainer
    from pilekit.train.checkpoint.saving import Checkpoints
    from pilekit.train.config.sections import TrainConfig

    made: list[Timed] = []

    class Timed(Checkpoints):
        """Remembers how long the thread took to write each save, and how long training has waited for saves so far."""

        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self.written: list[float] = []
            self.blocked_seconds = 0.0
            made.append(self)

        def save(self, *arguments: Any, **settings: Any) -> None:
            started = time.perf_counter()
            super().save(*arguments, **settings)
            self.blocked_seconds += time.perf_counter() - started

        def before_update(self) -> None:
            started = time.perf_counter()
            super().before_update()
            self.blocked_seconds += time.perf_counter() - started

        def _write(self, *arguments: Any, **settings: Any) -> None:
            started = time.perf_counter()
            super()._write(*arguments, **settings)
            self.written.append(time.perf_counter() - started)

    trainer.Checkpoints = Timed  # type: ignore[attr-defined]
    turns = Turns()
    config = msgspec.convert(task["config"], TrainConfig)
    blocked, seconds = [], []

    def on_step(metrics: Any) -> None:
        seconds.append(metrics.step_seconds)
        if metrics.step % config.checkpoint.every == 0:  # it is saved after this
            blocked.append(made[0].blocked_seconds)

    trainer.Trainer(config, task["run"]).fit(on_step)
    folder = Path(task["run"], "checkpoints", f"step-{max(made[0].saved)}")
    turns.tell(
        blocked=[after - before for before, after in pairwise(blocked)],
        written=made[0].written[: len(blocked) - 1],
        bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        step_seconds=seconds,
    )


LOOPS: dict[str, Callable[[dict[str, Any]], None]] = {
    loop.__name__: loop for loop in (pilekit, bare, deepspeed, accelerate, saving)
}

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a stopped process would outlive its parent
    given = json.loads(Path(sys.argv[1]).read_text())
    LOOPS[given["loop"]](given)
