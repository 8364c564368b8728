"""The figures and the model of a run on several ranks equal those of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from pilekit.train.config.file import load_config
from pilekit.train.trainer import Trainer
from tests.process_groups import ProcessGroups
from tests.tiny.models import Family, tiny_model
from tests.train.ranks.fitting import (
    STEPS,
    TIMEOUT,
    Array,
    assert_close,
    case,
    fit,
    fit_each,
    rows_of_steps,
)
from tests.train.runs import lines

pytestmark = pytest.mark.timeout(900)


def check_figures(
    made: Path, folder: Path, process_group: ProcessGroups, cases: Mapping[int, Sequence[tuple[str, int, int]]]
) -> None:
    """Run (dtype, stage, micro-batch size) on several ranks; compare with one rank, stage 0, one row at a time.

    In float32 only the order of sums differs. In bf16, the gradient of a micro-batch is rounded to 8 bits. With one row
    per micro-batch, any number of ranks sums the same numbers, so figures are as close as in float32; with more rows
    they differ by rounding. (Clipping would add to that: the norm's sum has another order, and a rare weight then
    rounds to another bfloat16.)
    """
    alone = [(folder / f"alone-{dtype}", case(dtype, 0, 1)) for dtype in ("fp32", "bf16")]
    (expected,) = process_group(1).run(fit_each, made, alone, timeout=TIMEOUT)
    for world_size, given in cases.items():
        runs = [(folder / "-".join(map(str, (world_size, *one))), case(*one)) for one in given]
        seen = process_group(world_size).run(fit_each, made, runs, timeout=TIMEOUT + 5 * len(runs))
        for number, ((dtype, _, micro), (run, _)) in enumerate(zip(given, runs, strict=True)):
            parts = [of_rank[number] for of_rank in seen]
            assert [part.error for part in parts] == [None] * world_size
            assert [part.steps for part in parts] == [[*range(1, STEPS + 1)]] * world_size
            assert rows_of_steps(parts) == rows_of_steps([expected[dtype == "bf16"]])
            near = dtype == "fp32" or micro == 1
            tolerances = {"loss": 1e-5, "grad_norm": 1e-5} if near else {"loss": 2e-3, "grad_norm": 4e-3}
            assert_close(lines(run), lines(folder / f"alone-{dtype}"), **tolerances)


def test_figures_equal_those_of_one_process(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    check_figures(made, tmp_path, process_group, {2: [("fp32", 3, 2), ("bf16", 2, 4)]})


def fit_and_gather(made: Path, out: Path, changes: Sequence[str]) -> dict[str, Array]:
    """The final weights by name, on rank 0."""
    ours = Trainer(load_config(made / "run.toml", changes), out)
    assert ours.fit().model == out / "model"
    return {name: value.numpy().copy() for name, value in ours.engine.full_parameters()}


@pytest.mark.parametrize(("family", "dtype"), [("gpt2", "fp32"), pytest.param("llama", "bf16", marks=pytest.mark.slow)])
def test_the_exported_model_equals_the_trained_one(
    made: Path, tmp_path: Path, process_group: ProcessGroups, family: Family, dtype: str
) -> None:
    """gpt2's head is its embedding, which the file holds once."""
    begun = tiny_model(family, seed=3)
    for module in begun.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    begun.config.update(
        {name: 0.0 for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop") if hasattr(begun.config, name)}
    )
    begun.save_pretrained(tmp_path / "begun")
    changes = (f"model.path={tmp_path}/begun", *case(dtype, 3, 1))
    weights, rest = process_group(2).run(fit_and_gather, made, tmp_path / "two", changes, timeout=TIMEOUT)
    assert all(value.size == 0 for value in rest.values())
    process_group(1).run(fit, made, tmp_path / "one", changes, timeout=TIMEOUT)

    ids = torch.randint(2, 300, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = begun.eval()(input_ids=ids).logits
        exported, alone = (
            AutoModelForCausalLM.from_pretrained(tmp_path / run / "model")(input_ids=ids).logits
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
