"""Ray clusters: addresses, the node check, tokens, lack of memory, and the contract of `map_shards` on a cluster."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import pytest

from pilekit.artifacts.file_lock import locked
from pilekit.corpus import Shard
from pilekit.errors import PilekitError
from pilekit.workers import Advance, Ray, imap_shards, map_shards, ray_worker
from pilekit.workers import ray as ray_module
from pilekit.workers.ray import TASK_BYTES, task_items
from pilekit.workers.ray_worker import Driver, check_node, versions
from tests.workers.ray_cluster import TwoNodes, lone_node, pilekit, started


def test_an_address_that_leads_nowhere_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for address, text in (
        (None, "no address: name the head of the Ray cluster as HOST:PORT, or take auto for this machine's cluster"),
        ("http://here:8265", "http://here:8265: name the head"),
        ("ray://here:10001", "ray://here:10001: is of a Ray client; .* `ray job submit`"),
        ("127.0.0.1:9", r"127.0.0.1:9: no Ray cluster answers there \(Connection refused\); check the address"),
        ("10.0..7:6379", r"10.0..7:6379: no Ray cluster answers there \(.*label empty.*\); check the address"),
    ):
        with pytest.raises(PilekitError, match=text), Ray(address):
            pass
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # only when typed: it finds any cluster of the machine
    with pytest.raises(PilekitError, match="auto: name the head"), Ray():
        pass
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")  # goes before the cluster of the machine
    for address in (None, "auto"):
        with pytest.raises(PilekitError, match=r"127\.0\.0\.1:9: no Ray cluster answers there"), Ray(address):
            pass
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PilekitError, match=r"pip install 'pilekit\[ray\]'"), Ray("auto"):
        pass


def test_small_shards_are_gathered_but_every_job_has_work() -> None:
    def shards(*sizes: int | None) -> list[Shard]:
        return [Shard(str(number), str(number), size) for number, size in enumerate(sizes)]

    assert task_items(shards(*[TASK_BYTES // 4] * 32), 1) == [[n, n + 1, n + 2, n + 3] for n in range(0, 32, 4)]
    assert task_items(shards(10, 10, 10, 10), 2) == [[0], [1], [2], [3]]
    assert task_items(shards(None, 10, 10), 1) == [[0], [1, 2]]
    assert [len(task) for task in task_items([(shard, None) for shard in shards(*[10] * 200)], 1)] == [16] * 12 + [8]


def test_a_node_that_does_not_fit_the_driver_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    lock = tmp_path / ".lock"
    fitting = Driver(str(tmp_path), versions(), {"PILEKIT_TEST": "set"}, lock)
    try:
        for driver, text in (
            (fitting._replace(folder=f"{tmp_path}/none"), "^node 7 has no folder .*none .*No such file"),
            (
                fitting._replace(versions={**versions(), "libzstd": "0.1"}),
                "^node 7 has libzstd .*, the driver has 0.1;",
            ),
            (fitting, "^node 7 does not see the driver's folder .*; put it, .* that all nodes share"),
        ):
            with pytest.raises(PilekitError, match=text):
                check_node(driver, "node 7", seconds=0.0)
        with locked(lock):
            check_node(fitting, "node 7")
        assert not caplog.records
        assert os.environ.pop("PILEKIT_TEST") == "set"
        assert current_process().daemon
        lock.touch()
        check_node(fitting._replace(settings={}), "node 7")
        assert "locks do not reach other machines" in caplog.text
    finally:
        current_process().daemon = False
        ray_worker._checked.clear()


@pytest.mark.slow
def test_a_cluster_with_a_token_is_joined_with_it_alone_and_refuses_others_soon(corpus: Path) -> None:
    with lone_node(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="5" * 64) as (address, right):
        options = (corpus, "--cluster", address)
        assert pilekit("stats", *options, **right) == pilekit("stats", corpus)
        begin = time.monotonic()
        with started("stats", *options, **{**right, "RAY_AUTH_TOKEN": "7" * 64}) as process:
            errors = process.communicate(timeout=240)[1].splitlines()
        assert time.monotonic() - begin < 30
        assert process.returncode == 1
        (error,) = errors
        assert error.startswith(f"error: {address}: cannot join this Ray cluster (")
        assert error.endswith("and with its token if it has one (RAY_AUTH_MODE=token)")


@pytest.mark.slow
def test_a_worker_that_is_killed_for_lack_of_memory_fails_its_shard(corpus: Path, tmp_path: Path) -> None:
    """Ray kills the worker, and the collector of progress with it, as the node uses more than 1 % of its memory."""
    with lone_node(RAY_memory_usage_threshold="0.01", RAY_memory_monitor_refresh_ms="50") as (address, settings):
        options = ("--level", 19, "--out", tmp_path / "out", "--cluster", address)
        settings["RAY_task_oom_retries"] = "1"  # 3 by default
        with started("reframe", corpus / "00.jsonl.zst", *options, **settings) as process:
            printed, errors = process.communicate(timeout=240)
        assert (process.returncode, printed) == (1, "")
        assert re.search(r"\nerror: 00\S+: ran out of memory; use fewer jobs\n", errors), errors


def describe(item: int, advance: Advance) -> tuple[int, list[int], str]:
    advance(10)
    logging.getLogger("pilekit.test").warning("a worker warns")
    return item, map_shards(times_two, [item, item], jobs=2), str(Path.cwd())


def times_two(item: int, advance: Advance) -> int:
    return 2 * item if current_process().daemon else -1


def fail(item: int, advance: Advance) -> bytes:
    """Item 1 kills its process once, item 4 always; item 5 has a large result."""
    if item == 2:
        raise PilekitError("is damaged")
    if item == 4 or (item == 1 and not Path("killed").exists()):
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return bytes(2 << 20) if item == 5 else b""


def fail_by_name(shard: Shard, advance: Advance) -> None:
    if shard.name == "4":
        fail(4, advance)


@pytest.mark.slow
def test_the_contract_of_map_shards_holds_on_a_cluster(
    cluster: TwoNodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Ray(cluster.address) as ray:
        assert str(ray).endswith(f" at {cluster.address}: 2 nodes, 2 CPUs")
        with pytest.raises(PilekitError, match=r"cannot join .* ray.init twice"), Ray(cluster.address):
            pass  # It leaves the connection that there is.
        print("of the user")
        for turn in range(2):
            done: list[int] = []
            results = map_shards(describe, range(40), cluster=ray, on_progress=done.append)
            assert results == [(item, [2 * item, 2 * item], str(tmp_path)) for item in range(40)]
            assert sum(done) == 400
            if turn == 0:
                ray.ray.kill(ray.progress)  # Nothing but the progress line needs it.
        assert map_shards(fail, [0, 1, 5], cluster=ray) == [b"", b"", bytes(2 << 20)]
        assert Path("killed").exists()
        with pytest.raises(PilekitError, match=r"^2: is damaged \(on node \S+\) \(also failed: 4\)$"):
            map_shards(fail, range(7), cluster=ray)
        killed = (
            r"^4: the process that worked on it was killed, or its node lost, each time; if memory ran out, use fewer"
        )
        with pytest.raises(PilekitError, match=killed):
            map_shards(fail, [4], cluster=ray, names=["4"])
        small = [Shard(str(number), "", size=1) for number in range(16)]  # two of them share a task
        with pytest.raises(PilekitError, match=r"^4: the process[^()]*$"):
            map_shards(fail_by_name, small, cluster=ray, jobs=1)
        with monkeypatch.context() as other:
            other.setattr(ray_module, "versions", lambda: {**versions(), "libzstd": "0.1"})
            with pytest.raises(PilekitError, match=r"^node \S+ has libzstd \S+, the driver has 0.1; install the same"):
                map_shards(times_two, [1], cluster=ray)
        stream: Any = imap_shards(describe, range(10), cluster=ray, jobs=1)
        assert next(stream)[0] == 0
        stream.close()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert capfd.readouterr().out == "of the user\n"
    assert caplog.text.count("a worker warns") == 3  # once in each call
