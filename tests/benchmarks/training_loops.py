"""The training loops that bench_train.py compares, each run as one rank of a process group by a Python that has it.

    torchrun training_loops.py TASK.json

All begin with the same weights and take the same rows through the same micro-batches, documents kept apart by
position_ids; all use AdamW with the same groups and the same clipping, and divide a step's loss by its targets on all
ranks. All other settings are each tool's defaults. This file also runs in the environment of the frameworks, so it
imports only test modules without dependencies. A rank writes the figures of its steps to `rank-N.json` beside the task.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.lm_eval_peer import forget_peak, resident

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
COLUMNS = ("input_ids", "labels", "position_ids")


class Recorder:
    """`record(loss)` at the end of every step keeps its figures.

    Made after the imports, before anything else is allocated: memory is the peak resident memory within a step above
    the memory now, or on a GPU the peak of allocated memory.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        gc.collect()
        self._idle = resident("VmRSS")
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __call__(self, loss: float, data_wait: float = 0.0) -> None:
        """End a step; `loss` is this rank's part of it: over all ranks they add up to the step's mean."""
        if self.cuda:
            torch.cuda.synchronize()
        seconds, cpu_seconds = time.perf_counter() - self._wall, time.process_time() - self._cpu
        memory = torch.cuda.max_memory_allocated() if self.cuda else resident("VmHWM") - self._idle
        figures = {"seconds": seconds, "cpu_seconds": cpu_seconds, "memory": memory, "loss": loss}
        self.steps.append({**figures, "data_wait": data_wait})
        forget_peak()
        self._wall, self._cpu = time.perf_counter(), time.process_time()


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


def train(
    record: Recorder, steps: Iterator[Step], backward: Callable[..., torch.Tensor], update: Callable[[], None]
) -> None:
    """`backward(part, targets, last)` for each micro-batch, `update()` at the end of each step."""
    for step in steps:
        total = torch.zeros((), device=record.device)
        for number, part in enumerate(step.parts, 1):
            total += backward(part, step.targets / WORLD_SIZE, number == len(step.parts)).detach()
        update()
        record(total.item() / WORLD_SIZE)


def pilekit(task: dict[str, Any]) -> list[dict[str, Any]]:
    """`Trainer.fit` on the raw shard, as `pilekit train` calls it; a step after a save knows how long that blocked."""
    import msgspec

    from pilekit.train import trainer
    from pilekit.train.config import TrainConfig

    made: list[Any] = []
    blocked = [0.0]
    checkpoints = trainer.Checkpoints
    trainer.Checkpoints = lambda *given, **settings: made.append(checkpoints(*given, **settings)) or made[0]  # type: ignore[assignment, misc, func-returns-value]
    record = Recorder()

    def on_step(metrics: Any) -> None:
        record((metrics.loss or 0.0) / WORLD_SIZE, metrics.data_wait * metrics.step_seconds)
        blocked.append(made[0].blocked_seconds)

    trainer.Trainer(msgspec.convert(task["config"], TrainConfig), task["run"]).fit(on_step)
    waits = [after - before for before, after in pairwise(blocked)]
    return [{**figures, "blocked": wait} for figures, wait in zip(record.steps, waits, strict=True)]


def bare(task: dict[str, Any]) -> list[dict[str, Any]]:
    """PyTorch alone: autocast for bf16, DistributedDataParallel where there are several ranks."""
    import safetensors.torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from transformers import GPTNeoXForCausalLM

    del safetensors, GPTNeoXForCausalLM  # imported before memory is measured
    record = Recorder()
    steps = steps_of(task, record.device)
    model = model_of(task).to(record.device)
    optimizer = adamw(model, task["config"]["optimizer"]["lr"])
    parameters = list(model.parameters())
    if WORLD_SIZE > 1:
        dist.init_process_group("nccl" if record.cuda else "gloo")
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    bf16 = task["config"]["precision"]["dtype"] == "bf16"

    def backward(part: dict[str, torch.Tensor], targets: float, last: bool) -> torch.Tensor:
        with nullcontext() if WORLD_SIZE == 1 or last else model.no_sync():
            with torch.autocast(record.device.type, torch.bfloat16, enabled=bf16):
                loss = loss_by_model(model, part, targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    train(record, steps, backward, update)
    return record.steps


def deepspeed(task: dict[str, Any]) -> list[dict[str, Any]]:
    """DeepSpeed's engine, its ZeRO stages and its optimizers around torch's AdamW."""
    import deepspeed  # type: ignore[import-not-found, unused-ignore]
    import safetensors.torch
    from transformers import GPTNeoXForCausalLM

    del safetensors, GPTNeoXForCausalLM
    record = Recorder()
    deepspeed.init_distributed("nccl" if record.cuda else "gloo")
    steps, config = steps_of(task, record.device), task["config"]
    model = model_of(task)
    micro_batches = micro_batches_of(task)
    adam = {"lr": config["optimizer"]["lr"], "betas": [0.9, 0.95], "eps": 1e-8, "torch_adam": True}
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=groups_of(model),
        config={
            "train_micro_batch_size_per_gpu": config["train"]["micro_batch_size"],
            "gradient_accumulation_steps": micro_batches,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": adam if record.cuda else {**adam, "fused": True}},
            "bf16": {"enabled": config["precision"]["dtype"] == "bf16"},
            "zero_optimization": {"stage": config["parallel"]["zero"]},
        },
    )

    def backward(part: dict[str, torch.Tensor], targets: float, last: bool) -> torch.Tensor:
        loss = loss_by_model(engine, part, targets)
        engine.backward(loss * micro_batches)  # which divides by as much
        engine.step()
        return loss

    train(record, steps, backward, lambda: None)
    return record.steps


def accelerate(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Accelerate with its DDP (stage 0), or its FSDP2: with resharding after the forward pass (3) or without (2)."""
    import safetensors.torch
    from accelerate import Accelerator  # type: ignore[import-not-found, unused-ignore]
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin  # type: ignore[import-not-found, unused-ignore]
    from transformers import GPTNeoXForCausalLM

    del safetensors, GPTNeoXForCausalLM
    record = Recorder()
    stage, plugin = task["config"]["parallel"]["zero"], None
    if stage > 0:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=stage == 3,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["GPTNeoXLayer"],
            state_dict_type="SHARDED_STATE_DICT",
        )
    micro_batches = micro_batches_of(task)
    accelerator = Accelerator(
        cpu=not record.cuda,
        mixed_precision="bf16" if task["config"]["precision"]["dtype"] == "bf16" else "no",
        gradient_accumulation_steps=micro_batches,
        fsdp_plugin=plugin,
    )
    if plugin is not None and accelerator.distributed_type != DistributedType.FSDP:
        sys.exit(f"accelerate would train with {accelerator.distributed_type} here, not with FSDP")
    steps = steps_of(task, record.device)
    model = model_of(task)
    model, optimizer = accelerator.prepare(model, adamw(model, task["config"]["optimizer"]["lr"]))

    def backward(part: dict[str, torch.Tensor], targets: float, last: bool) -> torch.Tensor:
        with accelerator.accumulate(model):
            loss = loss_by_model(model, part, targets)
            accelerator.backward(loss * micro_batches)  # which divides by as much
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    train(record, steps, backward, lambda: None)
    return record.steps


def micro_batches_of(task: dict[str, Any]) -> int:
    """The forward passes of a rank in a step."""
    sizes = task["config"]["train"]
    return int(sizes["global_batch_size"] // WORLD_SIZE // sizes["micro_batch_size"])


LOOPS = {loop.__name__: loop for loop in (pilekit, bare, deepspeed, accelerate)}

if __name__ == "__main__":
    file = Path(sys.argv[1])
    given = json.loads(file.read_text())
    figures = LOOPS[given["loop"]](given)
    file.with_name(f"rank-{RANK}.json").write_text(json.dumps(figures))
