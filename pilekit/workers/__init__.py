"""Where work runs: `local.py` maps a function over shards in local processes, `ray.py` connects to a Ray cluster that
does the same (`cluster.py` is their contract), `ranks.py` joins the ranks of a job.
`kernels.py` compiles loops.

ranks.py imports torch, so it is imported only where it is needed; ray.py imports Ray when it connects.
"""

from __future__ import annotations

from pilekit.workers.cluster import Advance
from pilekit.workers.local import imap_shards, map_shards, usable_cpus
from pilekit.workers.ray import Ray
from pilekit.workers.ray_worker import SHARE, scratch_folder, wait_for_file

__all__ = [
    "SHARE",
    "Advance",
    "Ray",
    "imap_shards",
    "map_shards",
    "scratch_folder",
    "usable_cpus",
    "wait_for_file",
]
