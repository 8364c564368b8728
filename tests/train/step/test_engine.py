"""The engine in real process groups against a plain loop in one process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from pilekit.engine.ranks import Ranks, join
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
from tests.logit_transforms import LOGIT_TRANSFORMS, transforming_model
from tests.process_groups import ProcessGroups
from tests.tiny import tiny_model, tiny_tokenizer
from tests.train.plain_loop import Batch, cut, plain_loop, random_rows, targets

Array = npt.NDArray[Any]
Figures = list[tuple[float, float]]

LR, CLIP = 1e-3, 0.5
EPS = 1e-3
"""Far above the rounding of a gradient that should be 0, which Adam would otherwise turn into a full step."""
STEPS, ROWS = 4, 16

SOME_STAGES = [3, pytest.param(0, marks=pytest.mark.slow)]


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
    """On all ranks but the first, every number of the model must be replaced."""
    lm = as_causal_lm(model_of(family))
    if not ranks.is_first:
        with torch.no_grad():
            for value in (*lm.model.parameters(), *lm.model.buffers()):
                value.fill_(float("nan") if value.is_floating_point() else 1)
    return Engine(lm, config, ranks)


def batches(config: TrainConfig, rows: int = ROWS) -> list[Batch]:
    """One per step. In bf16 each has 64 targets, because dividing by a power of two is exact, so roundings are those of
    the reference."""
    count = 61 if config.precision.dtype == "fp32" else 64
    return [random_rows(step, rows, count) for step in range(STEPS)]


def step(engine: Engine, ranks: Ranks, batch: Batch, micro_batches: int, lr: float = LR) -> tuple[float, Update]:
    """(mean loss over all ranks, result of the update)."""
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
    """(mean loss, gradient norm) of each step, and the final weights, on one rank."""
    ranks = join()
    return steps(engine_of(family, config, ranks), ranks, micro_batches, config, rows)


def train_of_folder(
    folder: str, tokenizer: str, micro_batches: int, config: TrainConfig
) -> tuple[Figures, dict[str, Array]]:
    """The same for a model that only the first rank loads."""
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


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_two_ranks_are_the_plain_loop(process_group: ProcessGroups, dtype: str, zero: int) -> None:
    config = settings(zero, dtype)
    results = process_group(2).run(train, "gpt_neox", 4, config)
    check_against_plain_loop(results, "gpt_neox", 4, config, ROWS)


def test_one_rank_is_the_plain_loop(process_group: ProcessGroups) -> None:
    for zero, dtype in ((0, "fp32"), (3, "bf16")):
        config = settings(zero, dtype)
        results = process_group(1).run(train, "gpt_neox", 4, config)
        check_against_plain_loop(results, "gpt_neox", 4, config, ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "family", "zero", "dtype", "rows"),
    [
        (3, "llama", 1, "fp32", 12),
        (4, "narrow", 3, "bf16", ROWS),
    ],
)
def test_more_ranks_are_the_plain_loop(
    process_group: ProcessGroups, world_size: int, family: str, zero: int, dtype: str, rows: int
) -> None:
    config = settings(zero, dtype)
    results = process_group(world_size).run(train, family, 2, config, rows)
    check_against_plain_loop(results, family, 2, config, rows)


def test_models_that_are_tied_or_cut_unevenly(process_group: ProcessGroups) -> None:
    for family, zero, dtype in (("gpt2", 0, "fp32"), ("gpt2", 3, "bf16"), ("narrow", 3, "fp32")):
        config = settings(zero, dtype)
        results = process_group(2).run(train, family, 2, config, ROWS)
        check_against_plain_loop(results, family, 2, config, ROWS)


def test_all_ranks_know_the_transform_of_logits(process_group: ProcessGroups, tmp_path: Path) -> None:
    model_of("gemma2").save_pretrained(tmp_path / "model")
    config = settings(3)
    results = process_group(2).run(train_of_folder, str(tmp_path / "model"), str(tiny_tokenizer(tmp_path)), 2, config)
    check_against_plain_loop(results, "gemma2", 2, config, ROWS)


def test_one_process_in_fp32_leaves_the_model_as_it_is_and_each_group_has_its_share_of_the_rate() -> None:
    lm = as_causal_lm(model_of("gpt_neox"))
    before = {name: (id(parameter), parameter.data_ptr()) for name, parameter in lm.model.named_parameters()}
    engine = Engine(lm, settings(3), join())
    assert before == {name: (id(parameter), parameter.data_ptr()) for name, parameter in lm.model.named_parameters()}
    for number, group in enumerate(engine.optimizer.param_groups):
        group["lr_scale"] = 0.5**number
    engine.update(0.25)
    assert [group["lr"] for group in engine.optimizer.param_groups] == [0.25, 0.125]
    with pytest.raises(TypeError, match=r"is torch.bfloat16, but masters are float32"):
        Engine(as_causal_lm(model_of("gpt_neox").to(torch.bfloat16)), settings(), join())


def mean_loss(lm: CausalLM, batch: Batch) -> float:
    hidden = lm.trunk(
        input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False
    ).last_hidden_state
    logits = lm.head(hidden[:, :-1]).float()
    labels = batch["labels"][:, 1:]
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels).item()


def evaluate_between_steps(zero: int, evaluates: bool) -> tuple[list[float], dict[str, Array]]:
    ranks = join()
    config = settings(zero)
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


@pytest.mark.parametrize("zero", SOME_STAGES)
def test_evaluation_between_steps_sees_the_weights_and_changes_nothing(process_group: ProcessGroups, zero: int) -> None:
    with_it, _ = process_group(2).run(evaluate_between_steps, zero, True)
    without, _ = process_group(2).run(evaluate_between_steps, zero, False)
    assert with_it[1].keys() == without[1].keys()
    assert all(np.array_equal(with_it[1][name], without[1][name]) for name in without[1])
    assert with_it[0] == pytest.approx(list(plain_evaluations()), rel=1e-5)


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


def plain_evaluations() -> Iterator[float]:
    """The same losses from the plain loop's model, stopped before each of these steps."""
    given = batches(settings())
    for number in (0, 1, 3):
        model = model_of("gpt_neox").train()
        plain_loop(model, given[:number], pieces=4, lr=LR, clip_norm=CLIP, eps=EPS)
        lm = as_causal_lm(model.eval())
        for size in (4, 9):
            with torch.no_grad():
                yield mean_loss(lm, {name: rows[:size] for name, rows in given[number].items()})
