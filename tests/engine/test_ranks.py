"""Ranks: how a process finds its place, and that what one rank says or suffers all hear."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from pilekit.engine.ranks import Ranks, join, lost_rank
from pilekit.errors import PilekitError
from tests.process_groups import ProcessGroups

WORLDS = [2, 4]


def outcome(work: Any) -> tuple[str, Any]:
    """What came of it, as a rank can send it."""
    try:
        return "value", work()
    except (PilekitError, ValueError, KeyboardInterrupt, TypeError) as error:
        return type(error).__name__, str(error)


def told_by_rank_0(message: str) -> list[tuple[str, str]]:
    """The outcome in each of four ranks that all raise the same, of which the first tells it."""
    return [("PilekitError", message), *[("ToldElsewhere", message)] * 3]


# What ranks do in these tests.


def place() -> dict[str, Any]:
    ranks = join()
    return {
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "local_rank": ranks.local_rank,
        "device": str(ranks.device),
        "mesh": ranks.mesh.size(),
        "first": ranks.is_first,
        "same": join() is ranks,
        "apart": len({id(group) for group in (dist.group.WORLD, ranks.control, ranks.saving)}),
        "backends": {dist.get_backend(group) for group in (ranks.control, ranks.saving)},
    }


def sums(rows: list[list[float]]) -> list[float]:
    ranks = join()
    mine = torch.tensor(rows[ranks.rank], dtype=torch.float64)
    before = mine.clone()
    total = ranks.sum(mine)
    assert torch.equal(mine.isnan(), before.isnan())
    assert torch.equal(mine.nan_to_num(), before.nan_to_num())
    assert total.dtype == torch.float64
    return total.tolist()


def anys(flags: list[bool]) -> bool:
    ranks = join()
    return ranks.any(flags[ranks.rank])


def gathered() -> list[Any]:
    ranks = join()
    return ranks.gather({"rank": ranks.rank, "text": "ß" * 1000 * ranks.rank, "none": None})


def first_gives(value: Any) -> tuple[Any, int]:
    ranks = join()
    calls = []

    def work() -> Any:
        calls.append(1)
        return value

    return ranks.on_rank0(work), len(calls)


def first_raises(kind: str) -> tuple[str, Any]:
    ranks = join()

    def fail() -> object:
        if kind == "told":
            raise PilekitError("run.toml: train.steps = 0: it must be at least 1")
        if kind == "bug":
            raise ValueError("unexpected\x1b[2J\nsecond line")
        if kind == "interrupt":
            raise KeyboardInterrupt
        return lambda: 0  # cannot be pickled

    came = outcome(lambda: ranks.on_rank0(fail))
    return (came[0], "" if kind == "unpicklable" and ranks.is_first else came[1])


def together(failing: dict[int, str]) -> tuple[str, Any]:
    ranks = join()

    def work() -> int:
        if (why := failing.get(ranks.rank)) is not None:
            raise ValueError(why) if why.startswith("bug") else PilekitError(why)
        return ranks.rank * 10

    return outcome(lambda: ranks.on_all_ranks(work))


def still_in_step() -> float:
    """After anything that raised, the next numbers must be those of the same question."""
    return join().sum(torch.tensor([1.0], dtype=torch.float64)).item()


@pytest.mark.parametrize("world_size", WORLDS)
def test_every_rank_finds_its_place(process_group: ProcessGroups, world_size: int) -> None:
    assert process_group(world_size).run(place) == [
        {
            "rank": rank,
            "world_size": world_size,
            "local_rank": rank,
            "device": "cpu",
            "mesh": world_size,
            "first": rank == 0,
            "same": True,
            "apart": 3,
            "backends": {"gloo"},
        }
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("world_size", WORLDS)
def test_sums_are_right_and_the_same_to_the_bit(process_group: ProcessGroups, world_size: int) -> None:
    rng = random.Random(world_size)
    for length in (1, 3, 64, 1001):
        rows = [[rng.uniform(-1, 1) * 10 ** rng.randint(-12, 12) for _ in range(length)] for _ in range(world_size)]
        results = process_group(world_size).run(sums, rows)
        assert all(result == results[0] for result in results)
        for column, total in enumerate(results[0]):
            exact = math.fsum(row[column] for row in rows)
            largest = max(abs(row[column]) for row in rows)
            assert abs(total - exact) <= 1e-15 * world_size * largest
    assert (
        process_group(world_size).run(sums, [[math.inf, 1.0]] + [[0.0, math.nan]] * (world_size - 1))
        == [[math.inf, pytest.approx(math.nan, nan_ok=True)]] * world_size
    )


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_flag_of_any_rank(process_group: ProcessGroups, world_size: int) -> None:
    group = process_group(world_size)
    for raised in range(world_size):
        assert group.run(anys, [rank == raised for rank in range(world_size)]) == [True] * world_size
    assert group.run(anys, [False] * world_size) == [False] * world_size
    assert group.run(anys, [True] * world_size) == [True] * world_size


def test_values_are_gathered_by_rank(process_group: ProcessGroups) -> None:
    expected = [{"rank": rank, "text": "ß" * 1000 * rank, "none": None} for rank in range(4)]
    assert process_group(4).run(gathered) == [expected] * 4


@pytest.mark.parametrize("value", [None, 7, "text", {"a": [1, 2]}, b"bytes", Path("here"), PilekitError("a value")])
def test_what_rank_0_found_all_get(process_group: ProcessGroups, value: Any) -> None:
    results = process_group(2).run(first_gives, value)
    assert [repr(got) for got, _ in results] == [repr(value)] * 2
    assert [calls for _, calls in results] == [1, 0]


@pytest.mark.parametrize(
    ("kind", "on_rank_0", "on_others"),
    [
        ("told", ("PilekitError", "run.toml: train.steps = 0: it must be at least 1"), None),
        (
            "bug",
            ("ValueError", "unexpected\x1b[2J\nsecond line"),
            "rank 0 failed with ValueError: unexpected\\x1b[2J; its own messages say more",
        ),
        ("interrupt", ("KeyboardInterrupt", ""), "rank 0 failed with KeyboardInterrupt; its own messages say more"),
    ],
)
def test_what_fails_on_rank_0_fails_on_all(
    process_group: ProcessGroups, kind: str, on_rank_0: tuple[str, str], on_others: str | None
) -> None:
    others = ("ToldElsewhere", on_others or on_rank_0[1])
    assert process_group(4).run(first_raises, kind) == [on_rank_0, others, others, others]
    assert process_group(4).run(still_in_step) == [4.0] * 4


def test_a_value_that_cannot_be_sent_fails_on_all(process_group: ProcessGroups) -> None:
    (own, _), (other, message) = process_group(2).run(outcome_of_unpicklable)
    assert own != "value"
    assert other == "ToldElsewhere"
    assert message.startswith("rank 0 failed with ")
    assert process_group(2).run(still_in_step) == [2.0] * 2


def outcome_of_unpicklable() -> tuple[str, Any]:
    try:
        return first_raises("unpicklable")
    except Exception as error:  # which one it is, is pickle's affair
        return type(error).__name__, ""


def test_what_all_do_gives_each_its_own(process_group: ProcessGroups) -> None:
    assert process_group(4).run(together, {}) == [("value", rank * 10) for rank in range(4)]


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ({2: "two"}, told_by_rank_0("two")),
        ({3: "three", 1: "one"}, told_by_rank_0("one")),
        ({rank: f"no {rank}" for rank in range(4)}, told_by_rank_0("no 0")),
        (
            {1: "bug here", 2: "two"},
            [
                ("PilekitError", "rank 1 failed with ValueError: bug here; its own messages say more"),
                ("ValueError", "bug here"),
                ("ToldElsewhere", "rank 1 failed with ValueError: bug here; its own messages say more"),
                ("ToldElsewhere", "rank 1 failed with ValueError: bug here; its own messages say more"),
            ],
        ),
    ],
)
def test_if_one_fails_all_raise_the_lowest_rank_s(
    process_group: ProcessGroups, failing: dict[int, str], expected: list[tuple[str, str]]
) -> None:
    assert process_group(4).run(together, failing) == expected
    assert process_group(4).run(still_in_step) == [4.0] * 4


# Alone, and by the environment: in processes of their own, since a process group is a thing of the whole process.

ALONE = """
from torch import distributed as dist
from pilekit.engine.ranks import join
import torch
ranks = join()
assert dist.is_initialized() and join() is ranks
def fail(): raise ValueError("as it is")
for method in (ranks.on_rank0, ranks.on_all_ranks):
    assert method(lambda: 5) == 5
    unsent = object()
    assert method(lambda: unsent) is unsent
    try: method(fail)
    except ValueError as error: assert str(error) == "as it is"
    else: raise SystemExit("no error")
assert ranks.gather("x") == ["x"] and ranks.any(True) and not ranks.any(False)
values = torch.tensor([1.0, 2.0], dtype=torch.float64)
total = ranks.sum(values)
assert torch.equal(total, values) and total is not values
print(ranks.rank, ranks.world_size, ranks.local_rank, ranks.device, ranks.mesh.size(), ranks.is_first)
dist.destroy_process_group()
other = join()
assert other is not ranks and other.world_size == 1
"""

TELL = """
import sys
from pilekit.errors import PilekitError
from pilekit.engine.ranks import join
try: ranks = join()
except PilekitError as error: sys.exit(f"error: {error}")
print(ranks.gather((ranks.rank, ranks.local_rank)), ranks.device)
"""


def bare(**environment: str) -> dict[str, str]:
    """The environment without what a launcher would leave there."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    own = {name: value for name, value in os.environ.items() if name not in launcher and "TORCHELASTIC" not in name}
    return own | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | environment


def free_port() -> int:
    """Of those that no system gives to whoever asks for any: it is still free when the ranks meet there."""
    while True:
        port = random.randrange(15_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def test_alone_it_is_one_rank_and_says_nothing() -> None:
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, env=bare(), capture_output=True, text=True, check=False, timeout=240)
    assert (done.stdout, done.stderr, done.returncode) == ("0 1 0 cpu 1 True\n", "", 0)


def test_the_environment_of_a_launcher_makes_ranks() -> None:
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TELL],
            env=bare(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        stdout, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
        assert stdout == "[(0, 0), (1, 0)] cpu\n"


LACKING: list[tuple[dict[str, str], str]] = [
    (
        {"WORLD_SIZE": "2", "RANK": "0"},
        "$WORLD_SIZE is 2, but $MASTER_ADDR and $MASTER_PORT are not set; start the",
    ),
    (
        {"WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "1"},
        "$WORLD_SIZE is 2, but $RANK is not set; start",
    ),
    ({"WORLD_SIZE": "two"}, "$WORLD_SIZE is 'two', but it must be a whole number; start the job with torchrun"),
    ({"LOCAL_RANK": "-1"}, "$LOCAL_RANK is '-1', but it must be a whole number"),
    (
        {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        "$RANK is 2, but $WORLD_SIZE is 2; start the job with torchrun",
    ),
    (
        {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "99999999"},
        "rank 0: the ranks cannot meet at localhost:99999999, which $MASTER_ADDR and $MASTER_PORT name (",
    ),
]


TRY_ALL = """
import json, os, sys
from pilekit.errors import PilekitError
from pilekit.engine.ranks import join
for environment in json.loads(sys.argv[1]):
    os.environ.update(environment)
    try: join()
    except PilekitError as error: print(error)
    else: print("joined")
    for name in environment: del os.environ[name]
"""


def test_what_the_environment_lacks_is_named() -> None:
    command = [sys.executable, "-c", TRY_ALL, json.dumps([environment for environment, _ in LACKING])]
    done = subprocess.run(command, env=bare(), capture_output=True, text=True, check=True, timeout=240)
    for line, (_, message) in zip(done.stdout.splitlines(), LACKING, strict=True):
        assert line.startswith(message)


DIE = """
import os, time
import torch
from pilekit.errors import PilekitError
from pilekit.engine.ranks import join, lost_rank
ranks = join()
assert ranks.gather(ranks.rank) == [0, 1]
if ranks.rank == 1: os.kill(os.getpid(), 9)
for name, work in {
    "sum": lambda: ranks.sum(torch.ones(1, dtype=torch.float64)),
    "any": lambda: ranks.any(False),
    "gather": lambda: ranks.gather(1),
    "first": lambda: ranks.on_rank0(lambda: 1),
    "together": lambda: ranks.on_all_ranks(lambda: 1),
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


def test_a_rank_that_dies_is_told_by_those_that_wait_for_it() -> None:
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DIE],
            env=bare(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    stdout, _ = processes[0].communicate(timeout=240)
    assert [process.wait(240) for process in processes] == [0, -9]
    lines = stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["sum", "any", "gather", "first", "together", "gradients"]
    for line in lines:
        assert " rank 0: another rank is gone, or has not answered for 30 minutes (" in line
        assert line.endswith("and run the same command again to go on from what is saved")


def test_other_errors_are_not_taken_for_a_lost_rank(process_group: ProcessGroups) -> None:
    assert process_group(2).run(other_errors) == [[True] * 3] * 2


def other_errors() -> list[bool]:
    ranks = join()
    errors = [RuntimeError("out of memory"), ValueError("Connection closed by peer"), ZeroDivisionError()]
    return [lost_rank(error, ranks) is None for error in errors]


def test_a_world_of_one_loses_nobody() -> None:
    alone = Ranks.__new__(Ranks)
    object.__setattr__(alone, "world_size", 1)
    assert lost_rank(RuntimeError("Connection closed by peer"), alone) is None
