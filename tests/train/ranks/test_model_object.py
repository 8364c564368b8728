"""A run from a model object: it starts as a run from the saved object would, and frozen parameters stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pilekit.engine.ranks import join
from pilekit.train.config.file import load_config
from pilekit.train.trainer import Trainer
from tests.process_groups import ProcessGroups
from tests.stopping import tree
from tests.tiny.models import Family, tiny_model
from tests.train.ranks.fitting import TIMEOUT, Array, case
from tests.train.runs import interrupt_at, lines

pytestmark = pytest.mark.timeout(900)


@dataclass
class Trained:
    """What one rank saw of a run from a model object."""

    start: dict[str, Array]
    """The weights that the run began with, whole, on rank 0."""
    end: dict[str, Array]
    """The weights after it."""
    trained: list[str]
    """The names of the parameters with a gradient."""
    is_as_before: bool
    """Whether the object is as it was given."""


def weights_of(ours: Trainer) -> dict[str, Array]:
    return {name: value.numpy().copy() for name, value in ours.engine.full_parameters()}


def fit_object(
    made: Path, out: Path, changes: Sequence[str], family: Family, frozen: Sequence[str], stop: int | None = None
) -> Trained:
    """Train a bfloat16 model, which is another one on each rank, without the parameters whose names match `frozen`."""
    model = tiny_model(family, seed=join().rank).to(torch.bfloat16).eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(fnmatchcase(name, pattern) for pattern in frozen))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = load_config(load_config(made / "run.toml", changes), {"model.config": None})
    ours = Trainer(config, out, model=model)
    start = weights_of(ours)
    ours.fit(None if stop is None else interrupt_at(stop))
    after = model.state_dict()
    is_as_before = not model.training and all(
        value.dtype == torch.bfloat16 and torch.equal(value, after[name]) for name, value in before.items()
    )
    trained = [name for name, parameter in ours.engine.lm.model.named_parameters() if parameter.requires_grad]
    return Trained(start, weights_of(ours), trained, is_as_before)


def fit_path(made: Path, out: Path, changes: Sequence[str]) -> None:
    Trainer(load_config(made / "run.toml", changes), out).fit()


def check_object(
    made: Path, folder: Path, process_group: ProcessGroups, family: Family, frozen: Sequence[str], changes: Any
) -> None:
    folder.mkdir()
    group, model = process_group(2), tiny_model(family, seed=0).to(torch.bfloat16)
    model.save_pretrained(folder / "saved")
    given = {name: value.detach().float().numpy() for name, value in model.named_parameters()}
    first, second = group.run(fit_object, made, folder / "whole", changes, family, frozen, timeout=TIMEOUT)
    kept = {name for name in given if any(fnmatchcase(name, pattern) for pattern in frozen)}
    assert first.is_as_before
    assert second.is_as_before
    assert first.trained == second.trained == [name for name in given if name not in kept]
    for name, value in given.items():
        assert np.array_equal(first.start[name], value), name
        assert np.array_equal(first.end[name], value) == (name in kept), name
    if not frozen:
        group.run(fit_path, made, folder / "path", (*changes, f"model.path={folder}/saved"), timeout=TIMEOUT)
        assert lines(folder / "whole") == lines(folder / "path")
        weights = "model.safetensors"
        assert tree(folder / "whole/model")[weights] == tree(folder / "path/model")[weights]
        return
    for stop in (2, None):
        group.run(fit_object, made, folder / "parts", changes, family, frozen, stop, timeout=TIMEOUT)
    assert lines(folder / "parts") == lines(folder / "whole")
    assert tree(folder / "parts/model") == tree(folder / "whole/model")


def test_a_run_from_an_object_is_one_from_its_folder(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    """gpt2's head is its embedding."""
    check_object(made, tmp_path / "all", process_group, "gpt2", (), case("fp32", 3, 2))


@pytest.mark.slow
def test_a_run_from_an_object_in_all_stages(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    """Whole, with frozen embeddings and lower block, and with all but the head frozen."""
    lower = "gpt_neox.embed_in.weight", "gpt_neox.layers.0.*"
    cases: list[tuple[Family, tuple[str, ...], str, int]] = [
        *(("gpt_neox", frozen, "fp32", zero) for zero in (0, 1, 2, 3) for frozen in ((), lower)),
        *(("gpt2", ("transformer.wte.weight", "transformer.h.0.*"), "bf16", zero) for zero in (0, 1, 3)),
        *(("gpt_neox", ("gpt_neox.*",), dtype, zero) for dtype, zero in (("fp32", 0), ("bf16", 2), ("fp16", 3))),
    ]
    for number, (family, frozen, dtype, zero) in enumerate(cases):
        check_object(made, tmp_path / str(number), process_group, family, frozen, case(dtype, zero, 2))
