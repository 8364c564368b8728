"""What autocast changes, and what it leaves alone."""

from __future__ import annotations

import torch

from pilekit.train.precision import autocast

CPU = torch.device("cpu")


def test_bf16_is_of_the_matrix_products_alone() -> None:
    layer = torch.nn.Linear(4, 3)
    states = torch.ones(2, 4)

    with autocast("bf16", CPU):
        product = layer(states)
    product.float().sum().backward()

    assert product.dtype == torch.bfloat16
    assert layer.weight.dtype == torch.float32
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


def test_fp32_changes_nothing() -> None:
    layer = torch.nn.Linear(4, 3)
    states = torch.ones(2, 4)

    with autocast("fp32", CPU):
        product = layer(states)

    assert product.dtype == torch.float32
    assert torch.equal(product, layer(states))


def test_fp32_means_fp32_inside_another_autocast() -> None:
    layer = torch.nn.Linear(4, 3)

    with torch.autocast("cpu", torch.bfloat16):
        with autocast("fp32", CPU):
            assert layer(torch.ones(2, 4)).dtype == torch.float32
        assert layer(torch.ones(2, 4)).dtype == torch.bfloat16
