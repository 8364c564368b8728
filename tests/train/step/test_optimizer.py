"""Which parameters decay and how fast they learn, and a step of AdamW written out."""

from __future__ import annotations

import math
import re
from typing import get_args

import pytest
import torch
from msgspec.structs import replace

from pilekit.train.config.sections import OptimizerConfig
from pilekit.train.step.optimizer import build_optimizer, lr_scales, measured_step, rates_by_group
from tests.refusing import refused
from tests.tiny.models import Family, tiny_model

CONFIG = OptimizerConfig(lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.5)

DECAYING = {
    "gpt_neox": r".*\.(query_key_value|dense|dense_h_to_4h|dense_4h_to_h)\.weight|lm_head\.weight",
    "gpt2": r".*\.(c_attn|c_proj|c_fc)\.weight",
    "llama": r".*\.[qkvo]_proj\.weight|.*\.(gate|up|down)_proj\.weight|lm_head\.weight",
}
"""By family, the matrices that mix features. GPT-2's head is its embedding."""
TOP = {
    "gpt_neox": r"gpt_neox\.final_layer_norm.*|lm_head.*",
    "gpt2": r"transformer\.ln_f.*",
    "llama": r"model\.norm.*|lm_head.*",
}
"""By family, the parameters above the blocks."""


@pytest.mark.parametrize("family", get_args(Family))
def test_matrices_decay_but_no_norms_biases_and_embeddings(family: Family) -> None:
    model = tiny_model(family)
    groups = {group["name"]: group for group in build_optimizer(model, CONFIG).param_groups}
    assert [(name, group["weight_decay"]) for name, group in groups.items()] == [("decay", 0.5), ("no_decay", 0.0)]
    parameters = dict(model.named_parameters())
    decaying = [name for name in parameters if re.fullmatch(DECAYING[family], name)]
    assert len(decaying) == {"gpt_neox": 9, "gpt2": 8, "llama": 15}[family]
    assert groups["decay"]["param_names"] == decaying
    assert groups["no_decay"]["param_names"] == [name for name in parameters if name not in decaying]
    for group in groups.values():
        assert all(p is parameters[name] for name, p in zip(group["param_names"], group["params"], strict=True))


def test_a_head_tied_to_the_embedding_is_an_embedding_and_frozen_parameters_are_left_out() -> None:
    model = tiny_model("gpt_neox")
    model.lm_head.weight = model.gpt_neox.embed_in.weight
    model.gpt_neox.layers[0].requires_grad_(False)

    decay, no_decay = build_optimizer(model, CONFIG).param_groups

    assert "lm_head.weight" not in decay["param_names"]
    assert any(parameter is model.lm_head.weight for parameter in no_decay["params"])
    names = decay["param_names"] + no_decay["param_names"]
    assert not any("layers.0." in name for name in names)
    assert any("layers.1." in name for name in names)
    assert lr_scales(model, OptimizerConfig(layer_decay=0.5))["gpt_neox.embed_in.weight"] == 0.125


@pytest.mark.parametrize("family", get_args(Family))
def test_layer_decay(family: Family) -> None:
    """With two blocks and d = 0.1: head and final norm 1, the second block d, the first d^2, embeddings d^3."""
    with torch.device("meta"):
        model = tiny_model(family)
    scales = lr_scales(model, OptimizerConfig(layer_decay=0.1))
    assert list(scales) == [name for name, _ in model.named_parameters()]
    for name, scale in scales.items():
        if block := re.search(r"\.(layers|h)\.([01])\.", name):
            assert scale == pytest.approx({"0": 0.01, "1": 0.1}[block[2]]), name
        else:
            assert scale == pytest.approx(1.0 if re.fullmatch(TOP[family], name) else 0.001), name


def test_the_first_matching_pattern_gives_the_rate() -> None:
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
    assert scales["lm_head.weight"] == 0.0
    assert scales["gpt_neox.layers.0.attention.dense.weight"] == 0.25
    assert scales["gpt_neox.final_layer_norm.weight"] == 1.0
    groups = build_optimizer(model, config).param_groups
    assert len({(group["name"], group["lr_scale"]) for group in groups}) == len(groups)
    assert sorted(name for group in groups for name in group["param_names"]) == sorted(scales)
    for group in groups:
        assert {scales[name] for name in group["param_names"]} == {group["lr_scale"]}


def test_a_pattern_without_a_parameter() -> None:
    for patterns, wrong in (({"*.Weight": 1.0}, "*.Weight"), ({"*": 1.0, "*.bias": 2.0}, "*.bias")):
        message = re.escape(
            f'optimizer.lr_by_pattern: "{wrong}" matches no parameter that earlier patterns leave; names'
        )
        refused(f"^{message}", build_optimizer, tiny_model("gpt_neox"), OptimizerConfig(lr_by_pattern=patterns))


@pytest.mark.parametrize("family", get_args(Family))
def test_muon_makes_directions_equally_long_in_blocks_and_leaves_the_rest_to_adamw(family: Family) -> None:
    config = replace(CONFIG, name="muon", weight_decay=0.0)
    moved = []
    for name in ("muon", "adamw"):
        model = tiny_model(family)
        optimizer = build_optimizer(model, replace(config, name=name))
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        ids = torch.randint(300, (8, 32), generator=torch.Generator().manual_seed(1))
        model.eval()(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        moved.append({name: parameter.detach() - before[name] for name, parameter in model.named_parameters()})
        if name == "muon":
            muon = optimizer
    trained = {name for group in muon.param_groups if group["name"] == "muon" for name in group["param_names"]}
    assert trained == {name for name in before if re.fullmatch(DECAYING[family], name)} - {"lm_head.weight"}
    assert sorted(name for group in muon.param_groups for name in group["param_names"]) == sorted(before)
    for name in trained:
        lengths = torch.linalg.svdvals(moved[0][name]) / (config.lr * 0.2 * max(before[name].shape) ** 0.5)
        assert float(((lengths > 0.5) & (lengths < 1.4)).float().mean()) > 0.9, name  # but directions without gradient
    assert all(torch.equal(moved[0][name], moved[1][name]) for name in before.keys() - trained)
    assert {tuple(kept) for kept in muon.state.values()} == {("momentum_buffer",), ("step", "exp_avg", "exp_avg_sq")}
    alone = tiny_model(family)
    for name, parameter in alone.named_parameters():
        parameter.requires_grad_(name not in trained)
    assert isinstance(build_optimizer(alone, config), torch.optim.AdamW)


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("numbers", [1, 5000, 2**26])
def test_a_measured_step_is_a_step_and_says_how_far_it_moved(name: str, numbers: int) -> None:
    config = replace(CONFIG, name=name, layer_decay=0.5)
    models = tiny_model("llama"), tiny_model("llama")
    optimizers = [build_optimizer(model, config) for model in models]
    groups = [list(optimizer.param_groups) for optimizer in optimizers]
    for step in range(3):
        ids = torch.randint(300, (4, 16), generator=torch.Generator().manual_seed(step))
        before = [parameter.detach().clone() for parameter in models[0].parameters()]
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
        gradients = [parameter.grad for parameter in models[0].parameters()]
        for parameter in models[0].parameters():
            parameter.grad = torch.full_like(parameter, [math.nan, math.inf, -math.inf][step])
        assert measured_step(optimizers[0], torch.tensor(True), numbers).item() == 0  # leaves no trace
        assert all(torch.equal(p, old) for p, old in zip(models[0].parameters(), before, strict=True))
        for parameter, gradient in zip(models[0].parameters(), gradients, strict=True):
            parameter.grad = gradient
        squares = measured_step(optimizers[0], torch.tensor(False), numbers)
        optimizers[1].step()
        moved = [(p.detach() - old).double() for p, old in zip(models[0].parameters(), before, strict=True)]
        assert squares.item() == pytest.approx(sum(float((move**2).sum()) for move in moved), rel=1e-9)
        assert all(torch.equal(p, q) for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True))
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        kept, expected = (optimizer.state[one] for optimizer, one in zip(optimizers, (p, q), strict=True))
        assert kept.keys() == expected.keys()
        assert all(torch.equal(kept[key], expected[key]) for key in kept)
    assert optimizers[0].param_groups == groups[0]
    rates = rates_by_group(optimizers[0], 0.1)
    assert rates.items() >= {"decay": 0.1, "no_decay": 0.1, "no_decay*0.5": 0.05, "no_decay*0.125": 0.0125}.items()
    assert len(rates) == len(groups[0])
