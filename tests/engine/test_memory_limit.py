"""The limit is the lowest of the machine's memory and of the groups around this process, whatever their version."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilekit.engine import memory_limit as module
from pilekit.engine.memory_limit import machine_memory, memory_limit


def test_the_lowest_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    monkeypatch.setattr(module, "CGROUPS", groups)
    monkeypatch.setattr(module, "OWN_GROUP", own)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_limit() == machine_memory() == machine
    (inner := groups / "slurm" / "job_3").mkdir(parents=True)
    (older := groups / "memory" / "docker").mkdir(parents=True)
    own.write_text("0::/slurm/job_3\n9:memory:/docker\n3:cpu,cpuacct:/x\n")
    for file, content, expected in (
        (inner / "memory.max", "max\n", machine),
        (inner / "memory.max", "5000\n", 5000),
        (groups / "slurm" / "memory.max", "4000\n", 4000),
        (older / "memory.limit_in_bytes", "9223372036854771712\n", 4000),
        (older / "memory.limit_in_bytes", "3000\n", 3000),
        (groups / "memory.max", "2000\n", 2000),
        (tmp_path / "memory.max", "1\n", 2000),
    ):
        file.write_text(content)
        assert memory_limit() == expected
