"""A run from a model object is a run from the saved object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pilekit.engine.ranks import join
from pilekit.train.config.file import load_config
from pilekit.train.trainer import Trainer
from tests.stopping import tree
from tests.tiny.models import tiny_model
from tests.train.ranks.fitting import Array, Job, case, fit


def fit_object(made: Path, out: Path, changes: Sequence[str]) -> tuple[dict[str, Array], bool]:
    """(the weights that the run begins with, whole, on rank 0; whether the object is as it was given).

    The object is a bfloat16 model, another one on each rank.
    """
    model = tiny_model("gpt2", seed=join().rank).to(torch.bfloat16).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = load_config(load_config(made / "tiny.toml", changes), {"model.config": None})
    ours = Trainer(config, out, model=model)
    start = {name: value.numpy().copy() for name, value in ours.engine.full_parameters()}
    ours.fit()
    after = model.state_dict()
    same = (value.dtype == torch.bfloat16 and torch.equal(value, after[name]) for name, value in before.items())
    return start, not model.training and all(same)


def test_a_run_from_an_object_is_one_from_its_folder(job: Job) -> None:
    """gpt2's head is its embedding. Frozen parameters: model/test_model_object.py and test_variants.py."""
    model, changes = tiny_model("gpt2", seed=0).to(torch.bfloat16), case("fp32", 3, 2)
    model.save_pretrained(job.folder / "saved")
    (start, first), (_, second) = job.run(fit_object, 2, "object", changes)
    assert first
    assert second
    for name, value in model.named_parameters():
        assert np.array_equal(start[name], value.detach().float().numpy()), name
    job.run(fit, 2, "path", (*changes, f"model.path={job.folder}/saved"))
    assert job.lines("object") == job.lines("path")
    weights = "model.safetensors"
    assert tree(job.folder / "object/model")[weights] == tree(job.folder / "path/model")[weights]
