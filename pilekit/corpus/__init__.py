"""What a corpus is: which subsets it has, under which names, and which shards lie under a path."""

from __future__ import annotations

from pilekit.corpus.find import Corpus
from pilekit.corpus.manifest import (
    BUNDLED,
    Manifest,
    PublishedResult,
    PublishedTable,
    Release,
    ReleaseFile,
    Subset,
    Totals,
    load_manifest,
)
from pilekit.corpus.names import UNLABELLED, normalised, resolve_subsets, split_names
from pilekit.corpus.shard import SHARD_SUFFIXES, Shard, Split, shard_of

__all__ = [
    "BUNDLED",
    "SHARD_SUFFIXES",
    "UNLABELLED",
    "Corpus",
    "Manifest",
    "PublishedResult",
    "PublishedTable",
    "Release",
    "ReleaseFile",
    "Shard",
    "Split",
    "Subset",
    "Totals",
    "load_manifest",
    "normalised",
    "resolve_subsets",
    "shard_of",
    "split_names",
]
