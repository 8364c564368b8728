"""A corpus: a manifest with subsets, and shards. `Corpus` (find) searches local folders (local) or URLs (remote,
through stores) for files and makes a `Shard` of each (shard); names turns typed names and labels into exact subset
names.
"""

from __future__ import annotations

from pilekit.corpus.find import Corpus, HeldOutShards, Part, Source, warn_of_left_out
from pilekit.corpus.manifest import BUNDLED, Described, Manifest, load_manifest
from pilekit.corpus.manifest_parts import PublishedResult, PublishedTable, Subset, Totals
from pilekit.corpus.names import (
    MAX_SUBSETS,
    UNLABELLED,
    SubsetNames,
    normalised,
    resolve_subsets,
    split_names,
    subset_names,
    subsets_or_all,
)
from pilekit.corpus.shard import Shard, shard_of

__all__ = [
    "BUNDLED",
    "MAX_SUBSETS",
    "UNLABELLED",
    "Corpus",
    "Described",
    "HeldOutShards",
    "Manifest",
    "Part",
    "PublishedResult",
    "PublishedTable",
    "Shard",
    "Source",
    "Subset",
    "SubsetNames",
    "Totals",
    "load_manifest",
    "normalised",
    "resolve_subsets",
    "shard_of",
    "split_names",
    "subset_names",
    "subsets_or_all",
    "warn_of_left_out",
]
