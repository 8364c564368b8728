"""`memory_limit`: the bytes of memory that this process may use, of the machine and by its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def machine_memory() -> int:
    """The bytes of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_limit() -> int:
    """The machine's memory, or less if a control group of this process (a container, a job of Slurm) has a limit."""
    limits = [machine_memory()]
    for file in _limit_files():
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(limits)


def _limit_files() -> Iterator[Path]:
    """The files that may hold limits: those of this process's groups and of all groups around them."""
    try:
        lines = OWN_GROUP.read_text().splitlines()
    except OSError:
        lines = []
    for line in ["::/", ":memory:/", *lines]:  # a container may see its own group as the root
        _, kinds, path = line.split(":", 2)
        if kinds in ("", "memory"):
            root, name = (CGROUPS, "memory.max") if not kinds else (CGROUPS / "memory", "memory.limit_in_bytes")
            group = root / path.lstrip("/")
            yield from (folder / name for folder in (group, *group.parents) if folder.is_relative_to(root))
