"""Runs on a GPU: the losses of a CPU, every setting that has code of its own there, and figures that only a GPU has."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pilekit import bits_per_byte
from pilekit.errors import PilekitError
from pilekit.train.log.metrics import StepBitsPerByte, StepMetrics, read_metrics
from pilekit.train.log.mfu import peak_of
from tests.gpu import needs_gpu
from tests.process_groups import ProcessGroups
from tests.tiny.masked import config_of
from tests.tiny.models import tiny_corpus, tiny_model_dir, tiny_neox_config
from tests.tokenize.making import byte_level_bpe
from tests.train.ranks.fitting import fit
from tests.train.runs import interrupt_at, tiny_run, trainer

pytestmark = needs_gpu

STEPS = 20
VARIANTS = [
    ("precision.dtype=bf16", "parallel.zero=3"),
    ("precision.dtype=bf16", "parallel.zero=3", "checkpoint.asynchronous=false"),
    ("precision.dtype=fp16", "precision.loss_scale=1024"),
    ("precision.dtype=bf16", "parallel.zero=3", "parallel.offload=true"),
    ("parallel.zero=3", "parallel.offload=true"),
    ("precision.dtype=bf16", "parallel.activation_checkpoint=full"),
    ("precision.dtype=bf16", "parallel.activation_checkpoint=selective"),
    ("precision.dtype=bf16", "parallel.compile=true"),
    ("precision.dtype=bf16", "model.attention_implementation=flex_attention"),
    ("precision.dtype=bf16", "model.attention_implementation=flex_attention", "train.micro_batch_size=1"),
    ("precision.dtype=bf16", "model.attention_implementation=varlen"),
    ("precision.dtype=bf16", "model.attention_implementation=varlen", "parallel.compile=step", "parallel.zero=3"),
    ("precision.dtype=bf16", "optimizer.name=muon", "train.ema=0.9"),
    ("precision.dtype=bf16", "model.path=TEACHER", "lora.rank=4", "lora.merge=true"),
    ("precision.dtype=bf16", 'model.freeze=["*.embed_in.*"]', "data.workers=2"),
    ("precision.dtype=bf16", "teacher.path=TEACHER", "teacher.dtype=bf16"),
]


def losses(run: Path) -> list[float]:
    return [step.loss or math.nan for step in read_metrics(run / "metrics.jsonl")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    tiny_model_dir(folder / "teacher")
    return tiny_run(folder, f"train.steps={STEPS}", "optimizer.lr=0.01", num_attention_heads=2)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a BERT, whose tokenizer has a mask token."""
    folder = tmp_path_factory.mktemp("masked")
    changes = ("train.objective=mlm", f"model.config={folder}/bert", f"train.steps={STEPS}", "optimizer.lr=0.01")
    tiny_run(folder, *changes, documents=60)
    byte_level_bpe(300, added=("<mask>",)).save(str(folder / "tokenizer" / "tokenizer.json"))
    config_of("bert").save_pretrained(folder / "bert")
    return folder


@pytest.mark.parametrize("objective", ["made", "masked"])
def test_losses_are_those_of_a_cpu(
    objective: str, tmp_path: Path, process_group: ProcessGroups, request: pytest.FixtureRequest
) -> None:
    made = request.getfixturevalue(objective)
    process_group(1).run(fit, made, tmp_path / "cpu", ())
    ours = trainer(made, tmp_path / "gpu")
    assert ours.ranks.device.type == "cuda"
    ours.fit()
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-3)
    ends = (sum(part) for part in (losses(tmp_path / "gpu")[:5], losses(tmp_path / "gpu")[-5:]))
    assert next(ends) > next(ends)


@pytest.mark.parametrize("changes", VARIANTS, ids=" ".join)
def test_a_resumed_run_equals_one_that_never_stopped(made: Path, tmp_path: Path, changes: tuple[str, ...]) -> None:
    changes = tuple(change.replace("TEACHER", str(made / "teacher")) for change in changes)
    trainer(made, tmp_path / "run", *changes).fit(interrupt_at(9))
    trainer(made, tmp_path / "run", *changes).fit()
    trainer(made, tmp_path / "whole", *changes).fit()
    assert len(losses(tmp_path / "run")) == STEPS
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "whole"), rel=1e-2)


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("precision.dtype=bf16", "parallel.zero=3", "train.ema=0.9"),
        ("precision.dtype=fp16", "precision.loss_scale=16777216", "precision.loss_scale_window=2"),
        ("precision.dtype=bf16", "optimizer.name=muon"),
        ("precision.dtype=bf16", "model.attention_implementation=varlen", "data.packing=concat"),
        ("data.attention=causal",),
    ],
    ids=" ".join,
)
def test_a_step_waits_for_nothing(made: Path, tmp_path: Path, changes: tuple[str, ...]) -> None:
    """torch raises where the CPU would wait. In the first steps libraries may."""
    ours = trainer(made, tmp_path / "run", *changes, "checkpoint.every=100")
    engine: Any = ours.engine
    begun = 0

    def strict(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            nonlocal begun
            begun += 1
            torch.cuda.set_sync_debug_mode("error" if begun > 9 else "default")
            try:
                return method(*given, **more)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return call

    engine.forward_backward, engine.update = strict(engine.forward_backward), strict(engine.update)
    ours.fit()
    assert begun == 3 * STEPS  # two micro-batches and an update
    assert len(losses(tmp_path / "run")) == STEPS


def test_a_loss_that_is_not_a_number_leaves_the_weights_of_the_step_before(made: Path, tmp_path: Path) -> None:
    ours = trainer(made, tmp_path / "run", "checkpoint.every=100")
    engine: Any = ours.engine
    update, done = engine.update, 0

    def broken(lr: float, nll: torch.Tensor, **more: Any) -> Any:
        nonlocal done
        done += 1
        return update(lr, nll * math.nan if done == 6 else nll, **more)

    engine.update = broken
    with pytest.raises(PilekitError, match=r"^step 6: the gradient's norm is nan, in rows with "):
        ours.fit()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-5"]
    trainer(made, tmp_path / "run", "checkpoint.every=100").fit()
    trainer(made, tmp_path / "whole", "checkpoint.every=100").fit()
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "whole"), rel=1e-3)


def test_flex_attention_learns_as_sdpa_does(made: Path, tmp_path: Path) -> None:
    for name in ("sdpa", "flex_attention"):
        trainer(made, tmp_path / name, f"model.attention_implementation={name}").fit()
    tiny_neox_config(num_attention_heads=4).save_pretrained(tmp_path / "narrow")
    flex = "model.attention_implementation=flex_attention"
    with pytest.raises(PilekitError, match=r"does not run with this model here \(.*; set \"sdpa\"$"):
        trainer(made, tmp_path / "run", flex, f"model.config={tmp_path}/narrow")
    assert losses(tmp_path / "flex_attention") == pytest.approx(losses(tmp_path / "sdpa"), rel=1e-3)


def test_varlen_attention_learns_as_sdpa_does(made: Path, tmp_path: Path) -> None:
    """In bf16, which its kernel needs; with documents that share rows, and with the rows as documents."""
    for attention in ("document", "causal"):
        found = {}
        for name in ("sdpa", "varlen"):
            run = tmp_path / f"{name}-{attention}"
            changes = (f"model.attention_implementation={name}", f"data.attention={attention}", "data.packing=concat")
            trainer(made, run, *changes, "precision.dtype=bf16").fit()
            found[name] = losses(run)
        assert found["varlen"] == pytest.approx(found["sdpa"], rel=5e-3)
    with pytest.raises(PilekitError, match=r"does not run with this model here \(.*; set \"sdpa\"$"):
        trainer(made, tmp_path / "run", "model.attention_implementation=varlen")


def test_a_run_is_scored_while_it_trains(made: Path, tmp_path: Path) -> None:
    held_out = tiny_corpus(tmp_path / "held-out", seed=7)
    scored = ("train.eval_every=10", f"train.eval_path={held_out}", "precision.dtype=bf16")
    trainer(made, tmp_path / "run", *scored).fit()
    last = list(read_metrics(tmp_path / "run" / "metrics.jsonl"))[-1]
    exported = bits_per_byte(tmp_path / "run" / "model", held_out, dtype="fp32").overall.bpb
    assert isinstance(last.bpb, StepBitsPerByte)
    assert last.bpb.overall == pytest.approx(exported, rel=2e-2)


def test_memory_and_the_share_of_the_peak_are_measured(made: Path, tmp_path: Path) -> None:
    trainer(made, tmp_path / "run", "precision.dtype=bf16").fit()
    steps: list[StepMetrics] = list(read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert all(0 < step.memory_bytes < torch.cuda.get_device_properties(0).total_memory for step in steps)
    if peak_of(torch.device("cuda"), "bf16"):
        assert all(0 < (step.mfu or 0) < 1 for step in steps)


def test_a_profile_has_the_kernels_of_the_gpu(made: Path, tmp_path: Path) -> None:
    trainer(made, tmp_path / "run", "precision.dtype=bf16", "parallel.zero=3", "log.profile=[5, 8]").fit()
    page = (tmp_path / "run" / "profile" / "breakdown.txt").read_text()
    assert page.startswith("Where the time of steps 5 to 8 went: rank 0 of 1, on cuda, bf16, parallel.zero = 3\n")
    assert "Self CUDA %" in page
    (computing,) = re.findall(r"^ +([\d.]+)% computing on the GPU$", page, re.MULTILINE)
    assert 0 < float(computing) <= 100
    assert re.search(r"^ +(void |aten::|nvjet|ampere|sm\d\d)\S+", page, re.MULTILINE)
    assert (tmp_path / "run" / "profile" / "trace-rank0.json.gz").stat().st_size > 10_000
