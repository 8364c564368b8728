"""Frozen parameters, a running mean, adapters, Muon and experts: in every stage, two ranks have the figures of one."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig

from tests.tiny.models import SMALL
from tests.train.ranks.fitting import Job, case
from tests.train.ranks.test_lora import base

VARIANTS = {
    "frozen": ("train.ema=0.75", 'model.freeze=["*.embed_in.*", "*.layers.0.*"]'),
    "adapted": ("lora.rank=3", 'lora.targets=["query_key_value", "dense"]', "optimizer.layer_decay=0.5"),
    "muon": ("optimizer.name=muon", "train.ema=0.9"),
}


@pytest.mark.parametrize("stages", [(2,), pytest.param((0, 1, 3), marks=pytest.mark.slow)])
def test_two_ranks_have_the_figures_of_one(job: Job, stages: tuple[int, ...]) -> None:
    """Muon rounds to bfloat16, so a sum in another order may change its direction a little."""
    variants = VARIANTS | {"adapted": (*VARIANTS["adapted"], base(job.made))}
    one = {name: (*changes, *case("fp32", 0, 1)) for name, changes in variants.items()}
    two = [
        (name, (*changes, *case("fp32", stage, 2)), *((5e-3, 5e-2) if name == "muon" else (1e-5, 1e-4)))
        for name, changes in variants.items()
        for stage in stages
    ]
    job.check_as_one(one, two)


def test_a_mixture_of_experts_is_trained_on_two_ranks_as_on_one(job: Job) -> None:
    """A small Mixtral under ZeRO-3; the exported models predict alike."""
    routed = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    MixtralConfig(**SMALL | {"max_position_embeddings": 48} | routed).save_pretrained(job.folder / "shape")
    changes = (f"model.config={job.folder}/shape",)
    one, two = (*changes, *case("fp32", 0, 1)), (*changes, *case("fp32", 3, 2))
    job.check_as_one({"experts": one}, [("experts", two, 1e-5, 1e-4)])
    models = [AutoModelForCausalLM.from_pretrained(job.folder / run / "model") for run in ("experts", "experts-0")]
    assert any("experts" in name for name, _ in models[0].named_parameters())
    ids = torch.arange(2, 42).reshape(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(*(model(ids).logits for model in models), rtol=1e-3, atol=1e-4)
