"""The local engine with real processes: order, progress, failures, killed workers, Ctrl-C, memory bound."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from pilekit.engine import Advance, imap_shards, local, map_shards, usable_cpus
from pilekit.engine.local import START_METHOD
from pilekit.errors import PilekitError

pytestmark = pytest.mark.timeout(60)


@dataclass(frozen=True)
class Named:
    name: str
    value: int


def square(item: int, advance: Advance) -> int:
    return item * item


def later_first(item: int, advance: Advance) -> int:
    time.sleep(0.3 if item == 0 else 0)
    return item


def report_from_threads(item: int, advance: Advance) -> None:
    def report() -> None:
        for _ in range(100):
            advance(item)

    threads = [threading.Thread(target=report) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def process_id(item: int, advance: Advance) -> int:
    return os.getpid()


def touch_then_fail(item: tuple[str, str], advance: Advance) -> None:
    path, how = item
    Path(path).write_text(how)
    if how == "damage":
        raise PilekitError("the frame is cut off")
    if how == "bug":
        raise ZeroDivisionError("division by zero")
    if how == "disk":
        raise OSError(28, "No space left on device")
    if how == "memory":
        raise MemoryError
    if how == "odd":
        raise OddError("one", "two")


class OddError(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def kill_itself(item: Named, advance: Advance) -> int:
    if item.value < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return item.value


def leave(item: Named, advance: Advance) -> int:
    os._exit(3)


def unpicklable(item: int, advance: Advance) -> object:
    return threading.Lock()


def large_result(item: int, advance: Advance) -> bytes:
    return bytes(5_000_000)


def nested(item: int, advance: Advance) -> list[int]:
    return map_shards(square, [item, item + 1], jobs=2)


def test_results_come_in_the_order_of_the_items() -> None:
    for jobs in (1, 2, 3, None):
        assert map_shards(later_first, range(7), jobs=jobs) == list(range(7))
        assert map_shards(square, [], jobs=jobs) == []
    assert set(map_shards(process_id, [1, 2], jobs=1)) == {os.getpid()}
    assert [len(result) for result in imap_shards(large_result, range(5), jobs=2)] == [5_000_000] * 5
    assert map_shards(nested, [1, 2], jobs=2) == [[1, 4], [4, 9]]
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)


def server_and_setting(item: int, advance: Advance) -> tuple[int, str | None]:
    return os.getppid(), os.environ.get("PILEKIT_TEST")


@pytest.mark.skipif(START_METHOD != "forkserver", reason="workers are spawned")
def test_one_server_forks_the_workers_of_all_calls_with_the_present_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "_may_fork", lambda: False)
    servers, settings = set(), []
    for setting in ("one", "other"):
        monkeypatch.setenv("PILEKIT_TEST", setting)
        for server, found in map_shards(server_and_setting, [1, 2], jobs=2):
            servers.add(server)
            settings.append(found)
    assert len(servers) == 1
    assert os.getpid() not in servers
    assert settings == ["one", "one", "other", "other"]


COUNTING = """
from tests.engine.test_local import compute
from pilekit.engine import map_shards
print(*map_shards(compute, [1, 2], jobs=2))
"""


def compute(item: int, advance: Advance) -> int:
    while time.process_time() < 1:
        pass
    return os.getppid()


def test_the_cpu_time_of_workers_counts_as_that_of_children_and_no_server_is_left() -> None:
    def cpu_seconds() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = cpu_seconds()
    result = subprocess.run(
        [sys.executable, "-c", COUNTING],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert result.returncode == 0, result.stderr
    assert not any(alive(int(server)) for server in result.stdout.split())
    assert cpu_seconds() - before >= 1


def test_progress_adds_up_whatever_thread_reports_it() -> None:
    for jobs in (1, 2):
        amounts: list[int] = []
        map_shards(report_from_threads, [1, 10, 100], jobs=jobs, on_progress=amounts.append)
        assert sum(amounts) == 300 * 111


def test_a_failure_names_its_item_after_the_others_are_through(tmp_path: Path) -> None:
    for jobs in (1, 2):
        for how, kind, message in (
            ("damage", PilekitError, "b.zst: the frame is cut off"),
            ("bug", RuntimeError, "b.zst: ZeroDivisionError: division by zero"),
            ("disk", PilekitError, "b.zst: [Errno 28] No space left on device"),
            ("memory", PilekitError, "b.zst: ran out of memory; use fewer jobs"),
        ):
            ways = ["fine", how, "fine", "bug"]
            items = [(str(tmp_path / f"{index}"), way) for index, way in enumerate(ways)]
            with pytest.raises(kind) as failure:
                map_shards(touch_then_fail, items, jobs=jobs, names=["a.zst", "b.zst", "c.zst", "d.zst"])
            assert str(failure.value) == f"{message} (also failed: d.zst)"
            assert [Path(path).read_text() for path, _ in items] == ways
    assert failure.value.__cause__ is not None
    assert "touch_then_fail" in "".join(failure.value.__cause__.__notes__)


def test_an_exception_or_a_result_that_cannot_be_pickled_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^x: .*OddError: one and two"):
        map_shards(touch_then_fail, [(str(tmp_path / "1"), "odd"), (str(tmp_path / "2"), "fine")], names="xy", jobs=2)
    with pytest.raises(RuntimeError, match=r"^1: TypeError: cannot pickle"):
        map_shards(unpicklable, [1, 2], jobs=2)


def test_a_name_is_visible_and_not_repeated() -> None:
    with pytest.raises(PilekitError, match=r"^/data/train/00\.jsonl\.zst, line 3: bad$"):
        map_shards(say_path, [Named("train/00.jsonl", 0)])
    with pytest.raises(PilekitError, match=r"^\\x1b\[31mred: "):
        map_shards(touch_then_fail, [("/dev/null", "damage")], names=["\x1b[31mred"])


def say_path(item: Named, advance: Advance) -> None:
    raise PilekitError(f"/data/{item.name}.zst, line 3: bad")


def test_results_before_a_failure_are_yielded_and_none_after_it() -> None:
    for jobs in (1, 2):
        results = imap_shards(fail_at_two, range(6), jobs=jobs)
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(RuntimeError, match="2: ValueError: two"):
            next(results)


def fail_at_two(item: int, advance: Advance) -> int:
    if item == 2:
        raise ValueError("two")
    return item


def test_a_worker_that_dies_is_an_error_and_the_others_finish() -> None:
    items = [Named("first", 1), Named("train/07.jsonl", -1), *(Named(f"other {i}", i) for i in range(5))]
    with pytest.raises(
        PilekitError, match=r"train/07\.jsonl: the process .* was killed \(signal 9\); if memory ran out"
    ):
        map_shards(kill_itself, items, jobs=2)
    everyone = r"^0: the process that worked on it ended with exit code 3.*\(also failed: 1\)"
    with pytest.raises(PilekitError, match=everyone):
        map_shards(leave, [Named(str(index), 0) for index in range(9)], jobs=2)


def test_a_slow_consumer_is_waited_for(tmp_path: Path) -> None:
    items = [(str(tmp_path / f"{index:02}"), "fine") for index in range(20)]
    results = imap_shards(touch_then_fail, items, jobs=2)
    next(results)
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) <= 1 + 2 * 2
    assert len(list(results)) == 19


def test_closing_the_iterator_stops_the_workers() -> None:
    results = imap_shards(wait_long_after_first, range(4), jobs=2)
    first = next(results)
    started = time.monotonic()
    results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 30, "it did not wait for their work"
    assert not alive(first)


def wait_long_after_first(item: int, advance: Advance) -> int:
    time.sleep(60 if item else 0)
    return os.getpid()


def clear_up(item: tuple[str, float], advance: Advance) -> None:
    path, seconds = item
    try:
        Path(path).touch()
        time.sleep(60)
    finally:
        time.sleep(seconds)
        Path(f"{path}.cleared").touch()


@pytest.mark.parametrize("seconds", [0.2, 30])
def test_a_worker_that_is_stopped_has_a_moment_to_clean_up(tmp_path: Path, seconds: float) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]

    def interrupt() -> None:
        wait_for(lambda: all(path.exists() for path in paths))
        nonlocal started
        started = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    started = 0.0
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        map_shards(clear_up, [(str(path), seconds) for path in paths], jobs=2)
    assert time.monotonic() - started < 25, "nobody waited 30 seconds"
    assert [Path(f"{path}.cleared").exists() for path in paths] == [seconds < 1] * 2


def test_wrong_arguments() -> None:
    with pytest.raises(PilekitError, match="jobs must be at least 1, not 0"):
        map_shards(square, [1], jobs=0)
    with pytest.raises(PilekitError, match="2 items, but 1 names"):
        map_shards(square, [1, 2], names=["one"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


WORKING = """
import sys, time
from tests.engine.test_local import sleep_and_tell
from pilekit.engine import map_shards
try:
    map_shards(sleep_and_tell, [sys.argv[1] + "/a", sys.argv[1] + "/b", sys.argv[1] + "/c"], jobs=2)
except KeyboardInterrupt:
    sys.exit(130)
"""


def sleep_and_tell(item: str, advance: Advance) -> None:
    Path(item + ".tmp").write_text(str(os.getpid()))
    Path(item + ".tmp").rename(item)
    time.sleep(60)


@pytest.mark.parametrize(
    ("sent", "code", "whole_group"),
    [(signal.SIGINT, 130, True), (signal.SIGTERM, -15, False), (signal.SIGKILL, -9, False)],
)
def test_stopping_the_parent_leaves_no_process(
    tmp_path: Path, sent: signal.Signals, code: int, whole_group: bool
) -> None:
    # The script has no `if __name__ == "__main__"` and needs none.
    script = tmp_path / "script.py"
    script.write_text(WORKING)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    started = [tmp_path / "a", tmp_path / "b"]
    wait_for(lambda: all(path.exists() for path in started))
    workers = [int(path.read_text()) for path in started]
    (os.killpg if whole_group else os.kill)(parent.pid, sent)
    _, errors = parent.communicate(timeout=120)
    assert parent.returncode == code
    wait_for(lambda: not any(alive(worker) for worker in workers))
    if sent == signal.SIGINT:
        assert errors == b""


def wait_for(condition: object, seconds: float = 120) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


FORKED = """
import os, threading, time
from pilekit.engine import map_shards
def parent(item, advance): return os.getppid()
if __name__ == "__main__":
    assert set(map_shards(parent, [1, 2], jobs=2)) == {os.getpid()}
threading.Thread(target=time.sleep, args=(1,)).start()
"""


@pytest.mark.skipif(START_METHOD != "forkserver", reason="workers are spawned")
def test_a_process_without_threads_forks_its_workers_itself_and_with_a_thread_a_server_does(tmp_path: Path) -> None:
    again = 'if __name__ == "__main__":\n    assert os.getpid() not in map_shards(parent, [1, 2], jobs=2)\n'
    script = tmp_path / "script.py"
    script.write_text(FORKED + again)
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_functions_of_a_guarded_script_work_and_without_the_guard_an_error_names_it(tmp_path: Path) -> None:
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(2,), daemon=True).start()\n"
    body = f"{threads}from pilekit.engine import map_shards\ndef double(item, advance): return 2 * item\n"
    guarded, bare = tmp_path / "guarded.py", tmp_path / "bare.py"
    guarded.write_text(body + 'if __name__ == "__main__":\n    print(map_shards(double, [1, 2], jobs=2))\n')
    bare.write_text(body + "print(map_shards(double, [1, 2], jobs=2))\n")
    result = subprocess.run([sys.executable, str(guarded)], capture_output=True, text=True, timeout=120)
    assert result.stdout == "[2, 4]\n", result.stderr
    result = subprocess.run([sys.executable, str(bare)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "the worker processes did not start" in result.stderr
