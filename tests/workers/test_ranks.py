"""Ranks: how a process finds its place, and how every rank hears of one rank's result or error."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from pilekit.errors import PilekitError
from pilekit.workers.ranks import join, lost_rank
from tests.ports import free_port
from tests.process_groups import ProcessGroups


def place() -> dict[str, Any]:
    ranks = join()
    assert join() is ranks
    groups = (ranks.control, ranks.saving)
    assert len({id(group) for group in (dist.group.WORLD, *groups)}) == 3
    assert {dist.get_backend(group) for group in groups} == {"gloo"}
    return {
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "local_rank": ranks.local_rank,
        "device": str(ranks.device),
        "mesh": ranks.mesh.size(),
        "first": ranks.is_first,
    }


def test_every_rank_finds_its_place(process_group: ProcessGroups) -> None:
    same = {"world_size": 2, "device": "cpu", "mesh": 2}
    assert process_group(2).run(place) == [
        {"rank": rank, "local_rank": rank, "first": rank == 0, **same} for rank in range(2)
    ]


def sums(rows: list[list[float]]) -> list[float]:
    ranks = join()
    mine = torch.tensor(rows[ranks.rank], dtype=torch.float64)
    before = mine.clone()
    total = ranks.sum(mine)
    assert torch.equal(mine.nan_to_num(), before.nan_to_num())
    return total.tolist()


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_sums_are_exact_and_bitwise_equal_on_all_ranks(process_group: ProcessGroups, world_size: int) -> None:
    rng = random.Random(world_size)
    rows = [[rng.uniform(-1, 1) * 10 ** rng.randint(-12, 12) for _ in range(1001)] for _ in range(world_size)]
    results = process_group(world_size).run(sums, rows)
    assert all(result == results[0] for result in results)
    for column, total in enumerate(results[0]):
        values = [row[column] for row in rows]
        assert abs(total - math.fsum(values)) <= 1e-15 * world_size * max(map(abs, values))
    odd = [[math.inf, 1.0]] + [[0.0, math.nan]] * (world_size - 1)
    assert process_group(world_size).run(sums, odd)[0] == [math.inf, pytest.approx(math.nan, nan_ok=True)]


def values_of_ranks() -> list[Any]:
    ranks = join()
    calls = []
    return [
        ranks.any(False),
        ranks.any(ranks.rank == 1),
        ranks.all_max(7 - ranks.rank),
        ranks.gather({"rank": ranks.rank, "text": "ß" * 1000 * ranks.rank}),
        ranks.on_rank0(lambda: calls.append(1) or {"path": Path("here"), "error": repr(PilekitError("a value"))}),
        len(calls),
        ranks.on_all_ranks(lambda: ranks.rank * 10),
        [lost_rank(error, ranks) for error in (RuntimeError("out of memory"), ValueError("Connection closed by peer"))],
    ]


def test_values_travel_between_ranks(process_group: ProcessGroups) -> None:
    gathered = [{"rank": 0, "text": ""}, {"rank": 1, "text": "ß" * 1000}]
    sent = {"path": Path("here"), "error": "PilekitError('a value')"}
    assert process_group(2).run(values_of_ranks) == [
        [False, True, 7, gathered, sent, int(rank == 0), rank * 10, [None, None]] for rank in range(2)
    ]


def failures(method: str, errors: Sequence[BaseException | str | None]) -> tuple[str, str]:
    """The errors of a rank when `work` fails in this way; afterwards the ranks must still be in step."""
    ranks = join()

    def work() -> object:
        error = errors[ranks.rank]
        if isinstance(error, BaseException):
            raise error
        return (lambda: 0) if error == "cannot be pickled" else None

    raised = ("", "")
    try:
        getattr(ranks, method)(work)
    except BaseException as error:
        raised = type(error).__name__, str(error)
    assert ranks.sum(torch.ones(1, dtype=torch.float64)).item() == 2
    return raised


def test_an_error_of_one_rank_is_raised_by_all(process_group: ProcessGroups) -> None:
    run = process_group(2).run
    bug = ValueError("unexpected\x1b[2J\nsecond line")
    told = "failed with ValueError: unexpected\\x1b[2J; its own messages say more"
    assert run(failures, "on_rank0", [PilekitError("no"), None]) == [("PilekitError", "no"), ("AlreadyReported", "no")]
    assert run(failures, "on_rank0", [bug, None]) == [("ValueError", str(bug)), ("AlreadyReported", f"rank 0 {told}")]
    assert run(failures, "on_rank0", [KeyboardInterrupt(), None]) == [
        ("KeyboardInterrupt", ""),
        ("AlreadyReported", "rank 0 failed with KeyboardInterrupt; its own messages say more"),
    ]
    (own, _), (other, message) = run(failures, "on_rank0", ["cannot be pickled", None])
    assert own not in ("", "AlreadyReported")
    assert other == "AlreadyReported"
    assert message.startswith("rank 0 failed with ")

    one, two = PilekitError("one"), PilekitError("two")
    assert run(failures, "on_all_ranks", [None, two]) == [("PilekitError", "two"), ("AlreadyReported", "two")]
    assert run(failures, "on_all_ranks", [one, two]) == [("PilekitError", "one"), ("AlreadyReported", "one")]
    assert run(failures, "on_all_ranks", [None, bug]) == [("PilekitError", f"rank 1 {told}"), ("ValueError", str(bug))]


# A process group belongs to a whole process, so the tests below run in processes of their own.

ALONE = """
import json, os, sys
import torch
from torch import distributed as dist
from pilekit.workers.ranks import join, lost_rank
from pilekit.errors import PilekitError
for environment in json.loads(sys.argv[1]):
    os.environ.update(environment)
    try: join()
    except PilekitError as error: print(error)
    for name in environment: del os.environ[name]
ranks = join()
assert dist.is_initialized() and join() is ranks
def fail(): raise ValueError("as it is")
for method in (ranks.on_rank0, ranks.on_all_ranks):
    unsent = object()
    assert method(lambda: unsent) is unsent
    try: method(fail)
    except ValueError as error: assert str(error) == "as it is"
    else: raise SystemExit("no error")
assert ranks.gather("x") == ["x"] and ranks.any(True) and not ranks.any(False)
values = torch.tensor([1.0, 2.0], dtype=torch.float64)
total = ranks.sum(values)
assert torch.equal(total, values) and total is not values
assert lost_rank(RuntimeError("Connection closed by peer"), ranks) is None
print(ranks.rank, ranks.world_size, ranks.local_rank, ranks.device, ranks.mesh.size(), ranks.is_first)
dist.destroy_process_group()
other = join()
assert other is not ranks and other.world_size == 1
"""

DIE = """
import os, time
import torch
from pilekit.errors import PilekitError
from pilekit.workers.ranks import join, lost_rank
ranks = join()
assert ranks.gather((ranks.rank, ranks.local_rank)) == [(0, 0), (1, 0)] and str(ranks.device) == "cpu"
if ranks.rank == 1: os.kill(os.getpid(), 9)
for name, work in {
    "sum": lambda: ranks.sum(torch.ones(1, dtype=torch.float64)),
    "gather": lambda: ranks.gather(1),
    "on_rank0": lambda: ranks.on_rank0(lambda: 1),
    "on_all_ranks": lambda: ranks.on_all_ranks(lambda: 1),
    "gradients": lambda: torch.distributed.all_reduce(torch.ones(5)),
}.items():
    try:
        for _ in range(100):  # a message may leave before the connection is known to have ended
            work()
            time.sleep(0.05)
        print(name, "ended well")
    except PilekitError as error: print(name, error)
    except RuntimeError as error: print(name, lost_rank(error, ranks))
"""


def start(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Run `script` without a launcher's environment variables."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    own = {name: value for name, value in os.environ.items() if name not in launcher and "TORCHELASTIC" not in name}
    own |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, env=own | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_rank_that_dies_is_named_by_the_others() -> None:
    job = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [start(DIE, RANK=str(rank), **job) for rank in range(2)]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, -9], outputs
    lines = outputs[0][0].splitlines()
    assert [line.split()[0] for line in lines] == ["sum", "gather", "on_rank0", "on_all_ranks", "gradients"]
    for line in lines:
        assert " rank 0: another rank is gone, or has not answered for 30 minutes (" in line
        assert line.endswith("and run the same command again to resume from the newest checkpoint")


WRONG: list[tuple[dict[str, str], list[str]]] = [
    (
        {"WORLD_SIZE": "2", "RANK": "0"},
        ["cannot join the other ranks", "MASTER_ADDR expected, but not set", "torchrun"],
    ),
    ({"WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "1"}, ["RANK expected, but not set"]),
    ({"WORLD_SIZE": "two"}, ["$WORLD_SIZE is 'two', but it must be a whole number; start the job with torchrun"]),
    (
        {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "99999999"},
        ["cannot join the other ranks", "99999999", "a port that is free"],
    ),
]


def test_a_wrong_environment_is_named_and_alone_it_is_one_rank_and_prints_nothing() -> None:
    process = start(ALONE, json.dumps([environment for environment, _ in WRONG]))
    output, errors = process.communicate(timeout=240)
    *wrong, alone = output.splitlines()
    for line, (_, words) in zip(wrong, WRONG, strict=True):
        for word in words:
            assert word in line
    assert (alone, errors, process.returncode) == ("0 1 0 cpu 1 True", "", 0)
