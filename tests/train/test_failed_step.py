"""All ranks raise the same error for a failed step, with the documents of all ranks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pilekit.engine.ranks import join
from pilekit.errors import PilekitError
from pilekit.train.run_folder import RunFolder
from pilekit.train.step.failed_step import failed_compilation, failed_step
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
    error = failed_step(RunFolder(Path(folder)), ranks, step, loss, math.inf, 0.1, batch, nll, "PEEK")
    assert isinstance(error, PilekitError)
    return str(error)


def test_all_ranks_say_the_same(process_group: ProcessGroups, tmp_path: Path) -> None:
    first, second = process_group(2).run(message_of, str(tmp_path), [(1, 1)], math.nan, 7)
    assert first == second
    assert first.startswith(
        f"step 7: the loss is nan, in rows with shard1 document 20 (all of them: {tmp_path}/failed-s"
    )
    assert "continues after step 6" in first
    assert first.endswith("the step's documents are shown by: PEEK")
    report = json.loads((tmp_path / "failed-step-7.json").read_text())
    assert report["peek"] == "PEEK"
    assert (report["step"], report["loss"], report["grad_norm"], report["lr"]) == (7, "nan", "inf", 0.1)
    assert [(row["rank"], row["finite"]) for row in report["rows"]] == [
        *((0, True), (0, True), (0, True)),
        *((1, True), (1, False), (1, True)),
    ]
    assert report["rows"][3]["documents"] == [{"shard": "shard1", "number": 10}, {"shard": "a\x1bb", "number": 11}]


def test_a_gradient_alone_names_the_rows_of_all_ranks(process_group: ProcessGroups, tmp_path: Path) -> None:
    first, second = process_group(2).run(message_of, str(tmp_path), [], 2.5, 1)
    assert first == second
    shown = "shard0 document 10, a\\x1bb document 11, shard0 document 20, shard1 document 10, shard1 document 20 (all"
    assert first.startswith(f"step 1: the gradient's norm is inf, in rows with {shown}")
    assert "continues from the start" in first


def test_a_file_that_cannot_be_written_does_not_hide_the_step(process_group: ProcessGroups, tmp_path: Path) -> None:
    (tmp_path / "failed-step-3.json").mkdir()
    first, second = process_group(2).run(message_of, str(tmp_path), [(0, 0)], math.inf, 3)
    assert first == second
    assert first.startswith("step 3: the loss is inf, in rows with shard0 document 10, a\\x1bb document 11; lower")


def test_blocks_that_cannot_be_compiled() -> None:
    def broken(*_: object) -> None:
        raise ValueError("no\x1b compiler\nand much more")

    with pytest.raises(RuntimeError) as raised:
        torch.compile(torch.nn.Linear(2, 2), backend=broken)(torch.zeros(1, 2))
    assert failed_compilation(raised.value) == "ValueError: no\\x1b compiler"
    assert failed_compilation(RuntimeError("shapes do not fit")) is None
