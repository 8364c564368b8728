"""The figures and the model of a run on several ranks equal those of one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from pilekit.train.config import load_config
from pilekit.train.trainer import Trainer
from tests.process_groups import ProcessGroups
from tests.tiny import Family, tiny_model
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
    check_figures(made, tmp_path, process_group, {2: [("fp32", 0, 1), ("fp32", 3, 2), ("bf16", 2, 4)]})


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_figures_of_all_stages_precisions_and_sizes(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    cases = {
        world_size: [
            (dtype, zero, micro)
            for dtype in ("fp32", "bf16")
            for zero in (0, 1, 2, 3)
            for micro in (1, 2, 4, 8)
            if 8 // world_size % micro == 0
        ]
        for world_size in (1, 2, 4)
    }
    check_figures(made, tmp_path, process_group, cases)


@dataclass
class Step:
    """The inputs of a step: the weights before it, on rank 0, and this rank's rows."""

    weights: dict[str, Array]
    rows: dict[str, Array]


def fit_and_note_all(made: Path, out: Path, changes: Sequence[str]) -> tuple[list[Step], tuple[str, ...]]:
    """(every step, the subsets' names) of a run, in each rank."""
    ours = Trainer(load_config(made / "run.toml", changes), out)
    steps: list[Step] = []
    forward_backward, begins = ours.engine.forward_backward, [True]

    def noting(rows: Mapping[str, torch.Tensor], *, scale: float, last: bool) -> torch.Tensor:
        columns = {name: rows[name].numpy().copy() for name in ("input_ids", "doc_ids", "subset_ids")}
        if begins[0]:
            weights = {name: value.numpy().copy() for name, value in ours.engine.full_parameters()}
            steps.append(Step(weights, columns))
        else:
            steps[-1].rows = {name: np.concatenate([steps[-1].rows[name], columns[name]]) for name in columns}
        begins[0] = last
        return forward_backward(rows, scale=scale, last=last)

    cast("Any", ours.engine).forward_backward = noting
    ours.fit()
    return steps, ours.stream.subset_names


def losses_of(model: Any, rows: dict[str, Array], names: Sequence[str]) -> list[tuple[str, float]]:
    """(subset, loss) of each token with a token before it in its document and row, one document at a time."""
    losses = []
    for ids, documents, subsets in zip(rows["input_ids"], rows["doc_ids"], rows["subset_ids"], strict=True):
        for document in range(int(documents.max()) + 1):
            own = torch.from_numpy(ids[documents == document])
            shares = torch.log_softmax(model(input_ids=own[None], use_cache=False).logits[0].double(), -1)
            (subset,) = set(subsets[documents == document].tolist())
            losses += [(names[subset], -float(shares[i, own[i + 1]])) for i in range(len(own) - 1)]
    return losses


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (
            2,
            (
                "parallel.zero=3",
                "train.global_batch_size=6",
                "train.micro_batch_size=1",
                "data.packing=none",
                "data.window=1",
            ),
        ),
        pytest.param(4, ("parallel.zero=2", "data.attention=document"), marks=pytest.mark.slow),
        pytest.param(
            2, ("parallel.zero=1", "train.global_batch_size=6", "train.micro_batch_size=3"), marks=pytest.mark.slow
        ),
    ],
)
def test_losses_equal_those_of_the_model_on_each_document(
    made: Path, tmp_path: Path, process_group: ProcessGroups, world_size: int, changes: tuple[str, ...]
) -> None:
    """Computed from the weights before each step, one document at a time: the step's loss, and each subset's."""
    seen = process_group(world_size).run(fit_and_note_all, made, tmp_path / "run", changes, timeout=TIMEOUT)
    records, names = lines(tmp_path / "run"), seen[0][1]
    assert len(records) == STEPS
    config: Any = GPTNeoXConfig.from_pretrained(made / "plain")
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager").eval()
    uneven, several = 0, 0
    for record, parts in zip(records, zip(*(steps for steps, _ in seen), strict=True), strict=True):
        model.load_state_dict({name: torch.from_numpy(value) for name, value in parts[0].weights.items()})
        with torch.no_grad():
            by_rank = [losses_of(model, part.rows, names) for part in parts]
        by_subset = defaultdict(list)
        for subset, loss in (pair for losses in by_rank for pair in losses):
            by_subset[subset].append(loss)
        mean = np.mean([loss for losses in by_subset.values() for loss in losses])
        assert record["loss"] == pytest.approx(mean, rel=1e-5)
        assert record["loss_by_subset"] == pytest.approx(
            {name: np.mean(by_subset[name]) for name in by_subset}, rel=1e-5
        )
        mean_of_means = np.mean([np.mean([loss for _, loss in losses]) for losses in by_rank])
        uneven += abs(mean_of_means / mean - 1) > 1e-3
        several += len(by_subset) > 2
    assert several >= STEPS // 2
    if "data.packing=none" in changes:
        assert uneven >= 2  # a mean of the ranks' means would have been wrong


@pytest.mark.slow
def test_training_in_fp16_converges(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    """From a loss scale that is far too large, which all ranks lower together."""
    changes = (*case("fp16", 2, 4), "precision.loss_scale=1073741824", "precision.loss_scale_hysteresis=1")
    changes += ("train.steps=40", "checkpoint.every=1000", "optimizer.eps=1e-8")
    seen = process_group(2).run(fit, made, tmp_path / "run", changes, timeout=TIMEOUT)
    assert [part.error for part in seen] == [None, None]
    records = lines(tmp_path / "run")
    assert 0 < records[-1]["skipped"] < 20
    assert records[-1]["loss_scale"] < 2**30
    assert records[-1]["grad_norm"] is not None
    losses = [record["loss"] for record in records if record["loss"] is not None]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


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
