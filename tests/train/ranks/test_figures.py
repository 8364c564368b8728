"""The figures and the model of a run on several ranks equal those of one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tiny.models import Family, tiny_model
from tests.train.ranks.fitting import Array, Job, case, fit
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
