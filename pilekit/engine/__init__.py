"""Where work runs: on many shards in local processes, later on a cluster behind the same two calls; in ranks of a job.

ranks.py, which imports torch, is imported by those who need it.
"""

from __future__ import annotations

from pilekit.engine.local import Advance, imap_shards, map_shards, usable_cpus

__all__ = ["Advance", "imap_shards", "map_shards", "usable_cpus"]
