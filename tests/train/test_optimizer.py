"""Which parameters decay and how fast they learn, and that a step is AdamW's as the paper writes it."""

from __future__ import annotations

import re
from typing import get_args

import pytest
import torch

from pilekit.errors import PilekitError
from pilekit.train.config import OptimizerConfig
from pilekit.train.step.optimizer import build_optimizer, lr_scales
from tests.tiny import Family, tiny_model

CONFIG = OptimizerConfig(lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.5)

# By family: the matrices that mix features, in each of the two layers and outside of them.
DECAYING = {
    "gpt_neox": r".*\.(query_key_value|dense|dense_h_to_4h|dense_4h_to_h)\.weight|lm_head\.weight",
    "gpt2": r".*\.(c_attn|c_proj|c_fc)\.weight",
    "llama": r".*\.[qkvo]_proj\.weight|.*\.(gate|up|down)_proj\.weight|lm_head\.weight",
}
DECAYING_PER_LAYER = {"gpt_neox": 4, "gpt2": 4, "llama": 7}


@pytest.mark.parametrize("family", get_args(Family))
def test_what_decays(family: Family) -> None:
    """GPT-2's head is its embedding, and has position embeddings besides; both do not."""
    model = tiny_model(family)

    optimizer = build_optimizer(model, CONFIG)

    groups = {group["name"]: group for group in optimizer.param_groups}
    assert list(groups) == ["decay", "no_decay"]
    assert (groups["decay"]["lr_scale"], groups["no_decay"]["lr_scale"]) == (1.0, 1.0)
    assert (groups["decay"]["weight_decay"], groups["no_decay"]["weight_decay"]) == (0.5, 0.0)
    names = [name for name, _ in model.named_parameters()]
    decaying = [name for name in names if re.fullmatch(DECAYING[family], name)]
    assert len(decaying) == 2 * DECAYING_PER_LAYER[family] + (family != "gpt2")
    assert groups["decay"]["param_names"] == decaying
    assert groups["no_decay"]["param_names"] == [name for name in names if name not in decaying]
    parameters = dict(model.named_parameters())
    for group in groups.values():
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            assert parameter is parameters[name]


def test_a_head_tied_to_the_embedding_does_not_decay() -> None:
    model = tiny_model("gpt_neox")
    model.lm_head.weight = model.gpt_neox.embed_in.weight

    decay, no_decay = build_optimizer(model, CONFIG).param_groups

    assert "lm_head.weight" not in decay["param_names"]
    assert any(parameter is model.lm_head.weight for parameter in no_decay["params"])


def test_frozen_parameters_are_left_out() -> None:
    model = tiny_model("gpt_neox")
    model.gpt_neox.layers[0].requires_grad_(False)

    names = [name for group in build_optimizer(model, CONFIG).param_groups for name in group["param_names"]]

    assert names
    assert not any("layers.0." in name for name in names)
    assert any("layers.1." in name for name in names)


# What is outside the two blocks and no embedding, by family.
TOP = {
    "gpt_neox": r"gpt_neox\.final_layer_norm.*|lm_head.*",
    "gpt2": r"transformer\.ln_f.*",
    "llama": r"model\.norm.*|lm_head.*",
}


@pytest.mark.parametrize("family", get_args(Family))
def test_layer_decay(family: Family) -> None:
    """Of two blocks and d = 0.1: head and final norm 1, the second block d, the first d^2, embeddings d^3."""
    model = tiny_model(family)

    scales = lr_scales(model, OptimizerConfig(layer_decay=0.1))

    assert list(scales) == [name for name, _ in model.named_parameters()]
    for name, scale in scales.items():
        if re.search(r"\.(layers|h)\.1\.", name):
            expected = 0.1
        elif re.search(r"\.(layers|h)\.0\.", name):
            expected = 0.01
        else:
            expected = 1.0 if re.fullmatch(TOP[family], name) else 0.001
        assert scale == pytest.approx(expected), name
    assert {round(scale, 9) for scale in scales.values()} == {1.0, 0.1, 0.01, 0.001}


def test_a_head_tied_to_the_embedding_learns_as_slowly() -> None:
    model = tiny_model("gpt_neox")
    model.lm_head.weight = model.gpt_neox.embed_in.weight

    assert lr_scales(model, OptimizerConfig(layer_decay=0.5))["gpt_neox.embed_in.weight"] == 0.125


def test_patterns_name_rates_and_the_first_that_matches_counts() -> None:
    model = tiny_model("gpt_neox")
    config = OptimizerConfig(
        lr=0.01,
        layer_decay=0.5,
        lr_by_pattern={"*.layers.1.*.bias": 0.004, "*.layers.1.*": 0.02, "lm_head.weight": 0.0},
    )

    scales = lr_scales(model, config)

    for name, scale in scales.items():
        if ".layers.1." in name:
            assert scale == pytest.approx(0.4 if name.endswith(".bias") else 2.0), name
        elif name == "lm_head.weight":
            assert scale == 0.0
    assert scales["gpt_neox.layers.0.attention.dense.weight"] == 0.25
    assert scales["gpt_neox.final_layer_norm.weight"] == 1.0


def test_scales_need_no_numbers() -> None:
    config = OptimizerConfig(layer_decay=0.5, lr_by_pattern={"*norm*": 1e-5})
    with torch.device("meta"):
        shape = tiny_model("llama")

    assert lr_scales(shape, config) == lr_scales(tiny_model("llama"), config)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            {"embed_in": 1.0},
            'lr_by_pattern: "embed_in" matches the name of no parameter; names are such as "gpt_neox.embed_in',
        ),
        ({"*.Weight": 1.0}, '"\\*.Weight" matches the name of no parameter'),
        (
            {"*": 1.0, "*.bias": 2.0},
            '"\\*.bias" matches the name of no parameter, but for those that an earlier pattern',
        ),
        ({"\x1b[": 1.0}, r'"\\x1b\[" matches the name of no parameter'),
    ],
)
def test_a_pattern_without_a_parameter(patterns: dict[str, float], message: str) -> None:
    with pytest.raises(PilekitError, match=message) as raised:
        build_optimizer(tiny_model("gpt_neox"), OptimizerConfig(lr_by_pattern=patterns))
    assert len(str(raised.value).splitlines()) == 1


def test_groups_are_parameters_of_one_decay_and_one_scale() -> None:
    model = tiny_model("llama")
    config = OptimizerConfig(weight_decay=0.3, layer_decay=0.5, lr_by_pattern={"*.q_proj.*": 1e-3})
    scales = lr_scales(model, config)

    groups = build_optimizer(model, config).param_groups

    assert len({(group["name"], group["lr_scale"]) for group in groups}) == len(groups)
    assert sorted(name for group in groups for name in group["param_names"]) == sorted(scales)
    for group in groups:
        assert {scales[name] for name in group["param_names"]} == {group["lr_scale"]}
        assert group["weight_decay"] == {"decay": 0.3, "no_decay": 0.0}[group["name"]]
        matrices = {"weight" in name and "norm" not in name and "embed" not in name for name in group["param_names"]}
        assert matrices == {group["name"] == "decay"}


def test_three_steps_by_hand() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(3, 2), torch.nn.Linear(2, 2)).double()
    optimizer = build_optimizer(model, CONFIG)
    by_hand = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    means = {name: torch.zeros_like(value) for name, value in by_hand.items()}
    squares = {name: torch.zeros_like(value) for name, value in by_hand.items()}
    generator = torch.Generator().manual_seed(0)
    for step, lr in enumerate((0.01, 0.02, 0.005), start=1):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for name, parameter in model.named_parameters():
            slope = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.grad = slope.clone()
            means[name] = 0.8 * means[name] + 0.2 * slope
            squares[name] = 0.9 * squares[name] + 0.1 * slope**2
            mean, square = means[name] / (1 - 0.8**step), squares[name] / (1 - 0.9**step)
            decay = 0.5 if name == "1.weight" else 0.0
            by_hand[name] = by_hand[name] * (1 - lr * decay) - lr * mean / (square.sqrt() + 1e-6)
        optimizer.step()

    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), by_hand[name])
