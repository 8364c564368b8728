"""The log of documents of whole runs: killed and resumed on other ranks, it is one table."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pilekit import read_corpus, seen
from pilekit.train.log.document_log import LogPart, in_order, log_parts, logged_steps
from pilekit.train.log.metrics import StepMetrics
from tests.process_groups import RankFailed
from tests.stopping import wait_for
from tests.train.log.test_document_log import assert_is_table_of
from tests.train.ranks.fitting import Job, fit
from tests.train.runs import trainer

EVERY = 7
CHANGES = (f"checkpoint.every={EVERY}", "train.micro_batch_size=1")
"""Steps 8 to 13 are logged with the checkpoint of step 14."""

Start = tuple[int, int, tuple[str, ...]]
"""Ranks, the step after which all are killed, and further changes of the config."""


def fit_until_killed(made: Path, out: Path, changes: tuple[str, ...], step: int) -> None:
    """Train; every rank is killed after a step that it has just recorded, with the checkpoint before it complete."""

    def kill(metrics: StepMetrics) -> None:
        if metrics.step == step:
            # It is saved beside training, which may be faster.
            wait_for(Path(out, f"checkpoints/step-{step // EVERY * EVERY}").exists)
            os.kill(os.getpid(), signal.SIGKILL)

    fit(made, out, changes, also=kill)


def rows(run: Path) -> list[dict[str, object]]:
    parts = log_parts(run / "documents")
    return in_order(table for part in parts for table in part.tables(run / "documents")).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("steps", "starts", "ranks"),
    [
        (20, [(2, 17, ())], 1),
        pytest.param(
            60,
            [(4, 17, ()), (2, 33, ("data.workers=1",)), (1, 40, ("train.micro_batch_size=4",))],
            2,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_that_was_killed_on_other_ranks_has_one_table(
    job: Job, steps: int, starts: list[Start], ranks: int
) -> None:
    changes = (*CHANGES, f"train.steps={steps}")
    for world_size, step, more in starts:
        with pytest.raises(RankFailed):
            job.run(fit_until_killed, world_size, "killed", (*changes, *more), step)
    parts = job.run(fit, ranks, "killed", changes)
    assert [part.finished for part in parts] == [(steps, False)] * ranks
    folder = job.folder / "killed" / "documents"
    assert {part.world_size for part in log_parts(folder)} == {ranks, *(world_size for world_size, *_ in starts)}
    assert_is_table_of(folder, trainer(job.made, job.folder / "plan").stream, steps)

    job.run(fit, 1, "whole", changes)
    assert log_parts(job.folder / "whole/documents")[0] == LogPart(1, 7, 0, 1)
    assert rows(job.folder / "killed") == rows(job.folder / "whole")
    places = [(document.shard, document.number) for batch in read_corpus(job.made / "data") for document in batch]
    answer = seen(job.folder / "killed", places)
    assert answer.rows == seen(job.folder / "whole", places).rows
    assert answer.summary["replayed"] == []


def test_a_run_without_the_log_has_none_and_a_resumed_one_logs_the_rest(job: Job) -> None:
    job.run(fit, 1, "run", ("log.documents=false", "checkpoint.every=2"), 3)
    assert not (job.folder / "run/documents").exists()
    job.run(fit, 1, "run", ())
    assert logged_steps(log_parts(job.folder / "run/documents")) == [range(4, 7)]
