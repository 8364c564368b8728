"""Local worker processes: order, progress, failures, killed workers, Ctrl-C, memory bound."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pilekit.errors import PilekitError
from pilekit.workers import Advance, imap_shards, local, map_shards, usable_cpus
from pilekit.workers.local import START_METHOD
from tests.stopping import is_there, wait_for

pytestmark = pytest.mark.timeout(60)

ROOT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


@dataclass(frozen=True)
class Named:
    name: str
    value: int = 0


class OddError(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def later_first(item: int, advance: Advance) -> int:
    time.sleep(0.3 if item == 0 else 0)
    return item


def large_result(item: int, advance: Advance) -> bytes:
    return bytes(5_000_000)


def square(item: int, advance: Advance) -> int:
    return item * item


def nested(item: int, advance: Advance) -> list[int]:
    return map_shards(square, [item, item + 1], jobs=2)


def test_results_come_in_the_order_of_the_items() -> None:
    for jobs in (1, 3, None):
        assert map_shards(later_first, range(7), jobs=jobs) == list(range(7))
        assert map_shards(square, [], jobs=jobs) == []
    assert [len(result) for result in imap_shards(large_result, range(5), jobs=2)] == [5_000_000] * 5
    assert map_shards(nested, [1, 2], jobs=2) == [[1, 4], [4, 9]]
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
    with pytest.raises(PilekitError, match="jobs must be at least 1, not 0"):
        map_shards(square, [1], jobs=0)


def places_and_setting(item: int, advance: Advance) -> tuple[int, int, str | None]:
    return os.getpid(), os.getppid(), os.environ.get("PILEKIT_TEST")


@pytest.mark.skipif(START_METHOD != "forkserver", reason="workers are spawned")
def test_one_server_forks_all_workers_with_the_present_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "may_fork", lambda: False)
    servers = set()
    for setting in ("one", "other"):
        monkeypatch.setenv("PILEKIT_TEST", setting)
        assert {pid for pid, _, _ in map_shards(places_and_setting, [1, 2], jobs=1)} == {os.getpid()}
        for _, server, found in map_shards(places_and_setting, [1, 2], jobs=2):
            servers.add(server)
            assert found == setting
    assert len(servers) == 1
    assert os.getpid() not in servers


def oom_scores(item: int, advance: Advance) -> tuple[int, ...]:
    return tuple(int(Path(f"/proc/{pid}/oom_score").read_text()) for pid in (os.getpid(), item))


@pytest.mark.skipif(START_METHOD != "forkserver", reason="only Linux ranks processes")
def test_the_kernel_prefers_a_worker_to_its_parent_when_memory_runs_out() -> None:
    for worker, parent in map_shards(oom_scores, [os.getpid()] * 4, jobs=2):
        assert worker > parent + 100


def report_from_threads(item: int, advance: Advance) -> None:
    threads = [threading.Thread(target=lambda: [advance(item) for _ in range(100)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_progress_adds_up_whatever_thread_reports_it() -> None:
    for jobs in (1, 2):
        amounts: list[int] = []
        map_shards(report_from_threads, [1, 10, 100], jobs=jobs, on_progress=amounts.append)
        assert sum(amounts) == 300 * 111


FAILURES: dict[str, Exception] = {
    "damage": PilekitError("the frame is cut off"),
    "named": PilekitError("/data/b.zst, line 3: bad"),
    "bug": ZeroDivisionError("division by zero"),
    "disk": OSError(28, "No space left on device"),
    "memory": MemoryError(),
    "threads": RuntimeError("can't start new thread"),
    "odd": OddError("one", "two"),
}


def touch_then_fail(item: tuple[str, str], advance: Advance) -> object:
    path, how = item
    Path(path).write_text(how)
    if how in FAILURES:
        raise FAILURES[how]
    return threading.Lock() if how == "unpicklable" else how


def test_a_failure_names_its_item_after_the_others_are_through(tmp_path: Path) -> None:
    names = ["a.zst", "b.zst", "c.zst", "\x1b[31m"]
    for jobs, cases in (
        (1, [("damage", PilekitError, "b.zst: the frame is cut off")]),
        (
            2,
            [
                ("damage", PilekitError, "b.zst: the frame is cut off"),
                ("named", PilekitError, "/data/b.zst, line 3: bad"),
                ("bug", RuntimeError, "b.zst: ZeroDivisionError: division by zero"),
                ("disk", PilekitError, "b.zst: [Errno 28] No space left on device"),
                ("memory", PilekitError, "b.zst: ran out of memory; use fewer jobs"),
                ("threads", PilekitError, "b.zst: ran out of memory; use fewer jobs"),
                ("odd", RuntimeError, "b.zst: RuntimeError: OddError: one and two"),
                ("unpicklable", RuntimeError, "b.zst: TypeError: cannot pickle '_thread.lock' object"),
            ],
        ),
    ):
        for how, kind, message in cases:
            ways = ["fine", how, "fine", "bug"]
            items = [(str(tmp_path / f"{index}"), way) for index, way in enumerate(ways)]
            results = imap_shards(touch_then_fail, items, jobs=jobs, names=names)
            assert next(results) == "fine"
            with pytest.raises(kind) as failure:
                next(results)
            assert str(failure.value) == f"{message} (also failed: \\x1b[31m)"
            assert [Path(path).read_text() for path, _ in items] == ways
            if how == "bug":
                assert failure.value.__cause__ is not None
                assert "touch_then_fail" in "".join(failure.value.__cause__.__notes__)


def die(item: Named, advance: Advance) -> int:
    if item.value < 0:
        os.kill(os.getpid(), -item.value)
    if item.value == 3:
        os._exit(3)
    return item.value


def test_a_worker_that_dies_is_an_error_and_the_others_finish() -> None:
    items = [Named("first"), Named("train/07.jsonl", -signal.SIGKILL), *(Named(f"other {i}") for i in range(5))]
    killed = r"^train/07\.jsonl: the process that worked on it was killed \(signal 9\); if memory ran out, .*jobs$"
    with pytest.raises(PilekitError, match=killed):
        map_shards(die, items, jobs=2)
    everyone = r"^0: the process that worked on it ended with exit code 3.*\(also failed: 1\b"
    with pytest.raises(PilekitError, match=everyone):
        map_shards(die, [Named(str(index), 3) for index in range(9)], jobs=2)


def test_a_slow_consumer_is_waited_for(tmp_path: Path) -> None:
    items = [(str(tmp_path / f"{index:02}"), "fine") for index in range(20)]
    results = imap_shards(touch_then_fail, items, jobs=2)
    next(results)
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) <= 1 + 2 * 2
    assert len(list(results)) == 19


def wait_long_after_first(item: int, advance: Advance) -> int:
    time.sleep(60 if item else 0)
    return os.getpid()


def test_closing_the_iterator_stops_the_workers() -> None:
    results = imap_shards(wait_long_after_first, range(4), jobs=2)
    first = next(results)
    results.close()  # type: ignore[attr-defined]
    assert not is_there(first)


def work_until_stopped(item: tuple[str, float], advance: Advance) -> None:
    path, seconds = item
    Path(f"{path}.tmp").write_text(str(os.getpid()))
    Path(f"{path}.tmp").rename(path)
    try:
        time.sleep(60)
    finally:
        time.sleep(seconds)
        Path(f"{path}.cleared").touch()


def test_workers_that_are_stopped_have_a_moment_to_clean_up(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    started = 0.0

    def interrupt() -> None:
        wait_for(lambda: all(path.exists() for path in paths))
        nonlocal started
        started = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        map_shards(work_until_stopped, [(str(paths[0]), 0.2), (str(paths[1]), 30.0)], jobs=2)
    assert time.monotonic() - started < 25, "nobody waited 30 seconds"
    assert [Path(f"{path}.cleared").exists() for path in paths] == [True, False]


def match_without_end(item: tuple[str, float], advance: Advance) -> None:
    """Compiled code that lets no other thread run, for longer than a test may take."""
    Path(item[0]).write_text(str(os.getpid()))
    re.match("(a+)+$", "a" * 100 + "b")


# No `if __name__ == "__main__"`: functions of a module need none.
WORKING = """
import sys
from tests.workers import test_local
from pilekit.workers import map_shards
try:
    map_shards(getattr(test_local, sys.argv[2]), [(sys.argv[1] + name, 0.0) for name in ("/a", "/b", "/c")], jobs=2)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("work", [work_until_stopped, match_without_end])
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_stopping_the_parent_leaves_no_process(
    tmp_path: Path, sent: signal.Signals, code: int, work: Callable[..., None]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(WORKING)
    command = [sys.executable, str(script), str(tmp_path), work.__name__]
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, env=ROOT)
    started = [tmp_path / "a", tmp_path / "b"]
    wait_for(lambda: all(path.exists() for path in started))
    workers = [int(path.read_text()) for path in started]
    (os.killpg if sent == signal.SIGINT else os.kill)(parent.pid, sent)  # a terminal sends Ctrl-C to all processes
    _, errors = parent.communicate(timeout=120)
    assert parent.returncode == code
    wait_for(lambda: not any(is_there(worker) for worker in workers), 30)
    if sent == signal.SIGINT:
        assert errors == b""


COMPUTING = """
import os, threading, time
from pilekit.workers import map_shards
def compute(item, advance):
    while time.process_time() < item: pass
    return os.getppid()
"""


GUARDED = """
if __name__ == "__main__":
    assert map_shards(compute, [0, 0], jobs=2) == [os.getpid()] * 2  # without threads, it forks its workers itself
    threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
    servers = map_shards(compute, [1, 1], jobs=2)
    assert os.getpid() not in servers
    print(*servers)
"""
BARE = """
threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
map_shards(compute, [0, 0], jobs=2)
"""


@pytest.mark.skipif(START_METHOD != "forkserver", reason="workers are spawned")
def test_functions_of_a_guarded_script_work_and_without_the_guard_an_error_names_it(tmp_path: Path) -> None:
    """The CPU time of the workers counts as that of children, and no server is left."""
    guarded, bare = tmp_path / "guarded.py", tmp_path / "bare.py"
    guarded.write_text(COMPUTING + GUARDED)
    bare.write_text(COMPUTING + BARE)
    before = sum(os.times()[2:4])
    result = subprocess.run([sys.executable, str(guarded)], capture_output=True, text=True, timeout=120, env=ROOT)
    servers = result.stdout.split()
    assert len(servers) == 2, result.stderr
    assert not any(is_there(int(server)) for server in servers)
    assert sum(os.times()[2:4]) - before >= 2
    result = subprocess.run([sys.executable, str(bare)], capture_output=True, text=True, timeout=120, env=ROOT)
    assert result.returncode == 1
    assert 'under `if __name__ == "__main__":`' in result.stderr
