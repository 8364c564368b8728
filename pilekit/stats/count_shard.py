"""Count one shard: rows of its documents come from its index, from the compiled scan, or from reading it.

All three give `DocumentRows`, which are counted alike, so the result is the same to the last bit. An index holds each
document's subset, size and hash, and the bad lines: everything but tokens. If an index turns out to be damaged, the
shard is read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from pilekit.corpus import Manifest, Shard
from pilekit.engine import Advance
from pilekit.shards.index.document_rows import DocumentRows, document_rows, rows_of
from pilekit.shards.index.format import IndexDamage, ShardIndex, bad_lines, find_index
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.open import is_parquet
from pilekit.shards.read.reader import OnError, read
from pilekit.stats.counting import Counts, TextHashes, count_rows
from pilekit.tokenize import Tokenizer

logger = logging.getLogger(__name__)


def index_for(shard: Shard, manifest: Manifest, subsets: Collection[str] | None) -> ShardIndex | None:
    """The shard's index, if it has one that says all that reading would.

    Reading only some subsets passes over lines of others without a look at them. Which bad lines it would meet is not
    known from an index.
    """
    index = find_index(shard, manifest)
    return index if index is not None and (subsets is None or not index.header.skipped) else None


def count_shard(
    item: tuple[Shard, ShardIndex | None],
    advance: Advance,
    *,
    manifest: Manifest,
    subsets: Sequence[str] | None,
    tokenizer: Tokenizer | None,
    copies: bool,
    on_error: OnError,
    ahead: bool,
    scan: bool,
) -> tuple[Counts, TextHashes]:
    """Count one shard, from its index if one is given; the second result is empty unless `copies`.

    ahead   decompress in a thread
    scan    use the compiled scan, which is faster on long shards; for counts alone
    """
    shard, index = item
    if index is not None:
        try:
            counts, texts = Counts(skipped=bad_lines(shard, index)), TextHashes()
            if counts.skipped.count and on_error == "raise":
                raise bad_line_error(counts.skipped.examples[0])
            for rows in _indexed_rows(index, hashed=copies):
                count_rows(rows, counts, texts if copies else None, subsets)
        except IndexDamage as damage:
            logger.warning("index not used: %s", damage)
        else:
            advance(index.header.size)
            return counts, texts
    counts, texts = Counts(), TextHashes()
    if scan and not is_parquet(shard.path):
        bad = counts.skipped if on_error == "skip" else None
        for rows in document_rows(shard, manifest=manifest, skipped=bad, advance=advance, ahead=ahead, hashed=False):
            count_rows(rows, counts)
        return counts, texts
    with read(shard, subsets, on_error, manifest=manifest, advance=advance, ahead=ahead) as reader:
        for batch in reader:
            found = count_rows(rows_of(batch, hashed=copies), counts, texts if copies else None)
            if tokenizer is not None and len(batch):
                np.add.at(counts.tokens, found, np.diff(tokenizer.encode_batch(batch.texts)[1]))
    counts.skipped = reader.skipped
    return counts, texts


def _indexed_rows(index: ShardIndex, *, hashed: bool) -> Iterator[DocumentRows]:
    """The rows of an index; its labels are numbered anew in each group of 100,000 rows."""
    for table in index.row_groups(["subset", "text_bytes", *(["text_hash"] if hashed else [])]):
        subset = table["subset"].chunk(0)
        hashes = table["text_hash"].to_numpy() if hashed else np.empty(0, np.uint64)
        sizes = table["text_bytes"].to_numpy()
        yield DocumentRows(
            np.empty(0, np.int64), subset.indices.to_numpy(), subset.dictionary.to_pylist(), sizes, hashes
        )
