"""The engine in real process groups against a plain loop in one process."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from pilekit.models.causal import as_causal_lm
from pilekit.models.transformer_blocks import blocks_of
from pilekit.train.config.sections import OptimizerConfig, ParallelConfig, PrecisionConfig, TrainConfig, TrainSection
from pilekit.train.step.sharding import own_part
from pilekit.train.step.step_engine import StepEngine, Update
from pilekit.workers.ranks import Ranks, join
from tests.process_groups import ProcessGroups
from tests.tiny.logit_transforms import LOGIT_TRANSFORMS, transforming_model
from tests.tiny.models import tiny_model
from tests.train.plain_loop import Batch, cut, plain_loop, random_rows, targets

Array = npt.NDArray[Any]
Figures = list[tuple[float, float]]

LR, CLIP = 1e-3, 0.5
EPS = 1e-3
"""Far above the rounding of a gradient that should be 0, which Adam would otherwise turn into a full step."""
STEPS, ROWS = 4, 16


def settings(zero: Any = 0, dtype: Any = "fp32", **scale: Any) -> TrainConfig:
    return TrainConfig(
        train=TrainSection(steps=STEPS, clip_norm=CLIP),
        optimizer=OptimizerConfig(lr=1.0, eps=EPS),  # this lr is of no effect: the rate comes with each update
        parallel=ParallelConfig(zero=zero),
        precision=PrecisionConfig(dtype=dtype, **scale),
    )


def model_of(family: str) -> Any:
    """A tiny model, also of `LOGIT_TRANSFORMS`; "narrow" has fewer rows in some parameters than ranks."""
    fresh: Any = AutoModelForCausalLM
    torch.manual_seed(0)
    if family in LOGIT_TRANSFORMS:
        return transforming_model(family)
    if family == "narrow":
        narrow = GPTNeoXConfig(
            vocab_size=321,
            hidden_size=5,
            num_hidden_layers=3,
            num_attention_heads=1,
            intermediate_size=3,
            max_position_embeddings=32,
            initializer_range=0.2,
        )
        return fresh.from_config(narrow, attn_implementation="sdpa")
    model = tiny_model(family)  # type: ignore[arg-type]
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def engine_of(family: str, config: TrainConfig, ranks: Ranks) -> StepEngine:
    """On all ranks but the first, every number of the model must be replaced."""
    lm = as_causal_lm(model_of(family))
    if not ranks.is_first:
        with torch.no_grad():
            for value in (*lm.model.parameters(), *lm.model.buffers()):
                value.fill_(float("nan") if value.is_floating_point() else 1)
    return StepEngine(lm, config, ranks)


def batches(config: TrainConfig) -> list[Batch]:
    """One per step. In bf16 each has 64 targets, because dividing by a power of two is exact, so roundings are those of
    the reference."""
    count = 61 if config.precision.dtype == "fp32" else 64
    return [random_rows(step, ROWS, count) for step in range(STEPS)]


def step(engine: StepEngine, ranks: Ranks, batch: Batch, micro_batches: int, lr: float = LR) -> tuple[float, Update]:
    """(mean loss over all ranks, result of the update)."""
    count = targets(batch)
    loss = torch.zeros(1, dtype=torch.float64)
    for number, rows in enumerate(cut(cut(batch, ranks.world_size)[ranks.rank], micro_batches)):
        nll = engine.forward_backward(rows, scale=ranks.world_size / count, last=number == micro_batches - 1)
        assert nll.dtype == torch.float32
        assert nll.shape == rows["labels"][:, 1:].shape
        assert not nll.requires_grad
        loss += nll.double().sum()
    update = engine.update(lr).result()
    return ranks.sum(loss).item() / count, update


def weights(engine: StepEngine) -> dict[str, Array]:
    return {name: value.numpy().copy() for name, value in engine.full_parameters()}


def train(family: str, micro_batches: int, config: TrainConfig) -> tuple[Figures, dict[str, Array]]:
    """(mean loss, gradient norm) of each step, and the final weights, on one rank."""
    ranks, figures = join(), []
    engine = engine_of(family, config, ranks)
    for batch in batches(config):
        loss, update = step(engine, ranks, batch, micro_batches)
        assert not update.skipped
        figures.append((loss, update.grad_norm))
    return figures, weights(engine)


def check_against_plain_loop(
    results: list[tuple[Figures, dict[str, Array]]], family: str, micro_batches: int, config: TrainConfig
) -> None:
    model = model_of(family).train()
    expected = plain_loop(
        model,
        batches(config),
        pieces=len(results) * micro_batches,
        lr=LR,
        clip_norm=CLIP,
        eps=EPS,
        dtype=torch.bfloat16 if config.precision.dtype == "bf16" else None,
    )
    figures, weights = results[0]
    assert all(others == figures for others, _ in results)  # to the last bit
    tolerance = {"fp32": 1e-5, "bf16": 1e-4, "fp16": 5e-3}[config.precision.dtype]
    assert len(figures) == STEPS
    for (loss, norm), (expected_loss, expected_norm) in zip(figures, expected, strict=True):
        assert loss == pytest.approx(expected_loss, rel=tolerance)
        assert norm == pytest.approx(expected_norm, rel=tolerance)
    parameters = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    assert weights.keys() == parameters.keys() | {
        name for name, _ in model.named_buffers() if name in model.state_dict()
    }
    for name, parameter in parameters.items():
        assert weights[name].dtype == np.float32
        near = (0.2 if config.precision.dtype == "fp16" else 0.02) * LR
        np.testing.assert_allclose(weights[name], parameter, rtol=0, atol=near, err_msg=name)
    for _, others in results[1:]:
        assert list(others) == list(weights)
        assert all(value.size == 0 for value in others.values())


@pytest.mark.parametrize(
    ("world_size", "family", "zero", "dtype"),
    [
        *((2, "gpt_neox", zero, dtype) for zero in (0, 1, 2, 3) for dtype in ("fp32", "bf16")),
        *((1, "gpt_neox", 0, "fp32"), (1, "gpt_neox", 3, "bf16")),
        *((2, "gpt2", 0, "fp32"), (2, "gpt2", 3, "bf16"), (2, "narrow", 3, "fp32")),  # tied, and cut unevenly
        (2, "llama", 3, "fp16"),
        pytest.param(4, "llama", 1, "fp32", marks=pytest.mark.slow),
        pytest.param(4, "narrow", 3, "bf16", marks=pytest.mark.slow),
    ],
)
def test_ranks_are_the_plain_loop(
    process_group: ProcessGroups, world_size: int, family: str, zero: int, dtype: str
) -> None:
    micro_batches = 4 if family == "gpt_neox" else 2
    config = settings(zero, dtype, loss_scale=1024.0)
    results = process_group(world_size).run(train, family, micro_batches, config)
    check_against_plain_loop(results, family, micro_batches, config)


def test_one_process_in_fp32_leaves_the_model_as_it_is_and_each_group_has_its_share_of_the_rate() -> None:
    lm = as_causal_lm(model_of("gpt_neox"))
    before = {name: (id(parameter), parameter.data_ptr()) for name, parameter in lm.model.named_parameters()}
    engine = StepEngine(lm, settings(3), join())
    assert before == {name: (id(parameter), parameter.data_ptr()) for name, parameter in lm.model.named_parameters()}
    for number, group in enumerate(engine.optimizer.param_groups):
        group["lr_scale"] = 0.5**number
    engine.update(0.25)
    assert [group["lr"] for group in engine.optimizer.param_groups] == [0.25, 0.125]
    with pytest.raises(TypeError, match=r"is torch.bfloat16, but masters are float32"):
        StepEngine(as_causal_lm(model_of("gpt_neox").to(torch.bfloat16)), settings(), join())


def test_many_small_gradients_count_beside_a_few_large_ones() -> None:
    shape = GPTNeoXConfig(
        vocab_size=50_304, hidden_size=32, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    lm = as_causal_lm(AutoModelForCausalLM.from_config(shape))
    engine = StepEngine(lm, settings(), join())
    squares = 0.0
    for parameter in lm.model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-4)
        parameter.grad.view(-1)[:32] = 1.0
        squares += parameter.grad.double().square().sum().item()
    assert engine.update(LR).result().grad_norm == pytest.approx(math.sqrt(squares), rel=1e-9)


def types_in_a_step(dtype: Any) -> dict[str, set[str]]:
    """The types of tensors that a block, the head and the optimizer see."""
    lm = as_causal_lm(tiny_model())
    precision = PrecisionConfig(dtype=dtype, loss_scale=16.0)
    config = TrainConfig(train=TrainSection(steps=1), parallel=ParallelConfig(zero=2), precision=precision)
    engine = StepEngine(lm, config, join())
    seen: dict[str, set[str]] = {"block": set(), "head": set()}

    def note(block: Any, given: tuple[Any, ...], made: Any) -> None:
        hidden = made[0] if isinstance(made, tuple) else made
        used = (given[0], hidden, *block.parameters())
        seen["block"] |= {str(tensor.dtype) for tensor in used}
        seen["head"].add(str(lm.head.weight.dtype))

    for block in blocks_of(lm.model):
        block.register_forward_hook(note)
    nll = engine.forward_backward(random_rows(0, 2, 5), scale=1.0, last=False)
    engine.forward_backward(random_rows(1, 2, 5), scale=1.0, last=True)
    parameters = list(lm.model.parameters())
    seen["loss"] = {str(nll.dtype)}
    seen["masters"] = {str(own_part(parameter).dtype) for parameter in parameters}
    seen["gradients"] = {str(own_part(parameter.grad).dtype) for parameter in parameters if parameter.grad is not None}
    assert not engine.update(1e-3).result().skipped
    seen["optimizer"] = {str(own_part(state[key]).dtype) for state in engine.optimizer.state.values() for key in state}
    return seen


def test_only_blocks_and_head_leave_float32(process_group: ProcessGroups) -> None:
    for world_size, dtype, computed in ((1, "bf16", "torch.bfloat16"), (2, "fp16", "torch.float16")):
        for seen in process_group(world_size).run(types_in_a_step, dtype):
            assert seen.pop("block") == seen.pop("head") == {computed}
            assert seen == {key: {"torch.float32"} for key in ("loss", "masters", "gradients", "optimizer")}


def test_a_dropped_gradient_leaves_no_trace() -> None:
    """Not even in a stored buffer that each forward changes, which few models have."""
    lm = as_causal_lm(model_of("gpt_neox"))
    lm.model.register_buffer("forwards", torch.zeros(()))
    buffer = lm.model.get_buffer("forwards")

    def count(*_: Any) -> None:
        buffer.add_(1)

    blocks_of(lm.model)[0].register_forward_hook(count)
    engine, found = StepEngine(lm, settings(), join()), []
    for dropped in (0, 1, 0, 2):
        for _ in range(dropped):
            engine.forward_backward(random_rows(9, 4, 20), scale=1 / 20, last=True)
        engine.drop_gradient()
        _, update = step(engine, join(), random_rows(len(found), 4, 20), 2)
        found.append(float(buffer))
        assert update.grad_norm > 0
    assert found == [2, 4, 6, 8]
    plain = engine_of("gpt_neox", settings(), join())
    for number in range(4):
        step(plain, join(), random_rows(number, 4, 20), 2)
    for name, value in weights(plain).items():
        assert np.array_equal(value, weights(engine)[name]), name
