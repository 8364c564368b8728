"""A step asks its device for nothing.

The update runs on a GPU that is not there: torch's fake tensors have shapes and devices, but no numbers to read, and
each copy to another device is seen. The whole step runs on a CPU, where operations that need to know a number are seen.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from pilekit.models.causal import as_causal_lm
from pilekit.models.packed_rows import has_several_documents, packed_rows
from pilekit.train.config.sections import OptimizerConfig, PrecisionConfig, TrainConfig, TrainSection
from pilekit.train.step.loss_scale import LossScale
from pilekit.train.step.losses import StepLoss, places_of_targets
from pilekit.train.step.optimizer import build_optimizer
from pilekit.train.step.step_engine import StepEngine
from pilekit.workers.ranks import join
from tests.tiny.models import Family, tiny_model
from tests.train.plain_loop import random_rows

GPU = torch.device("cuda", 0)
CASES = [("adamw", 0.0, False), ("adamw", 0.9, True), ("muon", 0.9, False), ("muon", 0.0, True)]
"""Optimizer, running mean, and whether there is a loss scale."""


class Waits(TorchDispatchMode):
    """Notes the operations that read a tensor's numbers, and those on tensors of two devices, which wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tags, index = func.tags, torch.ops.aten.index.Tensor
        needs_numbers = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
        if func is index:
            needs_numbers = any(places is not None and places.dtype == torch.bool for places in args[1])
        devices = {each.device.type for each in (*args, made) if isinstance(each, torch.Tensor)}
        if needs_numbers or len(devices) > 1:
            self.found.append(str(func))
        return made


def engine_of(optimizer: Any, ema: float, *, scaled: bool) -> tuple[StepEngine, TrainConfig]:
    train = TrainSection(steps=4, clip_norm=0.5, ema=ema)
    config = TrainConfig(train=train, optimizer=OptimizerConfig(name=optimizer))
    engine = StepEngine(as_causal_lm(tiny_model()), config, join())
    if scaled:
        engine.loss_scale = LossScale(PrecisionConfig(), torch.device("cpu"))
    return engine, config


@pytest.mark.parametrize(("ema", "scaled"), [(0.0, False), (0.9, True)])
def test_an_update_reads_nothing_from_a_gpu(ema: float, scaled: bool) -> None:
    engine, config = engine_of("adamw", ema, scaled=scaled)
    with FakeTensorMode():
        for module in engine.lm.model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(torch.empty(parameter.shape, device=GPU))
        engine._home = GPU
        engine.optimizer = build_optimizer(engine.lm.model, config.optimizer, ema)
        if scaled:
            engine.loss_scale = LossScale(PrecisionConfig(), GPU)
        with Waits() as waits:
            for step in range(3):  # the first makes the optimizer's state
                for parameter in engine.lm.model.parameters():
                    parameter.grad = torch.empty_like(parameter)
                figures = engine.launch_update(1e-3, torch.empty(4, 15, device=GPU), is_first=step == 0)
        assert waits.found == []
        assert (figures.device, figures.dtype) == (GPU, torch.float64)
        with Waits() as waits:
            figures.cpu()
        assert waits.found == ["aten._to_copy.default"]
        with pytest.raises(DataDependentOutputException):
            bool(figures.isfinite().all())


@pytest.mark.parametrize(("optimizer", "ema", "scaled"), CASES)
def test_neither_loss_nor_update_needs_to_know_a_number(optimizer: str, ema: float, scaled: bool) -> None:
    engine, _ = engine_of(optimizer, ema, scaled=scaled)
    compute = StepLoss(engine.lm, attention="document").train()
    rows = random_rows(0, 8, 20)
    rows["places"] = places_of_targets(rows, "clm")  # from the batch, which is on the CPU
    several = has_several_documents(rows["position_ids"])
    with Waits() as waits, packed_rows(several):
        for step in range(3):
            loss, nll = compute(rows, 0.05)
            loss.backward()
            pending = engine.update(1e-3, nll, is_first=step == 0)
    assert waits.found == []
    assert pending.result().grad_norm > 0
    with Waits() as waits:
        bool(nll.isfinite().all())
        nll[nll > 0]
        nll.nonzero()
    assert len(waits.found) == 3


@pytest.mark.parametrize("family", ["gpt_neox", "llama", "gpt2"])
def test_rows_that_are_said_to_be_packed_compute_as_rows_that_are_found_to_be(family: Family) -> None:
    """To the last bit, for rows of several documents, of one, and with padding."""
    model: Any = tiny_model(family).eval()
    ids = random_rows(0, 2, 20)["input_ids"]
    whole = torch.arange(16).expand(2, -1)
    cut, padded = whole.clone(), whole.clone()
    cut[1, 9:] -= 9
    padded[0, 12:] = 0
    for positions, expected in ((whole, False), (cut, True), (padded, True)):
        several = has_several_documents(positions)
        assert several == expected
        inputs = {"input_ids": ids, "position_ids": positions, "use_cache": False}
        found = model(**inputs).logits
        with packed_rows(several):
            told = model(**inputs).logits
        assert torch.equal(told, found)
    with packed_rows(True):
        wrongly = model(input_ids=ids, position_ids=whole, use_cache=False).logits
    torch.testing.assert_close(wrongly, model(input_ids=ids, position_ids=whole, use_cache=False).logits)
