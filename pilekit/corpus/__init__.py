"""What a corpus is: which subsets it has, under which names, and which shards lie under a path."""

from __future__ import annotations

from pilekit.corpus.find import Corpus
from pilekit.corpus.header import HEADER_FILE, Header, read_header, write_header
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
    "HEADER_FILE",
    "SHARD_SUFFIXES",
    "UNLABELLED",
    "Corpus",
    "Header",
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
    "read_header",
    "resolve_subsets",
    "shard_of",
    "split_names",
    "write_header",
]
