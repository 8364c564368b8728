"""Real process groups for tests: ranks joined by gloo, started once and used by every test that asks for them.

    def mean_of_ranks(add: float) -> float:                    # a function of a module, found again by its name
        value = torch.tensor(float(dist.get_rank()) + add)
        dist.all_reduce(value)
        return value.item() / dist.get_world_size()

    def test_mean(process_group: ProcessGroups) -> None:
        assert process_group(2).run(mean_of_ranks, 1.0) == [1.5, 1.5]

Starting Python with torch takes seconds, so one process imports it and forks all ranks, and one group per world size
serves the whole session. Each rank is a process of its own session, not a daemon: it may start workers, and killing its
session kills them too. A function that runs too
long is killed in all ranks and fails its test. After a failure the group ends, because its ranks may be out of step;
the next test that asks gets a new group.

`process_group.script(program)` runs a script in a fork that belongs to no group: a new process without the seconds for
imports.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 120.0
"""Time for imports and for joining the group, on a busy machine."""


class RankFailed(AssertionError):
    """A rank raised, died or did not answer in time; the message holds its traceback."""


class RankServer:
    """A process of `python` that has imported what all ranks need, forks them, and tells how they ended."""

    def __init__(self, python: Path = Path(sys.executable), **settings: str) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            **settings,
        }
        ours, theirs = socket.socketpair()
        command = [str(python), "-X", "faulthandler", "-m", "tests.process_groups", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()
        self._connection: Connection[Any, Any] = Connection(ours.detach())

    def fork(self, *arguments: Any) -> tuple[int, Connection[Any, Any]]:
        """Start a rank with these arguments; its process id, and the connection to it."""
        ours, theirs = socket.socketpair()
        self._connection.send(("fork", arguments))
        send_handle(self._connection, theirs.fileno(), self._process.pid)
        theirs.close()
        return self._connection.recv(), Connection(ours.detach())

    def start_script(
        self, program: str, arguments: Sequence[str], folder: Path, stdout: Path, stderr: Path, **environment: str
    ) -> int:
        """Start a script in `folder`, with these `sys.argv`; its process id, which is also that of its session."""
        self._connection.send(("script", (program, list(arguments), folder, stdout, stderr, environment)))
        return int(self._connection.recv())

    def exit_code(self, rank: int, *, wait: bool) -> int | None:
        """How that process ended; None if it has not."""
        self._connection.send(("end", (rank, wait)))
        code: int | None = self._connection.recv()
        return code

    def close(self) -> None:
        """End the server; its ranks end by themselves when their connections close."""
        with socket.socket(fileno=self._connection.fileno()) as ours:
            ours.shutdown(socket.SHUT_RDWR)  # workers of a loader that is still alive hold the socket too
            ours.detach()
        self._connection.close()
        self._process.wait()


class ProcessGroup:
    """`world_size` processes in one gloo group that wait for functions to run."""

    def __init__(self, world_size: int, server: RankServer) -> None:
        self.world_size, self._server = world_size, server
        self._folder = tempfile.TemporaryDirectory(prefix="pilekit-ranks-")
        store = str(Path(self._folder.name) / "store")
        ranks = [server.fork(rank, world_size, store) for rank in range(world_size)]
        self._processes = [process for process, _ in ranks]
        self._connections = [connection for _, connection in ranks]
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
            code = self._server.exit_code(self._processes[rank], wait=True)
            raise RankFailed(f"{what}: rank {rank} of {self.world_size} ended with exit code {code}") from error

    @property
    def alive(self) -> bool:
        """Whether every rank still waits for work."""
        return all(self._server.exit_code(process, wait=False) is None for process in self._processes)

    def kill(self) -> None:
        """Kill all ranks and the processes that they started."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            self._server.exit_code(process, wait=True)
        for connection in self._connections:
            connection.close()
        self._folder.cleanup()


class ProcessGroups:
    """One `ProcessGroup` per world size, started on first use."""

    def __init__(self) -> None:
        self._groups: dict[int, ProcessGroup] = {}
        self._server: RankServer | None = None

    def __call__(self, world_size: int) -> ProcessGroup:
        group = self._groups.get(world_size)
        if group is None or not group.alive:
            if group is not None:
                group.kill()
            self._server = self._server or RankServer()
            group = self._groups[world_size] = ProcessGroup(world_size, self._server)
        return group

    def script(self, program: str, *arguments: str, folder: Path = ROOT) -> tuple[int, str, str]:
        """Run a Python script as `python -c` does, in `folder`; its exit code and what it printed.

        No other process can import its functions. Its process has used one thread so far and belongs to no group.
        """
        server = self._server = self._server or RankServer()
        with tempfile.TemporaryDirectory(prefix="pilekit-script-") as written:
            stdout, stderr = Path(written, "stdout"), Path(written, "stderr")
            code = server.exit_code(server.start_script(program, ["-c", *arguments], folder, stdout, stderr), wait=True)
            assert code is not None
            return code, stdout.read_text(), stderr.read_text()

    def close(self) -> None:
        """End all groups."""
        for group in self._groups.values():
            group.kill()
        self._groups.clear()
        if self._server is not None:
            self._server.close()


def _serve(requests: Connection[Any, Any]) -> None:
    import transformers.models.gpt_neox.modeling_gpt_neox
    import transformers.models.llama.modeling_llama  # noqa: F401

    import tests.train.ranks.fitting  # noqa: F401  # and with it pytest, hypothesis and the trainer

    ended: dict[int, int] = {}
    while True:
        try:
            what, arguments = requests.recv()
        except EOFError:  # the test process has ended
            return
        if what in ("fork", "script"):
            descriptor = recv_handle(requests) if what == "fork" else None
            process = os.fork()
            if process == 0:
                os.setsid()
                requests.close()
                if descriptor is None:
                    sys.exit(_run_script(*arguments))
                with suppress(BaseException):
                    _rank(Connection(descriptor), *arguments)
                os._exit(0)  # Do not wait for the other ranks: they are ending too.
            if descriptor is not None:
                os.close(descriptor)
            requests.send(process)
        else:
            process, wanted = arguments
            if process not in ended:
                done, status = os.waitpid(process, 0 if wanted else os.WNOHANG)
                if done:
                    ended[process] = os.waitstatus_to_exitcode(status)
            requests.send(ended.get(process))


def _run_script(
    program: str, arguments: list[str], folder: Path, stdout: Path, stderr: Path, environment: dict[str, str]
) -> int:
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv = arguments
    try:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


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
    _serve(Connection(int(sys.argv[1])))
    os._exit(0)  # Taking down so many modules one by one would take seconds.
