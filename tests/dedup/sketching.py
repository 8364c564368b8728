"""Sketches of single shards, with settings that tests seldom care about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pilekit.corpus import shard_of
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.sketch_format import ShardSketch
from pilekit.dedup.sketch.sketch_shard import sketch_shard


def sketch(path: Path, folder: Path, **settings: Any) -> ShardSketch:
    """The sketch of the shard at `path`, written into `folder`."""
    defaults: dict[str, Any] = {
        "bands": Bands(5, 3),
        "ngram": 3,
        "subsets": None,
        "manifest": None,
        "on_error": "raise",
        "advance": lambda amount: None,
    }
    return sketch_shard(shard_of(str(path)), folder=folder, **(defaults | settings))
