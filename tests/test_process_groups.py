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


def fail_on_rank_1_while_others_wait() -> None:
    if dist.get_rank() == 1:
        raise ValueError("as it was to be")
    dist.barrier()


def die_on_rank_1() -> None:
    if dist.get_rank() == 1:
        os._exit(3)


def sleep(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def test_results_come_back_by_rank(process_group: ProcessGroups) -> None:
    group = process_group(2)
    assert group.run(sum_over_ranks, 10) == [(0, 21), (1, 21)]
    assert group.run(sum_over_ranks, 0) == [(0, 1), (1, 1)]
    assert process_group(2) is group


@pytest.mark.slow
def test_what_fails_is_told_and_the_next_group_is_fresh(process_group: ProcessGroups) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 of 2 raised(?s:.*)ValueError: as it was to be"):
        process_group(2).run(fail_on_rank_1_while_others_wait)
    with pytest.raises(RankFailed, match="rank 1 of 2 ended with exit code 3"):
        process_group(2).run(die_on_rank_1)
    group = process_group(2)
    pids = group.run(sleep, 0.0)
    with pytest.raises(RankFailed, match=r"no answer of ranks \[0, 1\] of 2 within 0.2 s"):
        group.run(sleep, 60.0, timeout=0.2)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert process_group(2).run(sum_over_ranks, 0) == [(0, 1), (1, 1)]
