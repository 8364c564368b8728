"""Where work runs: `local.py` maps a function over shards in local processes, `ranks.py` joins the ranks of a job.

ranks.py imports torch, so it is imported only where it is needed.
"""

from __future__ import annotations

from pilekit.engine.local import Advance, imap_shards, map_shards, usable_cpus

__all__ = ["Advance", "imap_shards", "map_shards", "usable_cpus"]
