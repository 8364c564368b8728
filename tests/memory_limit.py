"""Limits and peaks of the memory of a process, for tests that memory does not grow.

A limit is on data (anonymous memory), not on address space: mapped files do not count. With several threads, glibc
keeps freed memory in holes, 20 to 200 MB as the threads happen to take turns, and reserves 64 MiB for each thread.
Arrow's own allocator gives freed memory back some time later. `NO_HOLES` in the environment prevents all three, so that
the same work always takes the same memory.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

NO_HOLES = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


def limit_memory(more: int) -> None:
    """From now on, this process may take `more` bytes more than it has taken. Start it with `NO_HOLES`."""
    match = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    resource.setrlimit(resource.RLIMIT_DATA, ((int(match[1]) << 10) + more,) * 2)


# Not ru_maxrss: a child process inherits its parent's.
_PEAK = """
import re
from pathlib import Path
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def value_and_peak(script: str, *arguments: object) -> tuple[int, int]:
    """The number that a script prints, and the most memory that its process had, in bytes."""
    command = [sys.executable, "-c", script + _PEAK, *map(str, arguments)]
    value, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(value), int(peak) << 10
