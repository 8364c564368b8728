"""`removed.parquet`: a row for each removed document, which names the kept document that it resembles.

Rows are in the order of (shard, number), in groups of 65,536. The file is plain Parquet, which other tools read too. It
is sealed with a sum of all its bytes (artifacts/sealed.py), because it is the proof of each removal, and checksums of
pages would not notice that a changed footer leads to another column.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pilekit.artifacts.parquet_rows import required
from pilekit.artifacts.sealed import SealedHeader, SealedKind

REMOVALS = SealedKind("a table of removed documents", 2, "run `pilekit dedup` again, into another folder")

REASONS = ("exact", "near")
CORPORA = ("against", "held-out", "this")
ROWS_PER_GROUP = 1 << 16

_NAMES = pa.dictionary(pa.int32(), pa.string())
SCHEMA = required(
    shard=_NAMES,
    number=pa.int64(),
    subset=_NAMES,
    kept_shard=_NAMES,
    kept_number=pa.int64(),
    kept_subset=_NAMES,
    similarity=pa.float64(),
    reason=_NAMES,
    kept_corpus=_NAMES,
)


class RemovalsHeader(SealedHeader, frozen=True, kw_only=True):
    """How the table was made."""

    format: int = REMOVALS.format
    parameters: dict[str, Any]
    """The settings of the run."""
    inputs: dict[str, Any]
    """The fingerprints of its shards."""
