"""The figures and the model of a run on several ranks equal those of one process, also from a model object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig

from pilekit.train.config.file import load_config
from pilekit.train.trainer import Trainer
from pilekit.workers.ranks import join
from tests.stopping import tree
from tests.tiny.models import SMALL, Family, tiny_model
from tests.train.ranks.fitting import Array, Job, base, case, fit
from tests.train.runs import trainer


def test_figures_equal_those_of_one_process(job: Job) -> None:
    """In float32 only the order of sums differs. In bf16, the gradient of a micro-batch is rounded to 8 bits.

    (In bf16 nothing is clipped: the norm's sum has another order, and a rare weight would round to another bfloat16.)
    """
    one = {dtype: case(dtype, 0, 1) for dtype in ("fp32", "bf16")}
    two = [("fp32", case("fp32", 3, 2), 1e-5, 1e-5), ("bf16", case("bf16", 2, 4), 2e-3, 4e-3)]
    job.check_as_one(one, two)


def fit_and_gather(made: Path, out: Path, changes: Sequence[str]) -> dict[str, Array]:
    """The final weights by name, on rank 0."""
    ours = trainer(made, out, *changes)
    assert ours.fit().model == out / "model"
    return {name: value.numpy().copy() for name, value in ours.engine.full_parameters()}


@pytest.mark.parametrize(("family", "dtype"), [("gpt2", "fp32"), pytest.param("llama", "bf16", marks=pytest.mark.slow)])
def test_the_exported_model_equals_the_trained_one(job: Job, family: Family, dtype: str) -> None:
    """gpt2's head is its embedding, which the file holds once."""
    begun = tiny_model(family, seed=3)
    for module in begun.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    begun.config.update(
        {name: 0.0 for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop") if hasattr(begun.config, name)}
    )
    begun.save_pretrained(job.folder / "begun")
    changes = (f"model.path={job.folder}/begun", *case(dtype, 3, 1))
    weights, rest = job.run(fit_and_gather, 2, "two", changes)
    assert all(value.size == 0 for value in rest.values())
    job.run(fit, 1, "one", changes)

    ids = torch.randint(2, 300, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = begun.eval()(input_ids=ids).logits
        exported, alone = (
            AutoModelForCausalLM.from_pretrained(job.folder / run / "model")(input_ids=ids).logits
            for run in ("two", "one")
        )
        trained = tiny_model(family, seed=4).eval()
        missing, unknown = trained.load_state_dict(
            {name: torch.from_numpy(w) for name, w in weights.items()}, strict=False
        )
        assert unknown == []
        assert missing == (["lm_head.weight"] if family == "gpt2" else [])
        assert torch.equal(trained(input_ids=ids).logits, exported)
    torch.testing.assert_close(exported, alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(exported, before, atol=0.1)


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
    """gpt2's head is its embedding. Frozen parameters: model/test_model_object.py, and below."""
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


# Frozen parameters, a running mean, adapters, Muon and experts


VARIANTS = {
    "frozen": ("train.ema=0.75", 'model.freeze=["*.embed_in.*", "*.layers.0.*"]'),
    "adapted": ("lora.rank=3", 'lora.targets=["query_key_value", "dense"]', "optimizer.layer_decay=0.5"),
    "muon": ("optimizer.name=muon", "train.ema=0.9"),
}


@pytest.mark.parametrize("stages", [(2,), pytest.param((0, 1, 3), marks=pytest.mark.slow)])
def test_variants_have_the_figures_of_one_process(job: Job, stages: tuple[int, ...]) -> None:
    """Muon rounds to bfloat16, so a sum in another order may change its direction a little."""
    pytest.importorskip("peft")
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
