"""pilekit: read, trust, count, cut, deduplicate, stream, train on and evaluate Pile-format corpora.

The public names below load on first use, so `import pilekit` costs milliseconds and pulls in no torch: a command that
only counts documents must not wait seconds for a deep-learning library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pilekit.corpus import Corpus, Manifest, Shard, load_manifest, resolve_subsets
    from pilekit.dedup.deduplicate import deduplicate
    from pilekit.dedup.deduplicated import Deduplicated
    from pilekit.dedup.deduplication import Deduplication
    from pilekit.dedup.near_duplicates import NearDuplicates
    from pilekit.documents import DocumentBatch
    from pilekit.engine import map_shards
    from pilekit.errors import PilekitError
    from pilekit.evaluate.bits_per_byte import bits_per_byte
    from pilekit.evaluate.results.result import BitsPerByte, Score
    from pilekit.pipeline import Match, MinBytes, Pipeline, Sample, Select, Write, document_filter, document_map
    from pilekit.pipeline.selecting import select_corpus
    from pilekit.shards.index.build import index_corpus
    from pilekit.shards.random_access.document_reader import StoredDocument, read_documents
    from pilekit.shards.random_access.pile_documents import PileDocuments
    from pilekit.shards.read.reader import read, read_corpus
    from pilekit.shards.verify.verify import verify_corpus
    from pilekit.shards.write.reframe import reframe_corpus
    from pilekit.shards.write.shard_writer import ShardWriter
    from pilekit.stats import corpus_stats
    from pilekit.stream import Pack, PileStream
    from pilekit.tokenize import TokenBatch, Tokenize, Tokenizer, load_tokenizer, train_tokenizer
    from pilekit.train.config import load_config
    from pilekit.train.launch.notebook import notebook_launch
    from pilekit.train.trainer import Trainer

_HOME = {
    "Corpus": "pilekit.corpus",
    "Manifest": "pilekit.corpus",
    "Shard": "pilekit.corpus",
    "load_manifest": "pilekit.corpus",
    "resolve_subsets": "pilekit.corpus",
    "deduplicate": "pilekit.dedup.deduplicate",
    "Deduplicated": "pilekit.dedup.deduplicated",
    "Deduplication": "pilekit.dedup.deduplication",
    "NearDuplicates": "pilekit.dedup.near_duplicates",
    "DocumentBatch": "pilekit.documents",
    "map_shards": "pilekit.engine",
    "PilekitError": "pilekit.errors",
    "bits_per_byte": "pilekit.evaluate.bits_per_byte",
    "BitsPerByte": "pilekit.evaluate.results.result",
    "Score": "pilekit.evaluate.results.result",
    "Match": "pilekit.pipeline",
    "MinBytes": "pilekit.pipeline",
    "Pipeline": "pilekit.pipeline",
    "Sample": "pilekit.pipeline",
    "Select": "pilekit.pipeline",
    "Write": "pilekit.pipeline",
    "document_filter": "pilekit.pipeline",
    "document_map": "pilekit.pipeline",
    "select_corpus": "pilekit.pipeline.selecting",
    "ShardWriter": "pilekit.shards.write.shard_writer",
    "read": "pilekit.shards.read.reader",
    "read_corpus": "pilekit.shards.read.reader",
    "index_corpus": "pilekit.shards.index.build",
    "PileDocuments": "pilekit.shards.random_access.pile_documents",
    "StoredDocument": "pilekit.shards.random_access.document_reader",
    "read_documents": "pilekit.shards.random_access.document_reader",
    "reframe_corpus": "pilekit.shards.write.reframe",
    "verify_corpus": "pilekit.shards.verify.verify",
    "corpus_stats": "pilekit.stats",
    "Pack": "pilekit.stream",
    "PileStream": "pilekit.stream",
    "TokenBatch": "pilekit.tokenize",
    "Tokenize": "pilekit.tokenize",
    "Tokenizer": "pilekit.tokenize",
    "load_tokenizer": "pilekit.tokenize",
    "train_tokenizer": "pilekit.tokenize",
    "load_config": "pilekit.train.config",
    "notebook_launch": "pilekit.train.launch.notebook",
    "Trainer": "pilekit.train.trainer",
}

__all__ = [
    "BitsPerByte",
    "Corpus",
    "Deduplicated",
    "Deduplication",
    "DocumentBatch",
    "Manifest",
    "Match",
    "MinBytes",
    "NearDuplicates",
    "Pack",
    "PileDocuments",
    "PileStream",
    "PilekitError",
    "Pipeline",
    "Sample",
    "Score",
    "Select",
    "Shard",
    "ShardWriter",
    "StoredDocument",
    "TokenBatch",
    "Tokenize",
    "Tokenizer",
    "Trainer",
    "Write",
    "__version__",
    "bits_per_byte",
    "corpus_stats",
    "deduplicate",
    "document_filter",
    "document_map",
    "index_corpus",
    "load_config",
    "load_manifest",
    "load_tokenizer",
    "map_shards",
    "notebook_launch",
    "read",
    "read_corpus",
    "read_documents",
    "reframe_corpus",
    "resolve_subsets",
    "select_corpus",
    "train_tokenizer",
    "verify_corpus",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'pilekit' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
