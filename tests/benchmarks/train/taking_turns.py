"""Contestants of a training benchmark: processes that run only in their turn, one step long, and are stopped otherwise.

So a temporary slowdown of the machine affects all alike, and no contestant is disturbed by another's work between its
steps. A contestant is one process or several ranks of a process group; its step takes as long as that of its slowest
rank. The other side is training_loops.py.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[3]
LOOPS = Path(__file__).with_name("training_loops.py")

TIMEOUT = 900.0
"""A contestant that needs more seconds for a step, the start of its processes included, counts as hanging."""


@dataclass
class Contestant:
    """A training tool and its measured steps; `failed` is the reason if it did not run.

    seconds      of each step, of the slowest rank, from one step's end to the next's
    cpu_seconds  of each step, of all ranks together
    data_wait    seconds of each step in which the loop waited for its batch
    losses       of every step, warm-up included
    memory       bytes, the most of a rank in a measured step
    busy         seconds of a step in which rank 0's GPU computed, and `kernels`, the costliest; from steps after these
    """

    name: str
    task: dict[str, Any]
    python: Path = Path(sys.executable)
    world_size: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    data_wait: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    memory: int = 0
    busy: float | None = None
    kernels: list[Any] = field(default_factory=list)
    failed: str | None = None

    @property
    def loop(self) -> str:
        """The loop of training_loops.py that it runs."""
        return str(self.task["loop"])


class Ended(Exception):
    """A rank that ended, or did not answer."""


class Running:
    """The processes of a contestant. They are stopped except during `step`, and end with the `ExitStack`."""

    def __init__(self, contestant: Contestant, folder: Path, until: ExitStack) -> None:
        self.contestant = contestant
        self._ranks: list[subprocess.Popen[str]] = []
        self._outputs: list[IO[str]] = []
        self._logs: list[Path] = []
        folder.mkdir(parents=True)
        (folder / "task.json").write_text(json.dumps({**contestant.task, "run": str(folder / "run")}))
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        size = contestant.world_size
        for rank in range(size):
            meeting = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(port),
            }
            log = folder / f"rank-{rank}.log"
            environment = {**os.environ, **threads(size), **contestant.environment, "PYTHONPATH": str(ROOT)}
            with log.open("w") as errors:
                process = subprocess.Popen(
                    [str(contestant.python), str(LOOPS), str(folder / "task.json")],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    cwd=folder,
                    env=environment | meeting,
                )
            until.enter_context(process)
            until.callback(process.kill)  # a stopped process, too
            assert process.stdout is not None
            self._logs.append(log)
            self._outputs.append(process.stdout)
            self._ranks.append(process)

    def step(self, *, counts: bool) -> None:
        """Let it run until the next step is done; `Ended` if it fails or hangs."""
        if self.contestant.losses:
            for process in self._ranks:
                process.send_signal(signal.SIGCONT)
            for process in self._ranks:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
        told = self.told()
        for process in self._ranks:
            process.send_signal(signal.SIGSTOP)
        contestant = self.contestant
        contestant.losses.append(sum(rank["loss"] for rank in told))
        if "busy" in told[0]:
            contestant.busy, contestant.kernels = told[0]["busy"], told[0]["kernels"]
        if counts:
            contestant.memory = max(contestant.memory, *(rank["memory"] for rank in told))
            contestant.seconds.append(max(rank["seconds"] for rank in told))
            contestant.cpu_seconds.append(sum(rank["cpu_seconds"] for rank in told))
            contestant.data_wait.append(max(rank["data_wait"] for rank in told))

    def end(self) -> None:
        """Kill all ranks; the remaining ranks would wait for the others forever."""
        for process in self._ranks:
            process.kill()
            process.wait()

    def told(self) -> list[dict[str, Any]]:
        """A line of each rank."""
        lines: dict[int, str] = {}
        while len(lines) < len(self._ranks):
            outputs = {output: rank for rank, output in enumerate(self._outputs) if rank not in lines}
            ready, _, _ = select.select(list(outputs), [], [], TIMEOUT)
            if not ready:
                raise Ended(f"no answer within {TIMEOUT:g} s")
            for output in ready:
                rank = outputs[output]
                lines[rank] = output.readline()
                if not lines[rank]:
                    raise Ended(self._last_words(rank))
        return [json.loads(lines[rank]) for rank in range(len(self._ranks))]

    def _last_words(self, rank: int) -> str:
        """The end of a rank's log; whatever was printed is above it on standard error."""
        status = self._ranks[rank].wait()
        lines = [line for line in self._logs[rank].read_text(errors="replace").splitlines() if line.strip()]
        print(*lines[-30:], sep="\n", file=sys.stderr)
        return f"ended with status {status}: {lines[-1] if lines else 'no message'}"


def threads(world_size: int) -> dict[str, str]:
    """The environment by which ranks share the cores and meet on this machine."""
    cores = len(os.sched_getaffinity(0))
    return {"OMP_NUM_THREADS": str(max(1, cores // world_size)), "GLOO_SOCKET_IFNAME": "lo"}


def compare(
    title: str, contestants: Sequence[Contestant], folder: Path, *, warm_up: int, steps: int, more: int = 0
) -> None:
    """Start the contestants, and let them take turns, one step each. A contestant that fails drops out.

    `more` steps follow that are not measured.
    """

    def step(each: Running, *, counts: bool) -> bool:
        try:
            each.step(counts=counts)
        except Ended as ended:
            each.end()
            each.contestant.failed = str(ended)
        return each.contestant.failed is None

    with ExitStack() as until:
        running = [Running(each, folder / str(number), until) for number, each in enumerate(contestants)]
        _show(f"{title}: all start")
        running = [each for each in running if step(each, counts=False)]
        for number in range(1, warm_up + steps + more):
            _show(f"{title}: step {number} of {warm_up + steps + more - 1}")
            counts = warm_up <= number < warm_up + steps
            running = [each for each in running if step(each, counts=counts)]
    _show("")


def _show(text: str) -> None:
    print(f"{text:60}", end="\r", file=sys.stderr, flush=True)
