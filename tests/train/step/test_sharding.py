"""The collectives of each ZeRO stage, counted; recomputing and offloading change no loss."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from pilekit.errors import PilekitError
from pilekit.models.causal import as_causal_lm
from pilekit.train.config.sections import TrainConfig
from pilekit.train.step.failed_step import explaining_errors
from pilekit.train.step.step_engine import StepEngine, recompute_activations
from pilekit.workers.ranks import join
from tests.process_groups import ProcessGroups
from tests.refusing import refused
from tests.tiny.models import tiny_model
from tests.train.living_bytes import LivingBytes
from tests.train.plain_loop import cut, random_rows, targets
from tests.train.runs import small_config

LAYERS = 4


def settings(dtype: str = "fp32", **parallel: Any) -> TrainConfig:
    return small_config({"precision.dtype": dtype, **{f"parallel.{name}": value for name, value in parallel.items()}})


def larger_model(dropout: float = 0.0) -> Any:
    """A model so large that parameters dominate memory; 4 divides every dimension."""
    config = GPTNeoXConfig(
        vocab_size=1024,
        hidden_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
        hidden_dropout=dropout,
    )
    torch.manual_seed(0)
    fresh: Any = AutoModelForCausalLM
    return fresh.from_config(config, attn_implementation="sdpa")


# --- collectives ---


def collectives_of_a_step(zero: int, micro_batches: int) -> dict[str, int]:
    ranks = join()
    engine = StepEngine(as_causal_lm(larger_model()), settings("bf16", zero=zero), ranks)
    batch = random_rows(0, micro_batches * ranks.world_size, 16, vocabulary=1024)
    counted: Counter[str] = Counter()

    def counting(name: str, collective: Callable[..., Any], *given: Any, **named: Any) -> Any:
        counted["control" if named.get("group") is ranks.control else name] += 1
        tensors = [value for value in (*given, *named.values()) if isinstance(value, Tensor)]
        assert name != "reduce_scatter_single" or {tensor.dtype for tensor in tensors} == {torch.float32}
        return collective(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "all_gather_single", "reduce_scatter_single"):
            patch.setattr(dist, name, partial(counting, name, getattr(dist, name)))
        for number, rows in enumerate(cut(cut(batch, ranks.world_size)[ranks.rank], micro_batches)):
            engine.forward_backward(rows, scale=1.0, last=number == micro_batches - 1)
        engine.update(1e-3)
    return dict(counted)


def test_collectives_per_step(process_group: ProcessGroups) -> None:
    groups, micro_batches = LAYERS + 1, 4
    for zero, expected in enumerate(
        (
            {"all_reduce": groups},
            {"all_gather_single": groups, "reduce_scatter_single": groups},
            {"all_gather_single": groups, "reduce_scatter_single": groups * micro_batches},
            # Blocks are gathered for forward and for backward, the rest for both at once.
            {"all_gather_single": micro_batches * (2 * LAYERS + 1), "reduce_scatter_single": groups * micro_batches},
        )
    ):
        expected["control"] = 2  # the gradient's norm, and the update's
        assert process_group(2).run(collectives_of_a_step, zero, micro_batches) == [expected] * 2


# --- computed again, kept elsewhere, compiled ---


def steps_with(
    dtype: str, parallel: dict[str, Any], dropout: float = 0.0, rows: int = 8
) -> tuple[list[tuple[float, float]], int]:
    """(loss and gradient norm of each of three steps, the most bytes alive in the second)."""
    ranks = join()
    engine = StepEngine(as_causal_lm(larger_model(dropout)), settings(dtype, **parallel), ranks)
    figures, peak = [], 0
    for step in range(3):
        torch.manual_seed(step)
        batch = random_rows(step, rows * ranks.world_size, 16 * rows, seq_len=64, vocabulary=1024)
        scale = ranks.world_size / targets(batch)
        mine = cut(batch, ranks.world_size)[ranks.rank]
        if step == 1:
            with LivingBytes() as watched:
                nll = engine.forward_backward(mine, scale=scale, last=True)
            peak = watched.peak
        else:
            nll = engine.forward_backward(mine, scale=scale, last=True)
        figures.append((ranks.sum(nll.double().sum()[None]).item(), engine.update(1e-3).result().grad_norm))
    return figures, peak


@pytest.mark.slow
def test_activation_checkpointing_has_the_same_losses_and_less_memory(process_group: ProcessGroups) -> None:
    kinds, group = ["none", "selective", "full"], process_group(2)
    results = [group.run(steps_with, "bf16", {"zero": 3, "activation_checkpoint": kind}, 0.1)[0] for kind in kinds]
    (kept, most), (selective, less), (full, least) = results
    assert selective == kept
    assert full == kept
    assert least < 0.9 * less
    assert less < 0.9 * most


@pytest.mark.parametrize("zero", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_offload_has_the_same_losses(process_group: ProcessGroups, zero: int) -> None:
    group = process_group(2)
    here, _ = group.run(steps_with, "bf16", {"zero": zero}, 0.0, 1)[0]
    offloaded, _ = group.run(steps_with, "bf16", {"zero": zero, "offload": True}, 0.0, 1)[0]
    assert offloaded == here


def steps_compiled(parallel: dict[str, Any]) -> tuple[list[tuple[float, float]], int]:
    """(figures as above, number of compiled graphs)."""
    torch._dynamo.reset()  # as in a process of its own
    torch._dynamo.utils.counters.clear()
    try:
        figures, _ = steps_with("fp32", {**parallel, "compile": True})
        return figures, torch._dynamo.utils.counters["stats"]["unique_graphs"]
    finally:
        torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
@pytest.mark.parametrize("parallel", [{"zero": 3}, {"zero": 0, "activation_checkpoint": "full"}])
def test_compiled_blocks_have_the_same_losses(process_group: ProcessGroups, parallel: dict[str, Any]) -> None:
    group = process_group(2)
    plain, _ = group.run(steps_with, "fp32", parallel)[0]
    compiled, graphs = group.run(steps_compiled, parallel, timeout=400)[0]
    assert graphs > 0
    np.testing.assert_allclose(compiled, plain, rtol=1e-5)


def test_blocks_that_cannot_be_compiled_are_one_line() -> None:
    def broken(*_: object) -> None:
        raise ValueError("no\x1b compiler\nand much more")

    message = r"cannot be compiled here \(ValueError: no\\x1b compiler\); set"
    with pytest.raises(PilekitError, match=message), explaining_errors(join()):
        torch.compile(torch.nn.Linear(2, 2), backend=broken)(torch.zeros(1, 2))
    with pytest.raises(RuntimeError, match="shapes do not fit"), explaining_errors(join()):
        raise RuntimeError("shapes do not fit")


def test_a_model_that_cannot_compute_again_is_one_line() -> None:
    model = tiny_model()
    type(model).supports_gradient_checkpointing, before = False, type(model).supports_gradient_checkpointing
    try:
        refused(r"gpt_neox model cannot .*activation_checkpoint = .none.", recompute_activations, model, "full")
    finally:
        type(model).supports_gradient_checkpointing = before
    recompute_activations(model, "none")
