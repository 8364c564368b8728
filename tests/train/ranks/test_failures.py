"""If one rank fails or has nothing to learn from, all ranks stop, or skip the step, together."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard

from pilekit.errors import PilekitError
from pilekit.tokenize import load_tokenizer
from pilekit.train.checkpoint.state_file import read_state
from pilekit.train.config.file import load_config
from pilekit.train.data import open_stream
from pilekit.train.log.metrics import StepMetrics
from pilekit.train.step.sharding import own_part
from pilekit.workers.ranks import join
from tests.stopping import tree
from tests.stream.collecting import read_in_turn
from tests.train.ranks.fitting import (
    RARE,
    STEPS,
    Array,
    Job,
    Record,
    Seen,
    assert_same_state,
    case,
    fit,
    fit_in_parts,
    note_rows,
    omega,
    step_and_rank,
)
from tests.train.runs import lines, trainer


def fit_shard_after_shard(made: Path, out: Path, changes: Sequence[str]) -> Seen:
    """As if the shards were long and in one frame each: every rank reads its own, as it goes."""
    with read_in_turn():
        return fit(made, out, changes)


def test_a_bad_line_on_one_rank_ends_all(job: Job) -> None:
    """The line comes so late that a whole piece of the shard is read before it."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(["the", "quick", "brown fox", "12345"], k=10)) for _ in range(60)]
    good = [json.dumps({"text": text, "meta": {"pile_set_name": "Github"}}) for text in texts]
    others = [json.dumps({"text": "x" * (1 << 20), "meta": {"pile_set_name": "ArXiv"}})] * 5
    broken = [*good[:16], *others, '{"text": 5, "meta": {"pile_set_name": "Github"}}', *good[16:]]
    (corpus := job.folder / "corpus").mkdir()
    for number, shard in enumerate((good, broken)):
        raw = zstandard.compress("\n".join([*shard, ""]).encode())
        (corpus / f"0{number}.jsonl.zst").write_bytes(raw)
    run, changes = (
        job.folder / "run",
        (f"data.path={corpus}", "data.subsets=['Github']", "data.window=4", "data.shuffle_block=4", "parallel.zero=2"),
    )
    longer = (*changes, "train.steps=60", "checkpoint.every=1000")
    first, second = job.run(fit_shard_after_shard, 2, "run", longer)
    assert first.error is not None
    assert first.error == second.error
    assert "01.jsonl.zst" in first.error
    assert "line 22" in first.error
    done = len(first.steps)
    assert first.steps == second.steps == list(range(1, done + 1))
    assert len(first.rows) == len(second.rows) == done > 1
    # the finished steps are saved
    assert (run / "checkpoints" / f"step-{done}").is_dir()
    assert [record["step"] for record in lines(run)] == first.steps
    onwards = (*changes, "data.on_error=skip", f"train.steps={done + 3}")
    for part in job.run(fit_shard_after_shard, 2, "run", onwards):
        assert (part.error, part.steps) == (None, [done + 1, done + 2, done + 3])


def test_a_nan_loss_on_one_rank_ends_all(job: Job, rare: tuple[str, ...]) -> None:
    run, changes = job.folder / "run", (*rare, "parallel.zero=3", "train.steps=20", "checkpoint.keep_last=1")
    first, second = job.run(fit, 2, "run", changes)
    step, rank = step_and_rank([first, second], omega(job.made))
    assert step > 1
    assert first.error is not None
    assert first.error == second.error
    assert first.error.startswith(f"step {step}: the loss is nan, in rows with ")
    assert first.steps == second.steps == list(range(1, step))
    report = json.loads((run / f"failed-step-{step}.json").read_text())
    assert [row["rank"] for row in report["rows"]] == [0] * 4 + [1] * 4
    (bad,) = [row for row in report["rows"] if not row["finite"]]
    assert bad["rank"] == rank
    assert {"shard": "corpus.jsonl", "number": RARE} in bad["documents"]
    assert f"corpus.jsonl document {RARE}" in first.error
    # the step changed nothing, and the step before is saved: the run resumes there and fails again
    assert [record["step"] for record in lines(run)] == first.steps
    assert (run / "checkpoints" / f"step-{step - 1}").is_dir()
    told, _, command = first.error.partition("; the step's documents are shown by: ")
    words = shlex.split(command)
    assert Path(words[words.index("--state") + 1]).is_dir()
    for again in job.run(fit, 2, "run", changes):
        assert again.steps == []
        assert again.error is not None
        assert again.error.partition("; the step's")[0] == told


def fit_and_refuse(made: Path, out: Path, changes: Sequence[str], at: int, rank: int) -> Seen:
    """The listener of one rank fails after a step."""

    def refuse(metrics: StepMetrics) -> None:
        if metrics.step == at and join().rank == rank:
            raise PilekitError(f"rank {rank} does not like step {at}")

    return fit(made, out, changes, also=refuse)


def test_an_error_of_a_listener_on_one_rank_ends_all(job: Job) -> None:
    run, at, rank = job.folder / "run", 3, 1
    for part in job.run(fit_and_refuse, 2, "run", (), at, rank):
        assert part.error == f"rank {rank} does not like step {at}"
        assert part.steps == list(range(1, at + 1))
    assert (run / "checkpoints" / f"step-{at}").is_dir()
    assert [record["step"] for record in lines(run)] == list(range(1, at + 1))
    for part in job.run(fit, 2, "run", ()):
        assert (part.finished, part.steps) == ((STEPS, False), list(range(at + 1, STEPS + 1)))


def fit_and_note_weights(made: Path, out: Path, changes: Sequence[str]) -> tuple[Seen, list[Array]]:
    """After each step the numbers of all weights that this rank holds."""
    held: list[Array] = []
    ours = trainer(made, out, *changes)
    seen = Seen()
    note_rows(ours, seen.rows)

    def note(metrics: StepMetrics) -> None:
        seen.steps.append(metrics.step)
        parameters = ours.engine.lm.model.parameters()
        held.append(torch.cat([own_part(parameter).detach().flatten() for parameter in parameters]).numpy())

    finished = ours.fit(note)
    seen.finished = finished.step, finished.interrupted
    return seen, held


def test_a_step_without_a_token_to_predict_is_skipped_on_all_ranks(job: Job) -> None:
    """One document per row; of many only the end-of-document token is left for a second row: nothing to predict."""
    draw, shard = random.Random(3), job.folder / "corpus.jsonl"
    config = load_config(job.made / "tiny.toml")
    _, offsets = load_tokenizer(config.data.tokenizer).encode_batch(["1" * size for size in range(400)])
    fills_a_row = "1" * np.diff(offsets).tolist().index(config.data.seq_len)
    texts = [
        " ".join(draw.choices(["quick", "12345"], k=5)) if draw.random() < 0.4 else fills_a_row for _ in range(300)
    ]
    shard.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    given = ("data.packing=none", "data.window=4", "train.global_batch_size=2", "train.steps=12")
    changes = (*given, *case("fp16", 0, 1), f"data.path={shard}", "precision.loss_scale=1024", "schedule.kind=linear")
    parts = job.run(fit_and_note_weights, 2, "run", changes)

    config = load_config(job.made / "tiny.toml", changes)
    batches = islice(open_stream(config, world_size=1), 12)
    empty = [bool((batch["labels"][:, 1:] == -100).all()) for batch in batches]
    assert 2 < sum(empty) < 9
    before: Record | None = None
    for number, (is_empty, record) in enumerate(zip(empty, job.lines("run"), strict=True)):
        assert record["skipped"] == sum(empty[: number + 1])
        assert (record["loss"] is None) == (record["grad_norm"] is None) == is_empty
        assert (record["loss_by_subset"] == {}) == is_empty
        assert record["loss_scale"] == 1024
        taken = number - sum(empty[:number])
        rate = 0.01 * (taken + 1) / 2 if taken < 2 else 0.01 * (1 - (taken - 2) / 10)
        assert record["lr"] == pytest.approx(rate, rel=1e-12)
        assert record["tokens"] > (0 if before is None else before["tokens"])
        for _, held in parts:
            if number:
                assert np.array_equal(held[number], held[number - 1]) == is_empty
        before = record
    for seen, _ in parts:
        assert seen.finished == (12, False)
        assert len(seen.rows) == 12 - sum(empty)  # empty steps compute nothing
    job.run(fit_in_parts, 2, "parts", changes, [1 + empty.index(True)])
    assert job.lines("parts") == job.lines("run")
    assert tree(job.folder / "parts/model") == tree(job.folder / "run/model")


@pytest.mark.parametrize("zero", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_an_overflow_on_one_rank_skips_the_step_on_all_ranks(job: Job, rare: tuple[str, ...], zero: int) -> None:
    scale = ("precision.loss_scale=1024", "precision.loss_scale_window=2", "precision.loss_scale_hysteresis=1")
    changes = (*rare, *scale, "precision.dtype=fp16", f"parallel.zero={zero}", "train.steps=8")
    whole = job.run(fit, 2, "whole", changes)
    assert [part.error for part in whole] == [None, None]
    step, rank = step_and_rank(whole, omega(job.made))
    assert rank == 1
    assert 2 < step < 7
    records = job.lines("whole")
    value, good, skipped = 1024.0, 0, 0
    for record, before in zip(records, [None, *records[:-1]], strict=True):
        overflows = record["step"] == step
        assert record["loss_scale"] == value
        good, skipped = (0, skipped + 1) if overflows else (good + 1, skipped)
        value, good = (value / 2, 0) if overflows else (value * 2, 0) if good == 2 else (value, good)
        assert record["skipped"] == skipped
        assert (record["grad_norm"] is None) == (record["loss"] is None) == overflows
        if before is not None and before["grad_norm"] is None:
            assert record["lr"] == before["lr"]  # the schedule waits for the step that was skipped
        elif before is not None and before["step"] > 2:
            assert record["lr"] < before["lr"]
    stops = [step] if zero == 3 else [step - 1, step, step + 1]
    in_parts = job.run(fit_in_parts, 2, "parts", changes, stops)
    assert job.lines("parts") == records
    assert_same_state(in_parts[0][-1].state, whole[0].state)
    states = [read_state(job.folder / run / "checkpoints/step-8").progress for run in ("whole", "parts")]
    assert states[0] == states[1]
    assert states[0].skipped == 1
    assert states[0].loss_scale is not None
    assert states[0].loss_scale["value"] == value
