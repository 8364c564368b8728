"""`memory_limit`: the bytes of memory that this process may use, of the machine and by its control groups.

`sorting_memory` is how many of them a command sorts and compares in by default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def machine_memory() -> int:
    """The bytes of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def sorting_memory(limit: int | None = None) -> int:
    """4 GB, or half of `limit` (None: `memory_limit`) if that is less: processes and cached files need the rest."""
    return max(64 * 10**6, min(4 * 10**9, (memory_limit() if limit is None else limit) // 2))


def memory_limit(groups: Path = CGROUPS, process_groups: Path = OWN_GROUP) -> int:
    """The machine's memory, or less if a control group of this process (a container, a job of Slurm) has a limit.

    groups           where the kernel shows control groups, of version 2 and 1
    process_groups   the file that names the groups of this process
    """
    limits = [machine_memory()]
    for file in _limit_files(groups, process_groups):
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(limits)


def _limit_files(groups: Path, process_groups: Path) -> Iterator[Path]:
    """The files that may hold limits: those of this process's groups and of all groups around them."""
    try:
        lines = process_groups.read_text().splitlines()
    except OSError:
        lines = []
    for line in ["::/", ":memory:/", *lines]:  # a container may see its own group as the root
        _, kinds, path = line.split(":", 2)
        if kinds in ("", "memory"):
            root, name = (groups, "memory.max") if not kinds else (groups / "memory", "memory.limit_in_bytes")
            group = root / path.lstrip("/")
            yield from (folder / name for folder in (group, *group.parents) if folder.is_relative_to(root))
