"""Real process groups for tests: ranks joined by gloo, started once and used by every test that asks for them.

    def mean_of_ranks(add: float) -> float:                    # a function of a module, found again by its name
        value = torch.tensor(float(dist.get_rank()) + add)
        dist.all_reduce(value)
        return value.item() / dist.get_world_size()

    def test_mean(process_group: ProcessGroups) -> None:
        assert process_group(2).run(mean_of_ranks, 1.0) == [1.5, 1.5]

Starting Python with torch takes seconds, so one group per world size serves the whole session. Each rank is a process
of its own session, not a daemon: it may start workers, and killing its session kills them too. A function that runs too
long is killed in all ranks and fails its test. After a failure the group ends, because its ranks may be out of step;
the next test that asks gets a new group.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 120.0
"""Time for imports and for joining the group, on a busy machine."""


class RankFailed(AssertionError):
    """A rank raised, died or did not answer in time; the message holds its traceback."""


class ProcessGroup:
    """`world_size` processes in one gloo group that wait for functions to run."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._folder = tempfile.TemporaryDirectory(prefix="pilekit-ranks-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection[Any, Any]] = []
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }
        for rank in range(world_size):
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-X", "faulthandler", "-m", "tests.process_groups", str(theirs.fileno())]
            command += [str(rank), str(world_size), str(Path(self._folder.name) / "store")]
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], start_new_session=True
            )
            theirs.close()
            self._processes.append(process)
            self._connections.append(Connection(ours.detach()))
        self._started = False

    def run(self, function: Callable[..., T], *arguments: Any, timeout: float = 240.0) -> list[T]:
        """`function(*arguments)` in every rank at once; the results by rank.

        The function must be one of a module (no lambda, no inner function); arguments and results are pickled.
        `RankFailed` if a rank raises, ends, or has not answered after `timeout` seconds; all ranks are then killed.
        """
        if not self._started:
            self._started = True
            self._collect("starting", START_SECONDS)
        name = f"{function.__module__}:{function.__qualname__}"
        for rank, connection in enumerate(self._connections):
            with self._failing(rank, name):
                connection.send((name, arguments))
        return self._collect(name, timeout)

    def _collect(self, what: str, timeout: float) -> list[Any]:
        results: dict[int, Any] = {}
        end = time.monotonic() + timeout
        waiting = dict(zip(self._connections, range(self.world_size), strict=True))
        while waiting:
            ready = wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                self.kill()
                slow = sorted(waiting.values())
                raise RankFailed(f"{what}: no answer of ranks {slow} of {self.world_size} within {timeout:g} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                with self._failing(rank, what):
                    worked, results[rank] = connection.recv()
                if not worked:
                    self.kill()
                    raise RankFailed(f"{what}: rank {rank} of {self.world_size} raised\n{results[rank]}")
        return [results[rank] for rank in range(self.world_size)]

    @contextmanager
    def _failing(self, rank: int, what: str) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            self.kill()
            code = self._processes[rank].returncode
            raise RankFailed(f"{what}: rank {rank} of {self.world_size} ended with exit code {code}") from error

    @property
    def alive(self) -> bool:
        """Whether every rank still waits for work."""
        return all(process.poll() is None for process in self._processes)

    def kill(self) -> None:
        """Kill all ranks and the processes that they started."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for connection in self._connections:
            connection.close()
        self._folder.cleanup()


class ProcessGroups:
    """One `ProcessGroup` per world size, started on first use."""

    def __init__(self) -> None:
        self._groups: dict[int, ProcessGroup] = {}

    def __call__(self, world_size: int) -> ProcessGroup:
        group = self._groups.get(world_size)
        if group is None or not group.alive:
            if group is not None:
                group.kill()
            group = self._groups[world_size] = ProcessGroup(world_size)
        return group

    def close(self) -> None:
        """End all groups."""
        for group in self._groups.values():
            group.kill()
        self._groups.clear()


def _rank(connection: Connection[Any, Any], rank: int, world_size: int, store: str) -> None:
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=START_SECONDS),
    )
    connection.send((True, None))
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:  # the test process has ended
            return
        try:
            module, qualified_name = name.split(":")
            answer = True, getattr(importlib.import_module(module), qualified_name)(*arguments)
        except BaseException:
            answer = False, traceback.format_exc()
        connection.send(answer)


if __name__ == "__main__":
    descriptor, own_rank, ranks, store_file = sys.argv[1:]
    _rank(Connection(int(descriptor)), int(own_rank), int(ranks), store_file)
    # Do not wait for the other ranks: they are ending too.
    os._exit(0)
