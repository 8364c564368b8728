"""The process groups that other tests run in: results by rank, and no failure that hangs."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch import distributed as dist

from tests.process_groups import ProcessGroups, RankFailed


def sum_over_ranks(add: int) -> tuple[int, int]:
    value = torch.tensor(dist.get_rank() + add)
    dist.all_reduce(value)
    return dist.get_rank(), int(value)


def fail_on_rank_1(how: str) -> None:
    if dist.get_rank() == 1:
        if how == "ValueError":
            raise ValueError
        if how == "exit code 3":
            os._exit(3)
        time.sleep(60)
    dist.barrier()


@pytest.mark.slow
def test_results_come_back_by_rank_and_after_a_failure_the_next_group_is_fresh(process_group: ProcessGroups) -> None:
    assert process_group(2).run(sum_over_ranks, 10) == [(0, 21), (1, 21)]
    for how in ("ValueError", "exit code 3", "no answer"):
        with pytest.raises(RankFailed, match=how):
            process_group(2).run(fail_on_rank_1, how, timeout=5.0)
        assert process_group(2).run(sum_over_ranks, 0) == [(0, 1), (1, 1)]
