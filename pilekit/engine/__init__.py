"""Where work on many shards runs: local processes, later also a cluster behind the same two calls."""

from __future__ import annotations

from pilekit.engine.local import Advance, imap_shards, map_shards, usable_cpus

__all__ = ["Advance", "imap_shards", "map_shards", "usable_cpus"]
