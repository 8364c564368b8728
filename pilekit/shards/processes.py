"""How many processes work on shards at a time, and how many CPUs each of them has.

Starting a process costs about a second of work, so a small corpus is processed by one process. A `memory://` URL exists
only in the process that made it. If there are fewer processes than CPUs, each process may use several threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from pilekit.corpus import Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.engine import Ray, usable_cpus
from pilekit.errors import PilekitError, visible

STORED_BYTES_PER_PROCESS = 64 << 20
"""The stored bytes that justify one more process."""


def processes_for(shards: Sequence[Shard], jobs: int | None, engine: Ray | None = None) -> int:
    """The number of processes: `jobs` if given, else by the stored bytes; at most one for each shard.

    In a cluster, it is one for each CPU by default. PilekitError for shards that other machines cannot read.
    """
    if engine is not None:
        for shard in shards:
            if shard.path == STANDARD_INPUT or shard.path.startswith("memory://"):
                raise PilekitError(f"{visible(shard.name)}: other machines cannot read it; leave out the cluster")
        return max(1, min(jobs or sum(engine.cpus()), len(shards)))
    if any(shard.path.startswith("memory://") for shard in shards):
        return 1
    if jobs is None:
        sizes = [shard.size for shard in shards]
        worth = 1 + sum(size or 0 for size in sizes) // STORED_BYTES_PER_PROCESS
        jobs = usable_cpus() if None in sizes else min(usable_cpus(), worth)
    return min(jobs, max(1, len(shards)))


def threads_of(processes: int, engine: Ray | None = None) -> int:
    """How many threads each of `processes` processes may use."""
    if engine is not None:
        return engine.threads(processes)
    return max(1, usable_cpus() // max(1, processes))


def decompress_ahead(processes: int, engine: Ray | None = None) -> bool:
    """Whether each process decompresses in a thread: if there are free CPUs for it, or there is only one process."""
    return (processes <= 1 and engine is None) or threads_of(processes, engine) > 1
