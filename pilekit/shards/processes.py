"""How many processes work on shards at a time, and how many CPUs each of them has.

Starting a process takes about a second of work, so a small corpus is not worth a second one; and what `memory://` names
is in this process only. Where there are fewer processes than CPUs, each may have threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from pilekit.corpus import Shard
from pilekit.engine import usable_cpus

STORED_BYTES_PER_PROCESS = 64 << 20
"""A further process is worth its start for each so many stored bytes."""


def processes_for(shards: Sequence[Shard], jobs: int | None) -> int:
    """For these shards: as many as `jobs` says, where it is given, else as are worth it; never more than shards."""
    if any(shard.path.startswith("memory://") for shard in shards):
        return 1
    if jobs is None:
        sizes = [shard.size for shard in shards]
        worth = 1 + sum(size or 0 for size in sizes) // STORED_BYTES_PER_PROCESS
        jobs = usable_cpus() if None in sizes else min(usable_cpus(), worth)
    return min(jobs, max(1, len(shards)))


def threads_of(processes: int) -> int:
    """How many threads each of so many processes may keep busy."""
    return max(1, usable_cpus() // max(1, processes))


def decompress_ahead(processes: int) -> bool:
    """Whether each decompresses in a thread of its own: where CPUs are left for it; one alone always gains by it."""
    return processes <= 1 or threads_of(processes) > 1
