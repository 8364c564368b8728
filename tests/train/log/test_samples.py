"""Samples during training: as `generate` makes them, on any number of ranks, and nothing else changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pilekit.errors import PilekitError
from pilekit.evaluate.generate import generate, prompts_of
from pilekit.train.config.file import load_config
from tests.process_groups import ProcessGroups
from tests.refusing import refused
from tests.stopping import tree
from tests.train.ranks.fitting import assert_same_state, fit
from tests.train.runs import lines, tiny_run, trainer

SAMPLES = ("log.samples_every=2", "train.steps=5", "checkpoint.every=1", "checkpoint.keep_last=9")
PLAIN = SAMPLES[1:]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Dropout draws random numbers in every step, so one that a sample draws too would be seen.
    return tiny_run(tmp_path_factory.mktemp("samples"), hidden_dropout=0.1, attention_dropout=0.1)


def samples(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]


def test_a_run_is_the_same_with_samples_and_they_are_what_generate_makes(made: Path, tmp_path: Path) -> None:
    trainer(made, tmp_path / "with", *SAMPLES).fit()
    trainer(made, tmp_path / "without", *PLAIN).fit()
    assert lines(tmp_path / "with") == lines(tmp_path / "without")
    for step in range(1, 6):
        ours, theirs = (tree(tmp_path / run / f"checkpoints/step-{step}") for run in ("with", "without"))
        assert ours["__0_0.distcp"] == theirs["__0_0.distcp"]
        assert json.loads(ours["state.json"])["progress"] == json.loads(theirs["state.json"])["progress"]
    assert not (tmp_path / "without" / "samples.jsonl").exists()
    model = "model/model.safetensors"
    assert (tmp_path / "with" / model).read_bytes() == (tmp_path / "without" / model).read_bytes()

    found = samples(tmp_path / "with")
    assert [one["step"] for one in found] == [2] * 4 + [4] * 4 + [5] * 4
    prompts = prompts_of(made / "data", made / "tokenizer", tokens=10, per_subset=4, most=4)
    expected = generate(tmp_path / "with" / "model", prompts, max_new_tokens=21)
    for one, of in zip(found[-4:], expected, strict=True):
        assert one == {"step": 5, **of.to_dict(), "model": str(tmp_path / "with")}
    assert found[-1] != {**found[0], "step": 5}


def test_a_killed_run_neither_repeats_nor_loses_a_sample(made: Path, tmp_path: Path) -> None:
    trainer(made, tmp_path / "whole", *SAMPLES).fit()
    for newest in (1, 2, 3, 4):
        killed = tmp_path / f"killed-{newest}"
        shutil.copytree(tmp_path / "whole", killed)
        shutil.rmtree(killed / "model")
        for step in range(newest + 1, 6):
            shutil.rmtree(killed / "checkpoints" / f"step-{step}")
        with (killed / "samples.jsonl").open("a") as file:
            file.write('{"step":5,"prom')  # a power cut
        trainer(made, killed, *SAMPLES).fit()
        assert [{**one, "model": ""} for one in samples(killed)] == [
            {**one, "model": ""} for one in samples(tmp_path / "whole")
        ]
        assert lines(killed) == lines(tmp_path / "whole")


@pytest.mark.parametrize("zero", [0, 3])
def test_two_ranks_make_the_same_samples_and_the_same_run(
    made: Path, tmp_path: Path, process_group: ProcessGroups, zero: int
) -> None:
    changes = (f"parallel.zero={zero}", "train.micro_batch_size=1")
    ours = process_group(2).run(fit, made, tmp_path / "with", (*SAMPLES, *changes))
    theirs = process_group(2).run(fit, made, tmp_path / "without", (*PLAIN, *changes))
    assert [one.error for one in (*ours, *theirs)] == [None] * 4
    assert lines(tmp_path / "with") == lines(tmp_path / "without")
    assert_same_state(ours[0].state, theirs[0].state)
    found = samples(tmp_path / "with")
    prompts = prompts_of(made / "data", made / "tokenizer", tokens=10, per_subset=4, most=4)
    expected = generate(tmp_path / "with" / "model", prompts, max_new_tokens=21)
    assert [one["text"] for one in found[-4:]] == [one.text for one in expected]
    assert [one["step"] for one in found] == [2] * 4 + [4] * 4 + [5] * 4


def test_prompts_of_the_config_and_wrong_ones(made: Path, tmp_path: Path) -> None:
    trainer(made, tmp_path / "run", "log.samples_every=9", "log.samples_prompts=a b,c d", "train.steps=2").fit()
    assert [(one["step"], one["prompt"]) for one in samples(tmp_path / "run")] == [(2, "a b"), (2, "c d")]
    short = tmp_path / "val.jsonl"
    short.write_text('{"text": "a"}\n')
    for changes, message in (
        ((f"log.samples_prompts={'word ' * 60}", "log.samples_every=1"), "log.samples_prompts = .*at most 30 tokens"),
        (
            (f"train.eval_path={tmp_path / 'val.jsonl'}", "log.samples_every=1"),
            "log.samples_every = 1: .*; or give log.samples_prompts",
        ),
    ):
        refused(message, trainer, made, tmp_path / "other", *changes)
    with pytest.raises(PilekitError, match=r"log\.samples_prompts = .*needs log\.samples_every"):
        load_config(made / "tiny.toml", ["log.samples_prompts=a"])
    assert not (tmp_path / "other").exists()
