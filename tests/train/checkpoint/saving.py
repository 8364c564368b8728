"""Helpers of the checkpoint tests: something small to train, its whole state, and a run to save it in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from pilekit.evaluate.score_ranks import single_rank
from pilekit.train.checkpoint.saving import Checkpoints
from pilekit.train.checkpoint.state_file import INDEX_FILE, STATE_FILE, Progress
from pilekit.train.config.sections import CheckpointConfig
from pilekit.workers.ranks import Ranks

CONFIG = {"a": {"b": 1}}

SHARD = "__0_0.distcp"
FILES = [SHARD, INDEX_FILE, STATE_FILE]
"""The files of a checkpoint that one rank has written."""


def adamw(model: nn.Module, *, backwards: bool = False) -> AdamW:
    """In two groups, in the model's order or in reverse order."""
    parameters = list(model.named_parameters())[:: -1 if backwards else 1]
    groups: list[dict[str, Any]] = [
        {"params": [(name, p) for name, p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [(name, p) for name, p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return AdamW(groups[::-1] if backwards else groups, lr=1e-2, fused=True)


def with_adamw(model: Any) -> tuple[Any, AdamW]:
    """A model and its optimizer."""
    return model, adamw(model)


def train(model: Any, optimizer: AdamW, steps: range, checkpoints: Checkpoints | None = None) -> None:
    """A few steps; all ranks see the same rows."""
    for step in steps:
        torch.manual_seed(step)
        ids = torch.randint(0, 300, (2, 8))
        model(input_ids=ids, labels=ids).loss.backward()
        if checkpoints is not None:
            checkpoints.poll()
            checkpoints.before_update()
        optimizer.step()
        optimizer.zero_grad()


def whole(tensor: Tensor) -> Tensor:
    """A copy of the whole tensor, on every rank."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def state_of(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """The whole state according to torch itself, read without the code under test."""
    tensors = {name: whole(tensor) for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{kind} of {name}"] = whole(value)
    return tensors


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert torch.equal(one[name], other[name]), name


def checkpoints_in(
    run: Path, ranks: Ranks | None = None, *, keep_last: int = 2, asynchronous: bool = False
) -> Checkpoints:
    settings = CheckpointConfig(keep_last=keep_last, asynchronous=asynchronous)
    return Checkpoints(run / "checkpoints", ranks or single_rank(), settings)


def progress_of(step: int) -> Progress:
    return Progress(step, 1000 * step, {"shard": "ü/00.jsonl", "document": step}, 2)


def filled(step: int) -> nn.Module:
    """A model of a few numbers, all of them `step`."""
    model = nn.Linear(2, 3)
    nn.init.constant_(model.weight, step)
    return model


def save_next(checkpoints: Checkpoints, step: int, model: Any = None, optimizer: Any = None) -> None:
    """Begin to save `model`, or a `filled` one."""
    model = filled(step) if model is None else model
    checkpoints.save(model, optimizer or adamw(model), progress_of(step), CONFIG)


def saved(checkpoints: Checkpoints, step: int, model: Any = None, optimizer: Any = None) -> None:
    """Save `model`, or a `filled` one, and wait for it."""
    save_next(checkpoints, step, model, optimizer)
    checkpoints.finish()


@dataclass(frozen=True)
class Run:
    """A run's folder with checkpoints."""

    path: Path

    @property
    def folder(self) -> Path:
        return self.path / "checkpoints"

    def checkpoints(self, *, keep_last: int = 2, asynchronous: bool = False) -> Checkpoints:
        return checkpoints_in(self.path, keep_last=keep_last, asynchronous=asynchronous)

    def save(self, step: int = 3, model: Any = None, optimizer: Any = None, *, keep_last: int = 2) -> Path:
        """Save `model`, or a `filled` one, and wait for it; returns the checkpoint's folder."""
        saved(self.checkpoints(keep_last=keep_last), step, model, optimizer)
        return self.folder / f"step-{step}"

    def load(self, folder: Path, model: nn.Module, optimizer: AdamW | None = None) -> Progress:
        return self.checkpoints().load(folder, model, optimizer or adamw(model))

    def newest(self) -> str | None:
        folder = self.checkpoints().newest()
        return None if folder is None else folder.name

    def steps(self) -> set[str]:
        return steps_in(self.path)


def steps_in(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").iterdir()}


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Pilekit's own log messages; torch logs every call."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("pilekit.")]
