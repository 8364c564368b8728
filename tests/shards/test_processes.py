"""How many processes are worth their start."""

from __future__ import annotations

import pytest

from pilekit.corpus import Shard
from pilekit.shards import processes
from pilekit.shards.processes import decompress_ahead, processes_for, threads_of

MIB = 1 << 20


def shards(*sizes: int | None, at: str = "") -> list[Shard]:
    return [Shard(f"{number}.jsonl", f"{at}{number}.jsonl", size) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("given", "jobs", "expected"),
    [
        (shards(), None, 1),
        (shards(), 3, 1),
        (shards(1, 1, 1), None, 1),
        (shards(1, 1, 1), 2, 2),
        (shards(1, 1, 1), 7, 3),
        (shards(32 * MIB, 32 * MIB - 1, 0), None, 1),
        (shards(32 * MIB, 32 * MIB, 0), None, 2),
        (shards(128 * MIB, 0, 0), None, 3),
        (shards(1024 * MIB), None, 1),
        (shards(*[1024 * MIB] * 9), None, 4),
        (shards(*[1024 * MIB] * 9), 8, 8),
        (shards(1, None), None, 2),
        (shards(*[None] * 9), None, 4),
        (shards(*[1024 * MIB] * 9, at="memory://"), None, 1),
        ([*shards(1024 * MIB), *shards(1, at="memory://")], 8, 1),
    ],
)
def test_processes(monkeypatch: pytest.MonkeyPatch, given: list[Shard], jobs: int | None, expected: int) -> None:
    monkeypatch.setattr(processes, "usable_cpus", lambda: 4)
    assert processes_for(given, jobs) == expected


def test_what_each_of_them_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "usable_cpus", lambda: 4)
    assert [threads_of(count) for count in (0, 1, 2, 3, 4, 9)] == [4, 4, 2, 1, 1, 1]
    assert [decompress_ahead(count) for count in (0, 1, 2, 3, 4, 9)] == [True, True, True, False, False, False]
    monkeypatch.setattr(processes, "usable_cpus", lambda: 1)
    assert [decompress_ahead(count) for count in (1, 2)] == [True, False]
