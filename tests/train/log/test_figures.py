"""The records of a real run agree: metrics.jsonl, TensorBoard, `pilekit bpb`, the profile and the warnings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pilekit.cli.main import pilekit
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.train.log.metrics import numbers_of, read_metrics
from tests.refusing import refused
from tests.tiny.models import tiny_corpus
from tests.train.log.test_viewers import read_tensorboard, read_wandb
from tests.train.runs import tiny_run, trainer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = ("train.steps=7", "train.eval_every=3", "optimizer.lr=0.01", "checkpoint.every=2", "log.tensorboard=true")
    folder = tiny_run(tmp_path_factory.mktemp("figures"), *changes)
    tiny_corpus(folder / "data" / "val", shards=1, documents=12, seed=5)
    return folder


@pytest.mark.parametrize("wandb", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_records_of_a_run_agree(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wandb: bool) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, changes = tmp_path / "run", ["schedule.kind=constant", f"log.wandb={str(wandb).lower()}", "log.profile=[2, 3]"]
    trainer(made, run, *changes, "train.steps=5").fit()
    trainer(made, run, *changes).fit()
    steps = read_metrics(run / "metrics.jsonl")
    assert [step.step for step in steps] == list(range(1, 8))
    assert [step.step for step in steps if step.bpb] == [3, 5, 6, 7]
    scored = bits_per_byte(run / "model", made / "data" / "val")
    assert steps[-1].bpb
    assert steps[-1].bpb.overall == scored.overall.bpb
    assert steps[-1].bpb.subsets == {name: score.bpb for name, score in scored.subsets.items()}
    assert all(step.memory_bytes > 50 << 20 and step.loss_scale is None and step.skipped == 0 for step in steps)

    expected: dict[str, list[tuple[int, Any]]] = {}
    for step in steps:
        for name, number in numbers_of(step):
            expected.setdefault(name, []).append((step.step, pytest.approx(number, rel=1e-6)))
    assert read_tensorboard(run / "tensorboard") == expected
    if wandb:
        (one, first), (other, resumed) = read_wandb(run / "wandb")
        assert one == other  # the page of the first start is continued
        assert {name: first.get(name, []) + resumed.get(name, []) for name in expected} == expected
    assert (run / "profile" / "breakdown.txt").read_text().startswith("Where the time of steps 2 to 3 went")

    bare = ["schedule.kind=constant", "train.eval_every=0", "log.tensorboard=false", "checkpoint.every=100"]
    trainer(made, tmp_path / "bare", *bare, "log.every=3").fit()
    losses = [step.loss for step in read_metrics(tmp_path / "bare" / "metrics.jsonl")]
    assert losses == [steps[number - 1].loss for number in (3, 6, 7)]


def test_a_missing_requirement_is_named_before_anything_is_written(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))
    for change, message in (
        ("train.eval_every=0", "log.tensorboard = true: the package tensorboard is not installed"),
        (f"data.path={made}/data/0*", "train.eval_every = 3: there are no val shards"),
    ):
        changes = [change] if "eval" in change else [change, "log.tensorboard=false"]
        refused(message, trainer, made, tmp_path / "run", *changes)
        words = ["--out", str(tmp_path / "run"), "--dry-run", *(word for one in changes for word in ("--set", one))]
        result = CliRunner().invoke(pilekit, ["train", str(made / "tiny.toml"), *words])
        assert message in result.output + str(result.exception)
    assert not (tmp_path / "run").exists()
