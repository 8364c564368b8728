"""All ranks raise the same error for a failed step, with the documents of all ranks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pilekit.errors import PilekitError
from pilekit.train.run_folder import RunFolder
from pilekit.train.step.failed_step import FailedStep, explained, failed_step
from pilekit.workers.ranks import join
from tests.process_groups import ProcessGroups


class Rows:
    """The part of a batch that is used."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def documents(self) -> list[list[tuple[str, int]]]:
        return [[(f"shard{self.rank}", 10), ("a\x1bb", 11)], [(f"shard{self.rank}", 20)], []]


def message_of(folder: str, bad: list[tuple[int, int]], loss: float, step: int) -> str:
    ranks = join()
    nll = torch.ones(3, 5)
    for rank, row in bad:
        if rank == ranks.rank:
            nll[row, 2] = math.nan
    batch: Any = Rows(ranks.rank)
    failed = FailedStep(step, loss, math.inf, 0.1, None, batch, nll, "PEEK")
    error = failed_step(RunFolder(Path(folder)), ranks, failed)
    assert isinstance(error, PilekitError)
    return str(error)


def test_all_ranks_say_the_same(process_group: ProcessGroups, tmp_path: Path) -> None:
    """The second step's file cannot be written, and in the third only the gradient is bad."""
    (tmp_path / "failed-step-3.json").mkdir()
    group, folder = process_group(2), str(tmp_path)
    both = "shard0 document 10, a\\x1bb document 11, shard0 document 20, shard1 document 10, shard1 document 20 (all"
    for bad, loss, step, begins, start in (
        ([(1, 1)], math.nan, 7, "the loss is nan, in rows with shard1 document 20 (all of them: ", "after step 6"),
        (
            [(0, 0)],
            math.inf,
            3,
            "the loss is inf, in rows with shard0 document 10, a\\x1bb document 11; lower",
            "step 2",
        ),
        ([], 2.5, 1, f"the gradient's norm is inf, in rows with {both}", "from the start"),
    ):
        first, second = group.run(message_of, folder, bad, loss, step)
        assert first == second
        assert first.startswith(f"step {step}: {begins}")
        assert start in first
        assert first.endswith("the step's documents are shown by: PEEK")
    report = json.loads((tmp_path / "failed-step-7.json").read_text())
    assert (report["peek"], report["step"], report["loss"], report["lr"]) == ("PEEK", 7, "nan", 0.1)
    rows = [(row["rank"], row["finite"]) for row in report["rows"]]
    assert rows == [(0, True), (0, True), (0, True), (1, True), (1, False), (1, True)]
    assert report["rows"][3]["documents"] == [{"shard": "shard1", "number": 10}, {"shard": "a\x1bb", "number": 11}]


def test_blocks_that_cannot_be_compiled() -> None:
    def broken(*_: object) -> None:
        raise ValueError("no\x1b compiler\nand much more")

    what = r"cannot be compiled here \(ValueError: no\\x1b compiler\); set"
    with pytest.raises(PilekitError, match=what), explained(join()):
        torch.compile(torch.nn.Linear(2, 2), backend=broken)(torch.zeros(1, 2))
    with pytest.raises(RuntimeError, match="shapes do not fit"), explained(join()):
        raise RuntimeError("shapes do not fit")
