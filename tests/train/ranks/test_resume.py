"""A run on several ranks that is stopped and resumed equals one that never stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.process_groups import ProcessGroups
from tests.stopping import tree
from tests.train.ranks.fitting import (
    STEPS,
    TIMEOUT,
    assert_close,
    assert_same_state,
    case,
    check_moved,
    check_resumed,
    fit,
)
from tests.train.runs import lines

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(("dtype", "zero"), [("bf16", 3), pytest.param("fp32", 1, marks=pytest.mark.slow)])
def test_a_resumed_run_equals_one_that_never_stopped(
    made: Path, tmp_path: Path, process_group: ProcessGroups, dtype: str, zero: int
) -> None:
    """Bit for bit, with dropout, stopped at random steps, with asynchronous checkpoints."""
    changes = (f"model.config={made}/dropout", *case(dtype, zero, 2))
    check_resumed(process_group, made, tmp_path, 2, changes, seed=zero, stops_in_it=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "zero", "world_size"),
    [("fp32", 0, 2), ("fp32", 2, 4), ("bf16", 1, 2), ("bf16", 2, 1), ("fp16", 3, 2), ("fp16", 0, 1)],
)
def test_resumed_in_any_precision_and_stage(
    made: Path, tmp_path: Path, process_group: ProcessGroups, dtype: str, zero: int, world_size: int
) -> None:
    changes = (f"model.config={made}/dropout", *case(dtype, zero, 1), "checkpoint.every=1", "data.packing=concat")
    if dtype == "fp16":
        changes += ("precision.loss_scale=16777216", "precision.loss_scale_window=2")
    check_resumed(process_group, made, tmp_path, world_size, changes, seed=10 * world_size + zero)


@pytest.mark.parametrize(
    "parts",
    [[(2, 3), (1, 2), (2, 0)], pytest.param([(4, 3), (2, 0), (1, 2), (4, 1)], marks=pytest.mark.slow)],
)
def test_resumed_on_other_ranks_and_in_other_stages(
    made: Path, tmp_path: Path, process_group: ProcessGroups, parts: list[tuple[int, int]]
) -> None:
    check_moved(process_group, made, tmp_path, [(size, case("fp32", zero, 1)) for size, zero in parts])


@pytest.mark.slow
def test_workers_beside_ranks_change_nothing(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    """Any number of workers before and after a stop; rows that were read ahead are not lost."""
    group = process_group(2)
    whole = group.run(fit, made, tmp_path / "whole", (), timeout=TIMEOUT)
    parts = [
        group.run(fit, made, tmp_path / "parts", (f"data.workers={workers}",), stop, timeout=2 * TIMEOUT)
        for workers, stop in ((2, 3), (1, None))
    ]
    assert [one.finished for part in parts for one in part] == [(3, True)] * 2 + [(STEPS, False)] * 2
    for rank in range(2):
        assert [rows for part in parts for rows in part[rank].rows] == whole[rank].rows
    assert_same_state(parts[-1][0].state, whole[0].state)
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("zero", [3, 0])
def test_frozen_parameters_and_a_running_mean_resume_too(
    made: Path, tmp_path: Path, process_group: ProcessGroups, zero: int
) -> None:
    changes = (*case("fp32", zero, 2), "train.ema=0.75", 'model.freeze=["*.embed_in.*", "*.layers.0.*"]')
    check_resumed(process_group, made, tmp_path, 2, changes, seed=5)
    assert tree(tmp_path / "parts/model-ema") == tree(tmp_path / "whole/model-ema")
    # The steps again, from a checkpoint of each, in plain Python.
    means: dict[str, Tensor] = {}
    for step in range(1, STEPS + 1):
        until = (f"train.steps={step}", "schedule.kind=constant", "schedule.warmup=0")
        (seen,) = process_group(1).run(fit, made, tmp_path / f"until-{step}", (*changes, *until), timeout=TIMEOUT)
        assert seen.finished == (step, False)
        model = load_file(tmp_path / f"until-{step}/model/model.safetensors")
        means = {name: mean * 0.75 + model[name] * 0.25 for name, mean in means.items()} or model
    averaged = load_file(tmp_path / f"until-{STEPS}/model-ema/model.safetensors")
    begun = load_file(tmp_path / "until-1/model/model.safetensors")
    for name, mean in means.items():
        torch.testing.assert_close(averaged[name], mean, rtol=1e-5, atol=1e-7)
        frozen = "embed_in" in name or "layers.0." in name
        assert torch.equal(model[name], begun[name]) == frozen, name
        assert torch.equal(averaged[name], model[name]) == frozen, name


@pytest.mark.slow
def test_a_run_with_muon_resumes_too(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    changes = (*case("fp32", 3, 2), "optimizer.name=muon", "train.ema=0.9")
    check_resumed(process_group, made, tmp_path, 2, changes, seed=6, stops_in_it=1)
    (alone,) = process_group(1).run(fit, made, tmp_path / "alone", (*changes, "parallel.zero=0"), timeout=TIMEOUT)
    assert alone.error is None
    assert_close(lines(tmp_path / "whole"), lines(tmp_path / "alone"), loss=5e-3, grad_norm=5e-2)
