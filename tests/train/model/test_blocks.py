"""The transformer blocks of known families, and of odd models."""

from __future__ import annotations

from typing import Any, cast

import pytest
from torch import nn

from pilekit.train.model.blocks import blocks_of
from tests.tiny import tiny_model


class Parts(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "llama"])
def test_blocks_are_the_layers(family: Any) -> None:
    model = tiny_model(family)
    inner = model.base_model
    assert blocks_of(model) == list(inner.h if family == "gpt2" else inner.layers)


def test_blocks_of_odd_models() -> None:
    small = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    large = nn.ModuleList([nn.Linear(4, 4), Parts(experts=nn.ModuleList([nn.Linear(9, 9), nn.Linear(9, 9)]))])
    assert blocks_of(Parts(first=small, second=large)) == list(large)
    assert blocks_of(nn.Linear(2, 2)) == []
    shared = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    head = nn.Linear(4, 4)
    head.weight = cast("nn.Linear", shared[1]).weight
    assert blocks_of(Parts(blocks=shared, head=head)) == [shared[0]]
    twins = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])
    cast("nn.Linear", twins[2]).weight = cast("nn.Linear", twins[0]).weight
    assert blocks_of(Parts(blocks=twins)) == [twins[1]]
