"""Real Ray clusters for tests, whose nodes tests may stop and kill, and commands run on them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilekit.artifacts.job_folder import NOTES
from tests.stopping import is_there, partial_files, tree, wait_for

ROOT = Path(__file__).parents[2]
LABELS = ("ArXiv", "Github", "FreeLaw")

GATE = """
import os, time
def fsync(file, sync=os.fsync, held=os.path.join(os.path.dirname(__file__), "held")):
    sync(file)
    while any(part in os.readlink(f"/proc/self/fd/{file}") for part in os.listdir(held)):
        time.sleep(0.01)
os.fsync = fsync
"""
"""A worker does not rename the file that it has written while a part of its name is the name of a file in `held`."""


class TwoNodes:
    """A cluster with a head and a node that tests may kill; its workers wait before files named by those in `held`."""

    def __init__(self, path: Path) -> None:
        from ray.cluster_utils import Cluster

        options = {"num_cpus": 1, "object_store_memory": 80 << 20}
        self.cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
        self.options, self.node = options, None
        self.address: str = self.cluster.address
        self.held, self.ray = path / "held", ("--cluster", self.address)

    def complete(self) -> None:
        if self.node is None:
            self.node = self.cluster.add_node(**self.options)

    def signal_node(self, number: int) -> None:
        """Send a signal to the raylet of the second node and its workers."""
        raylet = self.node.all_processes["raylet"][0].process.pid
        for process in (raylet, *children(raylet)):
            os.kill(process, number)

    @contextmanager
    def holding(self, process: subprocess.Popen[str], out: Path, part: str, workers: int = 2) -> Iterator[None]:
        """Run the block when workers of a process hold files in `out` with this part of a name, then let go."""
        wait_for(lambda: process.poll() is not None or sum(part in file.name for file in partial_files(out)) == workers)
        assert process.poll() is None
        yield
        (self.held / part).unlink()

    def busy_workers(self) -> list[int]:
        """The workers of the two nodes that have a task."""
        raylets = [node.all_processes["raylet"][0].process.pid for node in (self.cluster.head_node, self.node)]
        return [worker for raylet in raylets for worker in children(raylet) if is_busy(worker)]

    def lose(self, what: str) -> None:
        """Kill a worker that has a task ("worker"), or the second node ("node"), or stop it ("hanging node")."""
        if what == "worker":
            os.kill(self.busy_workers()[0], signal.SIGKILL)
        elif what == "node":
            self.signal_node(signal.SIGKILL)
            self.remove_node()
        else:
            self.signal_node(signal.SIGSTOP)

    def wake_node(self) -> None:
        """Let a node that hung wake, and find that it was given up; its workers may end their tasks."""
        raylet = self.node.all_processes["raylet"][0].process.pid
        workers = children(raylet)
        self.signal_node(signal.SIGCONT)
        wait_for(lambda: not is_there(raylet) and not any(map(is_busy, workers)))
        self.remove_node()
        for worker in filter(is_there, workers):  # One that was at work when its node woke may outlive it.
            os.kill(worker, signal.SIGKILL)

    def remove_node(self) -> None:
        self.cluster.remove_node(self.node, allow_graceful=False)
        self.node = None


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def published(folder: Path) -> dict[str, bytes]:
    """The `tree` without files of a task that ran again after the end: partial files, and notes, which are ignored."""
    return {name: read for name, read in tree(folder).items() if not name.endswith(".partial") and NOTES not in name}


def is_busy(worker: int) -> bool:
    """Whether a worker of Ray has a task."""
    try:
        return Path(f"/proc/{worker}/cmdline").read_bytes().startswith(b"ray::run_task")
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def started(*arguments: object, at: Path | None = None, **changed: object) -> Iterator[subprocess.Popen[str]]:
    """A command that runs; it is killed if the block fails, since it may wait for a file that the block holds."""
    command = [sys.executable, "-m", "pilekit", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **{name: str(value) for name, value in changed.items()}}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=at, start_new_session=True, env=environment
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def pilekit(*arguments: object, at: Path | None = None, **changed: object) -> str:
    with started(*arguments, at=at, **changed) as process:
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return output


GUARDED = """
import sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=node)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@contextmanager
def lone_node(**settings: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(address, environment) of a cluster of one node, with these variables."""
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray") as short:
        ours = {
            "HOME": short,
            "RAY_TMPDIR": short,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            **settings,
        }
        command, pipe = [sys.executable, "-c", GUARDED], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ, **ours}, text=True) as head:
            assert head.stdout is not None
            yield head.stdout.readline().strip(), ours
            head.communicate()
