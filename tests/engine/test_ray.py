"""The Ray engine: a real cluster of two nodes, on which nodes, workers and drivers are killed."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import current_process
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.file_lock import locked
from pilekit.corpus import Shard
from pilekit.engine import Advance, Ray, imap_shards, map_shards, ray_worker
from pilekit.engine import ray as ray_module
from pilekit.engine.ray import TASK_BYTES, gathered
from pilekit.engine.ray_worker import RollCall, versions
from pilekit.errors import PilekitError
from tests.shards.making import record, unzstd
from tests.stopping import interrupt, is_there, kill, tree, wait_for
from tests.tokenize.making import byte_level_bpe, saved
from tests.web_server import serving

ROOT = Path(__file__).parents[2]
LABELS = ("ArXiv", "Github", "FreeLaw")


def test_an_address_that_leads_nowhere_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for address, text in (
        (None, r"no address: name the head of the Ray cluster as HOST:PORT, with --address or in \$RAY_ADDRESS"),
        ("http://here:8265", "http://here:8265: name the head"),
        ("ray://here:10001", "ray://here:10001: is of a Ray client; .* `ray job submit`"),
        ("127.0.0.1:9", r"127.0.0.1:9: no Ray cluster answers there \(Connection refused\); check the address"),
    ):
        with pytest.raises(PilekitError, match=text), Ray(address):
            pass
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # only when typed: it finds any cluster of the machine
    with pytest.raises(PilekitError, match="auto: name the head"), Ray():
        pass
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PilekitError, match=r"pip install 'pilekit\[ray\]'"), Ray("auto"):
        pass


def test_small_shards_are_gathered_but_every_job_has_work() -> None:
    def shards(*sizes: int | None) -> list[Shard]:
        return [Shard(str(number), str(number), size) for number, size in enumerate(sizes)]

    assert gathered(shards(*[TASK_BYTES // 4] * 8), 1) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert gathered(shards(10, 10, 10, 10), 2) == [[0], [1], [2], [3]]
    assert gathered(shards(None, 10, 10), 1) == [[0], [1, 2]]
    assert [len(task) for task in gathered([(shard, None) for shard in shards(*[10] * 40)], 1)] == [16, 16, 8]


def test_a_node_that_does_not_fit_the_driver_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_worker, "LATE_SECONDS", 0.0)
    here, lock = str(tmp_path), tmp_path / ".lock"

    def write(name: str) -> None:
        with write_atomically(tmp_path / name) as file:
            file.write(b"x")

    try:
        for call, text in (
            (RollCall(f"{here}/none", versions(), {}, None, "1"), "has no folder .*none .*No such file"),
            (RollCall(here, {**versions(), "libzstd": "0.1"}, {}, None, "1"), "has libzstd .*, the driver has 0.1;"),
            (RollCall(here, versions(), {}, str(lock), "1"), "does not see the driver's folder"),
        ):
            with pytest.raises(PilekitError, match=text):
                ray_worker._answer(call)
        with locked(lock):
            lock.write_text("2 17 5")
            ray_worker._answer(RollCall(here, versions(), {"PILEKIT_TEST": "set"}, str(lock), "2", 4))
            (answer,) = tmp_path.glob(".lock.*.partial")
        assert not caplog.records
        assert os.environ.pop("PILEKIT_TEST") == "set"
        assert current_process().daemon
        lock.write_text("3")
        ray_worker._answer(RollCall(here, versions(), {}, str(lock), "3"))
        assert "locks do not reach other machines" in caplog.text
        write("a")
        lock.write_text("3 4 12")
        write("b")
        ray_worker._answer(RollCall(here, versions(), {}, str(lock), "3", 12))  # It is given out again.
        with pytest.raises(PilekitError, match="c: the job has gone on without this copy of its work"):
            write("c")
        ray_worker._answer(RollCall(here, versions(), {}, str(lock), "3", 1))
        lock.unlink()
        with pytest.raises(PilekitError, match="d: the job has gone on without this copy of its work"):
            write("d")
        assert {path.name for path in tmp_path.iterdir()} == {"a", "b", answer.name}
        ray_worker._answered.clear()
        lock.write_text("5")
        answer.unlink()
        answer.mkdir()
        with pytest.raises(PilekitError, match=r"cannot write into the driver's folder .* \(Is a directory\); put it"):
            ray_worker._answer(RollCall(here, versions(), {}, str(lock), "5"))
    finally:
        current_process().daemon = False
        ray_worker._answered.clear()


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
        self.held, self.ray = path / "held", ("--engine", "ray", "--address", self.address)

    def complete(self) -> None:
        if self.node is None:
            self.node = self.cluster.add_node(**self.options)

    def signal_node(self, number: int) -> None:
        """Send a signal to the raylet of the second node and its workers."""
        raylet = self.node.all_processes["raylet"][0].process.pid
        for process in (raylet, *children(raylet)):
            os.kill(process, number)

    @contextmanager
    def holding(self, process: subprocess.Popen[str], out: Path, part: str, jobs: int = 2) -> Iterator[None]:
        """Run the block when as many workers of a process hold files in `out` with this part of a name, then let go."""
        wait_for(lambda: len(list(out.rglob(f"*{part}*.partial"))) == jobs or process.poll() is not None)
        assert process.poll() is None
        yield
        (self.held / part).unlink()

    def working(self) -> bool:
        """Whether a worker of the two nodes has a task."""
        for node in (self.cluster.head_node, self.node):
            for worker in children(node.all_processes["raylet"][0].process.pid):
                with suppress(FileNotFoundError, ProcessLookupError):
                    if Path(f"/proc/{worker}/cmdline").read_bytes().startswith(b"ray::run_task"):
                        return True
        return False

    def remove_node(self) -> None:
        self.cluster.remove_node(self.node, allow_graceful=False)
        self.node = None


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.fixture(scope="session")
def cluster_of_the_run() -> Iterator[TwoNodes]:
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir="/tmp", prefix="ray") as short:
        # Sockets need a short path. A local cluster writes a token into the home folder.
        for name in ("HOME", "RAY_TMPDIR"):
            patch.setenv(name, short)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        patch.setenv("RAY_worker_niceness", "0")  # 15 by default: beside other tests, a worker takes minutes to start
        for name, value in (("failure_threshold", 2), ("period_ms", 500), ("timeout_ms", 1000)):
            patch.setenv(f"RAY_health_check_{name}", str(value))  # a node that hangs is given up after seconds
        Path(short, "sitecustomize.py").write_text(GATE)
        Path(short, "held").mkdir()
        patch.setenv("PYTHONPATH", f"{short}:{ROOT}")
        nodes = TwoNodes(Path(short))
        yield nodes
        nodes.cluster.shutdown()


@pytest.fixture
def cluster(cluster_of_the_run: TwoNodes) -> TwoNodes:
    cluster_of_the_run.complete()
    for held in cluster_of_the_run.held.iterdir():
        held.unlink()
    return cluster_of_the_run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six shards, each of which takes a second to compress well, and a small one with an index."""
    folder, random = tmp_path_factory.mktemp("cluster") / "corpus", Random(1)
    folder.mkdir()
    words = ["".join(random.choices("abcdefghijklmnop", k=6)) for _ in range(3000)]
    for number in range(7):
        lines = [
            json.dumps({"text": " ".join(random.choices(words, k=300)), "meta": {"pile_set_name": LABELS[line % 3]}})
            for line in range(1000 if number < 6 else 40)
        ]
        (folder / f"{number:02}.jsonl.zst").write_bytes(zstandard.compress("\n".join(lines).encode(), 1))
    pilekit("index", folder / "06.jsonl.zst")
    return folder


def started(*arguments: object, at: Path | None = None, **changed: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pilekit", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **{name: str(value) for name, value in changed.items()}}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=at, start_new_session=True, env=environment
    )


def pilekit(*arguments: object, at: Path | None = None, **changed: object) -> str:
    with started(*arguments, at=at, **changed) as process:
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return output


def partial_files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*.partial") if not file.name.startswith(".lock.")]  # answers of nodes


REFRAME = ("reframe", "corpus", "--level", 19, "--jobs", 2, "--out")


@pytest.mark.slow
def test_each_command_gives_what_local_processes_give(cluster: TwoNodes, corpus: Path, tmp_path: Path) -> None:
    home = corpus.parent  # The driver's folder, to which paths are relative, is not that of the nodes.
    ray = cluster.ray
    for command in (("stats", "corpus"), ("stats", "corpus", "--copies", "--json"), ("verify", "corpus")):
        assert pilekit(*command, *ray, at=home) == pilekit(*command, at=home)
    for name, command in (
        ("reframe", ("reframe", "corpus", "--jobs", 3)),
        ("select", ("select", "corpus", "--sample", 0.3)),
        ("parquet", ("select", "corpus", "--subsets", "ArXiv", "--format", "parquet", "--jobs", 1)),
    ):
        results = []
        for engine, options in (("local", ()), ("ray", ray)):
            out = tmp_path / f"{name}-{engine}"
            results.append(pilekit(*command, "--out", out, *options, at=home).replace(str(out), ""))
        assert results[0] == results[1]
        assert tree(tmp_path / f"{name}-local") == tree(tmp_path / f"{name}-ray")
    with serving(corpus) as server:  # The index of a URL goes into the cache folder.
        for options in ((), ray):
            cache = tmp_path / f"cache-{len(options)}"
            assert "built" in pilekit("index", f"{server.url}00.jsonl.zst", *options, at=home, PILEKIT_CACHE=cache)
    assert len(tree(tmp_path / "cache-0")) == 1
    assert tree(tmp_path / "cache-0") == tree(tmp_path / "cache-4")
    indexes = []
    for engine, options in (("local", ()), ("ray", ray)):
        copy = tmp_path / engine
        copy.mkdir()
        for shard in corpus.glob("*.zst"):
            (copy / shard.name).symlink_to(shard)
        indexes.append(pilekit("index", copy, *options))
    assert indexes[0] == indexes[1]
    assert {name: read for name, read in tree(tmp_path / "local").items() if "index" in name} == {
        name: read for name, read in tree(tmp_path / "ray").items() if "index" in name
    }


@pytest.mark.slow
def test_the_bytes_are_the_same_when_a_node_dies_or_hangs_and_json_stays_json(
    cluster: TwoNodes, corpus: Path, tmp_path: Path
) -> None:
    home = corpus.parent
    expected = json.loads(pilekit(*REFRAME, tmp_path / "local", "--json", at=home))
    for number in (signal.SIGKILL, signal.SIGSTOP):
        cluster.complete()
        out = tmp_path / f"ray{number}"
        with started(*REFRAME, out, "--json", "--engine", "ray", "--address", cluster.address, at=home) as process:
            wait_for(lambda out=out: len(partial_files(out)) == 2)  # type: ignore[misc]
            cluster.signal_node(number)
            output, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        assert json.loads(output) == expected
        assert "is lost; its shards are given out again" in errors
        times = {path: path.stat().st_mtime_ns for path in map(out.joinpath, tree(tmp_path / "local"))}
        if number == signal.SIGSTOP:  # The node wakes, and may finish its task a second time.
            workers = children(cluster.node.all_processes["raylet"][0].process.pid)
            cluster.signal_node(signal.SIGCONT)
            wait_for(lambda workers=workers: not any(map(is_there, workers)))  # type: ignore[misc]
        cluster.remove_node()
        assert tree(out) == tree(tmp_path / "local")
        assert pilekit("index", out).count(" kept") == 7
        assert times == {path: path.stat().st_mtime_ns for path in times}


@pytest.mark.slow
def test_a_stopped_driver_leaves_no_worker_and_the_next_run_resumes(
    cluster: TwoNodes, corpus: Path, tmp_path: Path
) -> None:
    home = corpus.parent
    pilekit(*REFRAME, tmp_path / "local", at=home)
    for name, stop, code in (("int", interrupt, 130), ("term", subprocess.Popen.terminate, -15), ("kill", kill, -9)):
        out = tmp_path / name
        ray = cluster.ray
        with started(*REFRAME, out, *ray, at=home) as process:
            wait_for(lambda out=out: len(partial_files(out)) == 2)  # type: ignore[misc]
            assert cluster.working()
            stop(process)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == code, errors
        assert "Traceback" not in errors
        assert ("interrupted; the same command resumes" in errors) == (name == "int")
        wait_for(lambda: not cluster.working(), 10)
        if name != "kill":
            assert not list(out.rglob("*.partial"))
        pilekit(*REFRAME, out, *ray, at=home)
        assert tree(out) == tree(tmp_path / "local")


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards with exact copies, near-duplicates and a text that a hundred begin with; beside them, what stays."""
    folder, random = tmp_path_factory.mktemp("copies") / "corpus", Random(2)
    folder.mkdir()
    words = ["".join(random.choices("abcdefghijklmnop", k=6)) for _ in range(3000)]
    texts = [random.choices(words, k=random.randint(40, 90)) for _ in range(300)]
    texts += [[*text[:place], "other", *text[place:]] for place, text in enumerate(texts[:150], -20)]
    texts += [[*texts[0], *random.choices(words, k=random.randint(1, 60))] for _ in range(100)] + texts[100:180]
    random.shuffle(texts)
    for number in range(4):
        lines = [record(" ".join(text), LABELS[len(text) % 3]) for text in texts[number::4]]
        (folder / f"{number:02}.jsonl.zst").write_bytes(zstandard.compress(b"\n".join(lines)))
    pilekit(*DEDUP, "local", at=folder.parent)
    return folder


DEDUP = ("dedup", "corpus", "--threshold", 0.7, "--jobs", 2, "--memory", "64MB", "--out")
SKETCH, MATCH, SETS, CLEAN = ".jsonl.parquet.", ".rows.", ".ends.", ".jsonl.zst.index."
"""What the names of the files have in which a step ends."""


@pytest.mark.slow
def test_dedup_gives_the_bytes_of_local_processes_on_one_and_two_nodes(cluster: TwoNodes, copies: Path) -> None:
    home = copies.parent
    pilekit(*DEDUP, "ray", *cluster.ray, at=home)
    cluster.remove_node()
    against = ("--against", "local", "--subsets", "ArXiv,Github", "--no-write")
    pilekit(*DEDUP, "later", *against, at=home)
    pilekit(*DEDUP, "later-ray", *against, *cluster.ray, at=home)
    for local, ray in (("local", "ray"), ("later", "later-ray")):
        assert json.loads(tree(home / local)["summary.json"])["near"] > 100
        assert tree(home / local) == tree(home / ray)


@pytest.mark.slow
def test_dedup_gives_the_same_bytes_when_each_step_loses_a_node(cluster: TwoNodes, copies: Path) -> None:
    home, out, scratch = copies.parent, copies.parent / "lost", copies.parent / "scratch"
    scratch.mkdir()
    for step in (SKETCH, MATCH, SETS, CLEAN):
        (cluster.held / step).touch()
    with started(*DEDUP, out, *cluster.ray, "--scratch", scratch, at=home) as process:
        for step in (SKETCH, MATCH, SETS):
            with cluster.holding(process, out, step):
                workers = children(cluster.node.all_processes["raylet"][0].process.pid)
                in_scratch = [f"{scratch}/" in Path(f"/proc/{worker}/maps").read_text() for worker in workers]
                assert any(in_scratch) == (step == MATCH)
                cluster.signal_node(signal.SIGKILL)
                cluster.remove_node()
                cluster.complete()
        with cluster.holding(process, out, CLEAN):
            cluster.signal_node(signal.SIGSTOP)
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "is lost; its shards are given out again" in errors
    assert partial_files(out)
    before = {path: path.stat().st_ino for path in out.rglob("*") if path.suffix != ".partial"}
    workers = children(cluster.node.all_processes["raylet"][0].process.pid)
    cluster.signal_node(signal.SIGCONT)
    wait_for(lambda: not partial_files(out))
    cluster.remove_node()
    for worker in filter(is_there, workers):  # One that was at work when its node woke may outlive it.
        os.kill(worker, signal.SIGKILL)
    assert tree(out) == tree(home / "local")
    assert {path: path.stat().st_ino for path in out.rglob("*")} == before


@pytest.mark.slow
def test_dedup_begun_in_local_processes_goes_on_with_ray_and_back(cluster: TwoNodes, copies: Path) -> None:
    home, out = copies.parent, copies.parent / "moved"
    times: dict[Path, int] = {}
    for options, changed, step in (((), {"PYTHONPATH": os.environ["PYTHONPATH"]}, SETS), (cluster.ray, {}, CLEAN)):
        (cluster.held / step).touch()
        with started(*DEDUP, out, *options, at=home, **changed) as process, cluster.holding(process, out, step):
            process.kill()
            process.wait()
        files = [*(out / "sketches").iterdir(), *(out / "masks").glob("*")]
        assert times.items() <= (times := {path: path.stat().st_mtime_ns for path in files}).items()
    pilekit(*DEDUP, out, at=home)
    assert times.items() <= {path: path.stat().st_mtime_ns for path in times}.items()
    assert tree(out) == tree(home / "local")


def same_bytes_with_a_node_lost(
    cluster: TwoNodes, command: tuple[object, ...], step: str, folder: Path, home: Path
) -> None:
    """Run a command, which ends with --out, here and on the cluster, whose second node dies in a step."""
    local, ray = folder / "local", folder / "ray"
    printed = pilekit(*command, local / "pile", at=home)
    cluster.complete()
    (cluster.held / step).touch()
    with started(*command, ray / "pile", *cluster.ray, at=home) as process:
        with cluster.holding(process, ray, step):
            cluster.signal_node(signal.SIGKILL)
            cluster.remove_node()
            time.sleep(3)  # The driver looks at the list of nodes every 2 seconds.
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert output == printed.replace(str(local), str(ray))
    assert "is lost; its shards are given out again" in errors
    assert tree(ray) == tree(local)


SOURCES = """
name = "mine"
[assemble]
shards = 3
val = 0.01
test = 0.01
[[subsets]]
name = "A"
sources = ["corpus/0[0-3].jsonl.zst"]
epochs = 2
[[subsets]]
name = "B"
sources = ["corpus/0[4-6].jsonl.zst"]
"""


@pytest.mark.slow
def test_tokenize_and_assemble_give_the_bytes_of_local_processes_when_a_node_is_lost(
    cluster: TwoNodes, corpus: Path, tmp_path: Path
) -> None:
    home = corpus.parent
    saved(byte_level_bpe(700), home / "tokenizer.json")
    (home / "mine.toml").write_text(SOURCES)
    tokenize = ("tokenize", "corpus", "--tokenizer", "tokenizer.json", "--append-eod", "--jobs", 2, "--out")
    assemble = ("assemble", "mine.toml", "--jobs", 2, "--memory", "64MB", "--out")
    for command, step in ((tokenize, ".ids."), (assemble, ".jsonl.zst.")):
        same_bytes_with_a_node_lost(cluster, command, step, tmp_path / command[0], home)


@pytest.mark.slow
def test_cleaning_and_cutting_give_the_bytes_of_local_processes_when_a_node_is_lost(
    cluster: TwoNodes, copies: Path, tmp_path: Path
) -> None:
    texts = [json.loads(line)["text"].split() for line in unzstd(copies / "01.jsonl.zst").split(b"\n")[:20]]
    quiz = tmp_path / "quiz.jsonl"
    quiz.write_text("\n".join(json.dumps({"text": " ".join(text[5:25])}) for text in texts))
    for command, step in (
        (("clean", "corpus", "--rules", "gopher-quality", "--set", "gopher-quality.stop_words=0"), ".jsonl.parquet."),
        (("decontaminate", "corpus", "--against", quiz, "--window", 10), ".jsonl.parquet."),
        (("substrings", "corpus", "--memory", "64MB", "--min-bytes", 60), ".jsonl."),
    ):
        command = (*command, "--jobs", 2, "--out")
        same_bytes_with_a_node_lost(cluster, command, step, tmp_path / command[0], copies.parent)
        counts = json.loads((tmp_path / command[0] / "local/pile/summary.json").read_bytes())
        assert counts["dropped"] + counts.get("cut", 0) > 10


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


@pytest.mark.slow
def test_a_cluster_with_a_token_is_joined_with_it_alone_and_refuses_others_soon(corpus: Path) -> None:
    with lone_node(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="5" * 64) as (address, right):
        options = (corpus, "--engine", "ray", "--address", address)
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
        options = ("--level", 19, "--out", tmp_path / "out", "--engine", "ray", "--address", address)
        with started("reframe", corpus, *options, **settings) as process:
            printed, errors = process.communicate(timeout=240)
        assert (process.returncode, printed) == (1, "")
        assert re.search(r"\nerror: 00\S+: ran out of memory; use fewer jobs \(on .*\) \(also failed: ", errors), errors


def describe(item: int, advance: Advance) -> tuple[int, list[int], str]:
    advance(10)
    logging.getLogger("pilekit.test").warning("a worker warns")
    return item, map_shards(times_two, [item, item], jobs=2), str(Path.cwd())


def times_two(item: int, advance: Advance) -> int:
    return 2 * item if current_process().daemon else -1


def fail(item: int, advance: Advance) -> bytes:
    if item == 2:
        raise PilekitError("is damaged")
    if item == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.urandom(2 << 20) if item == 5 else b""


def write_elsewhere(item: int, advance: Advance) -> None:
    for answer in Path("shared").glob(".lock.*"):
        answer.rename(f"{answer.name}.elsewhere")


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
    with Ray(cluster.address) as engine:
        assert str(engine).endswith(f" at {cluster.address}: 2 nodes, 2 CPUs")
        print("of the user")
        for turn in range(2):
            done: list[int] = []
            results = map_shards(describe, range(40), engine=engine, on_progress=done.append)
            assert results == [(item, [2 * item, 2 * item], str(tmp_path)) for item in range(40)]
            assert sum(done) == 400
            if turn == 0:
                engine.ray.kill(engine.progress)  # Nothing but the progress line needs it.
        with pytest.raises(PilekitError, match=r"^2: is damaged \(on node \S+\) \(also failed: 4, 5\)$"):
            map_shards(fail, range(7), engine=engine)
        with pytest.raises(PilekitError, match=r"^4: the process that worked on it was killed; if memory ran out, use"):
            map_shards(fail, [4], engine=engine, names=["4"])
        with pytest.raises(PilekitError, match=r"^5: its result takes 2,\d+,\d+ bytes"):
            map_shards(fail, [5], engine=engine, names=["5"])
        with pytest.raises(PilekitError, match=r"^large: takes .* bytes, more than a cluster's task is given"):
            map_shards(times_two, [bytes(2 << 20)], engine=engine, names=["large"])  # type: ignore[list-item]
        monkeypatch.setattr(ray_worker, "LATE_SECONDS", 0.0)
        text = r"^node \S+ writes into another folder shared than the driver's; put it, .* that all nodes share"
        lock = Path("shared/.lock")
        with locked(lock), pytest.raises(PilekitError, match=text):
            map_shards(write_elsewhere, [1], engine=engine, lock=lock)
        with monkeypatch.context() as other:
            other.setattr(ray_module, "versions", lambda: {**versions(), "libzstd": "0.1"})
            with pytest.raises(PilekitError, match=r"^node \S+ has libzstd \S+, the driver has 0.1; install the same"):
                map_shards(times_two, [1], engine=engine)
        stream: Any = imap_shards(describe, range(10), engine=engine, jobs=1)
        assert next(stream)[0] == 0
        stream.close()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert capfd.readouterr().out == "of the user\n"
    assert caplog.text.count("a worker warns") == 3  # once in each call
