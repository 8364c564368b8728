"""The engine in real process groups against a plain loop in one process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from pilekit.engine.ranks import Ranks, join
from pilekit.errors import PilekitError
from pilekit.evaluate.model.causal import CausalLM, as_causal_lm
from pilekit.tokenize import load_tokenizer
from pilekit.train.config import (
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    TrainConfig,
    TrainSection,
)
from pilekit.train.model.build import build_on
from pilekit.train.step.engine import Engine, Update
from pilekit.train.step.sharding import own_part
from tests.logit_transforms import LOGIT_TRANSFORMS, transforming_model
from tests.process_groups import ProcessGroups
from tests.tiny import tiny_model, tiny_tokenizer
from tests.train.plain_loop import Batch, cut, plain_loop, random_rows, targets

Array = npt.NDArray[Any]
Figures = list[tuple[float, float]]

LR, CLIP = 1e-3, 0.5
EPS = 1e-3
"""Far above what rounding leaves of a gradient that should be 0, which Adam would else blow up to a full step."""
STEPS, ROWS = 4, 16
STAGES: list[Literal[0, 1, 2, 3]] = [0, 1, 2, 3]

SOME_STAGES = [0, 3, *(pytest.param(other, marks=pytest.mark.slow) for other in (1, 2))]


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


def engine_of(family: str, config: TrainConfig, ranks: Ranks) -> Engine:
    """On all ranks but the first, every number of the model is one that must not survive."""
    lm = as_causal_lm(model_of(family))
    if not ranks.is_first:
        with torch.no_grad():
            for value in (*lm.model.parameters(), *lm.model.buffers()):
                value.fill_(float("nan") if value.is_floating_point() else 1)
    return Engine(lm, config, ranks)


def batches(config: TrainConfig, rows: int = ROWS) -> list[Batch]:
    """One per step. In bf16 with 64 targets in each: dividing by a power of two is exact wherever it is done, so that
    the roundings are those of the reference, and what remains of a difference is an error."""
    count = 61 if config.precision.dtype == "fp32" else 64
    return [random_rows(step, rows, count) for step in range(STEPS)]


def step(engine: Engine, ranks: Ranks, batch: Batch, micro_batches: int, lr: float = LR) -> tuple[float, Update]:
    """(mean loss over all ranks, what the update did)."""
    count = targets(batch)
    loss = torch.zeros(1, dtype=torch.float64)
    for number, rows in enumerate(cut(cut(batch, ranks.world_size)[ranks.rank], micro_batches)):
        nll = engine.forward_backward(rows, scale=ranks.world_size / count, last=number == micro_batches - 1)
        assert nll.dtype == torch.float32
        assert nll.shape == rows["labels"][:, 1:].shape
        assert not nll.requires_grad
        loss += nll.double().sum()
    update = engine.update(lr)
    return ranks.sum(loss).item() / count, update


def weights(engine: Engine) -> dict[str, Array]:
    return {name: value.numpy().copy() for name, value in engine.full_parameters()}


def train(family: str, micro_batches: int, config: TrainConfig, rows: int = ROWS) -> tuple[Figures, dict[str, Array]]:
    """In each rank: (mean loss, gradient norm) of each step, and the weights in the end."""
    ranks = join()
    return steps(engine_of(family, config, ranks), ranks, micro_batches, config, rows)


def train_of_folder(
    folder: str, tokenizer: str, micro_batches: int, config: TrainConfig
) -> tuple[Figures, dict[str, Array]]:
    """The same, of a model that is loaded and looked into by the first rank alone."""
    ranks = join()
    lm = build_on(ranks, ModelConfig(path=folder), load_tokenizer(tokenizer), seq_len=16, seed=0)
    assert isinstance(lm, CausalLM)
    assert lm.transform in LOGIT_TRANSFORMS.values()
    return steps(Engine(lm, config, ranks), ranks, micro_batches, config, ROWS)


def steps(
    engine: Engine, ranks: Ranks, micro_batches: int, config: TrainConfig, rows: int
) -> tuple[Figures, dict[str, Array]]:
    figures = []
    for batch in batches(config, rows):
        loss, update = step(engine, ranks, batch, micro_batches)
        assert not update.skipped
        figures.append((loss, update.grad_norm))
    return figures, weights(engine)


def check_against_plain_loop(
    results: list[tuple[Figures, dict[str, Array]]], family: str, micro_batches: int, config: TrainConfig, rows: int
) -> None:
    model = model_of(family).train()
    expected = plain_loop(
        model,
        batches(config, rows),
        pieces=len(results) * micro_batches,
        lr=LR,
        clip_norm=CLIP,
        eps=EPS,
        dtype=torch.bfloat16 if config.precision.dtype == "bf16" else None,
    )
    figures, weights = results[0]
    assert all(others == figures for others, _ in results)  # to the last bit
    tolerance = 1e-5 if config.precision.dtype == "fp32" else 1e-4
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
        np.testing.assert_allclose(weights[name], parameter, rtol=0, atol=0.02 * LR, err_msg=name)
    for _, others in results[1:]:
        assert list(others) == list(weights)
        assert all(value.size == 0 for value in others.values())


@pytest.mark.parametrize(
    ("world_size", "micro_batches"),
    [(1, 4), (2, 4), *(pytest.param(*other, marks=pytest.mark.slow) for other in [(2, 1), (4, 4)])],
)
@pytest.mark.parametrize("zero", SOME_STAGES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_it_is_the_plain_loop(
    process_group: ProcessGroups, dtype: str, zero: int, micro_batches: int, world_size: int
) -> None:
    config = settings(zero, dtype)
    results = process_group(world_size).run(train, "gpt_neox", micro_batches, config)
    check_against_plain_loop(results, "gpt_neox", micro_batches, config, ROWS)


@pytest.mark.parametrize(
    ("family", "zero"),
    [
        *(("gpt2", 0), ("narrow", 3)),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in (("gemma2", 3), ("llama", 1), ("narrow", 2))),
    ],
)
def test_models_that_are_tied_cut_unevenly_or_do_more_than_their_head(
    process_group: ProcessGroups, family: str, zero: int
) -> None:
    config = settings(zero)
    results = process_group(2 if zero in (0, 3) else 4).run(train, family, 2, config)
    check_against_plain_loop(results, family, 2, config, ROWS)


@pytest.mark.parametrize("family", LOGIT_TRANSFORMS)
def test_what_is_done_behind_the_head_is_known_on_all_ranks(
    process_group: ProcessGroups, family: str, tmp_path: Path
) -> None:
    model_of(family).save_pretrained(tmp_path / "model")
    given = str(tmp_path / "model"), str(tiny_tokenizer(tmp_path))
    config = settings(3)
    results = process_group(2).run(train_of_folder, *given, 2, config)
    check_against_plain_loop(results, family, 2, config, ROWS)


@pytest.mark.parametrize("zero", SOME_STAGES)
def test_tied_weights_in_bf16(process_group: ProcessGroups, zero: int) -> None:
    config = settings(zero, "bf16")
    check_against_plain_loop(process_group(2).run(train, "gpt2", 2, config), "gpt2", 2, config, ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 3])
def test_three_ranks(process_group: ProcessGroups, zero: int) -> None:
    config = settings(zero)
    results = process_group(3).run(train, "llama", 2, config, 12)
    check_against_plain_loop(results, "llama", 2, config, 12)


def test_one_process_in_fp32_has_the_model_as_it_is(process_group: ProcessGroups) -> None:
    assert all(process_group(1).run(untouched, zero)[0] for zero in STAGES)


def untouched(zero: int) -> bool:
    lm = as_causal_lm(model_of("gpt_neox"))
    before = {name: (id(parameter), parameter.data_ptr()) for name, parameter in lm.model.named_parameters()}
    types = {type(module) for module in lm.model.modules()}
    Engine(lm, settings(zero), join())
    after = {name: (id(parameter), parameter.data_ptr()) for name, parameter in lm.model.named_parameters()}
    return before == after and types == {type(module) for module in lm.model.modules()}


def test_masters_are_float32(process_group: ProcessGroups) -> None:
    message = "is torch.bfloat16, but masters are float32"
    assert message in process_group(1).run(error_of_bf16_masters)[0]


def error_of_bf16_masters() -> str:
    lm = as_causal_lm(model_of("gpt_neox").to(torch.bfloat16))
    with pytest.raises(TypeError) as error:
        Engine(lm, settings(), join())
    return str(error.value)


# --- learning rates, clipping, gradients that are no numbers ---


def rates_of_groups() -> list[tuple[float, float]]:
    ranks = join()
    engine = engine_of("gpt_neox", settings(), ranks)
    for number, group in enumerate(engine.optimizer.param_groups):
        group["lr_scale"] = 0.5**number
    step(engine, ranks, batches(settings())[0], 1, lr=0.25)
    return [(group["lr"], 0.25 * 0.5**number) for number, group in enumerate(engine.optimizer.param_groups)]


def test_each_group_has_its_share_of_the_rate(process_group: ProcessGroups) -> None:
    rates = process_group(1).run(rates_of_groups)[0]
    assert len(rates) > 1
    assert all(rate == expected for rate, expected in rates)


def scale_of(engine: Engine) -> float | None:
    return None if engine.loss_scale is None else engine.loss_scale.value


def figures_with_a_broken_rank(zero: int, dtype: str) -> dict[str, Any]:
    """The second of three steps overflows on the last rank alone."""
    ranks = join()
    config = settings(zero, dtype, loss_scale=64.0, loss_scale_hysteresis=1)
    engine = engine_of("gpt_neox", config, ranks)
    seen: dict[str, Any] = {"skipped": [], "scales": [], "moved": [], "norms": []}
    for number, batch in enumerate(batches(config)[:3]):
        before = weights(engine)
        count = targets(batch)
        pieces = cut(cut(batch, ranks.world_size)[ranks.rank], 2)
        for micro_batch, rows in enumerate(pieces):
            broken = number == 1 and micro_batch == 0 and ranks.rank == ranks.world_size - 1
            scale = float("inf") if broken else ranks.world_size / count
            engine.forward_backward(rows, scale=scale, last=micro_batch == 1)
        update = engine.update(LR)
        after = weights(engine)
        seen["skipped"].append(update.skipped)
        seen["norms"].append(update.grad_norm)
        seen["scales"].append(scale_of(engine))
        seen["moved"].append(any(not np.array_equal(before[name], after[name]) for name in before))
        seen["steps"] = {float(own_part(state["step"])) for state in engine.optimizer.state.values()}
    return seen


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("zero", SOME_STAGES)
def test_an_overflow_on_one_rank_skips_the_step_on_all(process_group: ProcessGroups, zero: int, dtype: str) -> None:
    results = process_group(2).run(figures_with_a_broken_rank, zero, dtype)
    for seen in results:
        assert seen["skipped"] == [False, True, False]
        assert [math.isfinite(norm) for norm in seen["norms"]] == [True, False, True]
        assert seen["scales"] == ([64.0, 32.0, 32.0] if dtype == "fp16" else [None] * 3)
        assert seen["steps"] == {2.0}
    assert results[0]["moved"] == [True, False, True]


def shard_with_an_infinity(zero: int) -> tuple[bool, float | None]:
    ranks = join()
    config = settings(zero, "fp16", loss_scale=64.0, loss_scale_hysteresis=1)
    engine = engine_of("gpt_neox", config, ranks)
    engine.forward_backward(cut(batches(config)[0], 4)[ranks.rank], scale=4 / 64, last=True)
    if ranks.rank == 2:
        last = [p.grad for p in engine.lm.model.parameters() if p.grad is not None and own_part(p.grad).numel()][-1]
        own_part(last).view(-1)[0] = float("inf")
    update = engine.update(LR)
    return update.skipped, scale_of(engine)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_an_infinity_in_one_shard_skips_the_step_on_all(process_group: ProcessGroups, zero: int) -> None:
    assert process_group(4).run(shard_with_an_infinity, zero) == [(True, 32.0)] * 4


def train_in_fp16(zero: int, rounds: int) -> tuple[list[float], list[bool], list[float]]:
    ranks = join()
    config = settings(zero, "fp16", loss_scale=2.0**30, loss_scale_hysteresis=1, loss_scale_window=6)
    engine = engine_of("gpt_neox", config, ranks)
    losses, skipped, scales = [], [], []
    for _ in range(rounds):
        for batch in batches(config):
            loss, update = step(engine, ranks, batch, 2, lr=1e-2)
            losses.append(loss)
            skipped.append(update.skipped)
            scales.append(scale_of(engine) or 0)
    return losses, skipped, scales


@pytest.mark.parametrize("zero", SOME_STAGES)
def test_fp16_finds_its_scale_and_learns(process_group: ProcessGroups, zero: int) -> None:
    results = process_group(2).run(train_in_fp16, zero, 8)
    assert results[0] == results[1]
    losses, skipped, scales = results[0]
    assert skipped[0]
    assert not skipped[-1]
    assert sum(skipped) < 20
    assert min(scales) < 2.0**30
    assert losses[-1] < 0.7 * losses[0]


def test_fp16_is_close_to_fp32(process_group: ProcessGroups) -> None:
    for zero in (0, 3):
        config = settings(zero, "fp16", loss_scale=1024.0)
        figures, _ = process_group(2).run(train, "llama", 2, config)[0]
        expected = plain_loop(model_of("llama").train(), batches(config), lr=LR, clip_norm=CLIP, eps=EPS)
        np.testing.assert_allclose(figures, expected, rtol=5e-3)


def overflow_at_the_floor() -> str:
    ranks = join()
    engine = engine_of("gpt_neox", settings(0, "fp16", loss_scale=1.0, loss_scale_hysteresis=1), ranks)
    engine.forward_backward(batches(settings())[0], scale=float("inf") if ranks.is_first else 1.0, last=True)
    with pytest.raises(PilekitError) as error:
        engine.update(LR)
    return str(error.value)


def test_all_ranks_end_alike_at_the_lowest_scale(process_group: ProcessGroups) -> None:
    first, second = process_group(2).run(overflow_at_the_floor)
    assert first == second
    assert "even at the lowest loss scale (1)" in first


# --- evaluation between steps ---


def mean_loss(lm: CausalLM, batch: Batch) -> float:
    hidden = lm.trunk(
        input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False
    ).last_hidden_state
    logits = lm.head(hidden[:, :-1]).float()
    labels = batch["labels"][:, 1:]
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels).item()


def evaluate_between_steps(zero: int, dtype: str, evaluates: bool) -> tuple[list[float], dict[str, Array]]:
    ranks = join()
    config = settings(zero, dtype)
    engine = engine_of("gpt_neox", config, ranks)
    losses = []
    for number, batch in enumerate(batches(config)):
        if evaluates and number != 2:
            with engine.evaluating():
                assert isinstance(engine.lm, CausalLM)
                assert not engine.lm.model.training
                assert not torch.is_grad_enabled()
                # More than one forward, of different lengths.
                losses += [mean_loss(engine.lm, {name: rows[:size] for name, rows in batch.items()}) for size in (4, 9)]
            assert engine.lm.model.training
        step(engine, ranks, batch, 2)
    return losses, weights(engine)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("zero", SOME_STAGES)
def test_evaluation_between_steps_sees_the_weights_and_changes_nothing(
    process_group: ProcessGroups, zero: int, dtype: str
) -> None:
    with_it, _ = process_group(2).run(evaluate_between_steps, zero, dtype, True)
    without, _ = process_group(2).run(evaluate_between_steps, zero, dtype, False)
    assert with_it[1].keys() == without[1].keys()
    assert all(np.array_equal(with_it[1][name], without[1][name]) for name in without[1])
    assert with_it[0] == pytest.approx(list(plain_evaluations(dtype)), rel=1e-5 if dtype == "fp32" else 3e-3)


def test_many_small_gradients_count_beside_a_few_large_ones() -> None:
    shape = GPTNeoXConfig(
        vocab_size=50_304, hidden_size=32, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    lm = as_causal_lm(AutoModelForCausalLM.from_config(shape))
    engine = Engine(lm, settings(), join())
    squares = 0.0
    for parameter in lm.model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-4)
        parameter.grad.view(-1)[:32] = 1.0
        squares += parameter.grad.double().square().sum().item()
    assert engine.update(LR).grad_norm == pytest.approx(math.sqrt(squares), rel=1e-9)


def plain_evaluations(dtype: str) -> Iterator[float]:
    """The same losses from the plain loop's model, stopped before each of these steps."""
    given = batches(settings(0, dtype))
    for number in (0, 1, 3):
        model = model_of("gpt_neox").train()
        plain_loop(model, given[:number], pieces=4, lr=LR, clip_norm=CLIP, eps=EPS)
        lm = as_causal_lm(model.eval())
        for size in (4, 9):
            with torch.no_grad():
                yield mean_loss(lm, {name: rows[:size] for name, rows in given[number].items()})
