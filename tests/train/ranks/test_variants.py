"""Frozen parameters, a running mean, adapters and Muon on two ranks: in every stage, the figures of one rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process_groups import ProcessGroups
from tests.train.ranks.fitting import TIMEOUT, assert_close, case, fit_each, rows_of_steps
from tests.train.ranks.test_lora import base
from tests.train.runs import lines

pytestmark = pytest.mark.timeout(900)

VARIANTS = {
    "frozen": ("train.ema=0.75", 'model.freeze=["*.embed_in.*", "*.layers.0.*"]'),
    "adapted": ("lora.rank=3", 'lora.targets=["query_key_value", "dense"]', "optimizer.layer_decay=0.5"),
    "muon": ("optimizer.name=muon", "train.ema=0.9"),
}


@pytest.mark.parametrize("stages", [(2,), pytest.param((0, 1, 3), marks=pytest.mark.slow)])
def test_two_ranks_have_the_figures_of_one(
    made: Path, tmp_path: Path, process_group: ProcessGroups, stages: tuple[int, ...]
) -> None:
    """Muon rounds to bfloat16, so a sum in another order may change its direction a little."""
    trained = base(made)
    variants = {name: (*changes, trained) if name == "adapted" else changes for name, changes in VARIANTS.items()}
    alone = [(tmp_path / name, (*changes, *case("fp32", 0, 1))) for name, changes in variants.items()]
    (expected,) = process_group(1).run(fit_each, made, alone, timeout=TIMEOUT)
    runs = [
        (tmp_path / f"{name}-{stage}", (*changes, *case("fp32", stage, 2)))
        for name, changes in variants.items()
        for stage in stages
    ]
    seen = process_group(2).run(fit_each, made, runs, timeout=2 * TIMEOUT)
    for number, (run, _) in enumerate(runs):
        parts, name = [of_rank[number] for of_rank in seen], run.name.partition("-")[0]
        one = expected[list(variants).index(name)]
        assert [part.error for part in (*parts, one)] == [None] * 3
        assert rows_of_steps(parts) == rows_of_steps([one])
        loss, norm = (5e-3, 5e-2) if name == "muon" else (1e-5, 1e-4)
        assert_close(lines(run), lines(tmp_path / name), loss=loss, grad_norm=norm)
