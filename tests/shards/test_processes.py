"""The number of processes for shards, and of threads for a process."""

from __future__ import annotations

import pytest

from pilekit.corpus import Shard
from pilekit.shards import processes
from pilekit.shards.processes import decompress_ahead, processes_for, threads_of

MIB = 1 << 20


def shards(*sizes: int | None, at: str = "") -> list[Shard]:
    return [Shard(f"{number}.jsonl", f"{at}{number}.jsonl", size) for number, size in enumerate(sizes)]


def test_processes_and_threads_of_four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "usable_cpus", lambda: 4)
    for given, jobs, expected in [
        (shards(), None, 1),
        (shards(1, 1, 1), 2, 2),
        (shards(1, 1, 1), 7, 3),
        (shards(32 * MIB, 32 * MIB - 1, 0), None, 1),
        (shards(32 * MIB, 32 * MIB, 0), None, 2),
        (shards(*[1024 * MIB] * 9), None, 4),
        (shards(*[1024 * MIB] * 9), 8, 8),
        (shards(1, None), None, 2),
        ([*shards(1024 * MIB), *shards(1, at="memory://")], 8, 1),
    ]:
        assert processes_for(given, jobs) == expected
    assert [threads_of(count) for count in (0, 1, 2, 3, 4, 9)] == [4, 4, 2, 1, 1, 1]
    assert [decompress_ahead(count) for count in (0, 1, 2, 3, 4, 9)] == [True, True, True, False, False, False]
