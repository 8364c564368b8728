"""Shared fixtures: a cluster of two nodes, one for all tests of a process, and a corpus for it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import zstandard

from tests.workers.ray_cluster import GATE, LABELS, ROOT, TwoNodes, pilekit


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
        for name in ("time", "timeout"):  # and so are its tasks, which take 7 minutes by default
            patch.setenv(f"RAY_grpc_client_keepalive_{name}_ms", "2000")
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
