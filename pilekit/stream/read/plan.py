"""Which plan a stream follows: random access, or shard after shard; decided by how the corpus is stored, and told why.

Random access jumps about in the whole corpus, so each of its shards needs frames that can be decoded for the few
documents wanted. What that costs is one number: the size of the frame in which a byte of text lies, on average over the
shard's bytes, which is the sum of the squares of the frames' sizes over the sum of the sizes. A single document that
made its frame long hardly changes it. A corpus whose text can be held in memory needs no small frames.

Nothing of 43 GB is read to find that out: an index tells, or a seek table, or Parquet's footer, or how far the first
frame reaches. Where the answer is random access, missing indexes are made, and they have the last word.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pilekit.corpus import Corpus, Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.engine import Advance
from pilekit.errors import visible
from pilekit.shards.index.format import ShardIndex, find_indexes
from pilekit.shards.random_access.frame_lru import HELD_BYTES
from pilekit.shards.read.open import open_stored, storage_of
from pilekit.shards.read.reader import CountedFile, OnError, gunzipped, located_errors
from pilekit.shards.read.zstd_frames import MAX_WINDOW, Stored, decode, walk_frames
from pilekit.shards.write.seek_table import read_seek_table
from pilekit.stream.order import lane_grid as grid
from pilekit.stream.order.selection import indexes_of
from pilekit.stream.order.shuffle import Int64

logger = logging.getLogger(__name__)

MOST_DECODED = 8 << 20
"""Bytes of text that reaching a document may cost to decode, on average: 6 ms. `pilekit reframe` makes it 1 MiB."""


@dataclass(frozen=True)
class Plan:
    """Which plan, why, and what it goes by.

    name      "random" or "sequential"
    reason    one sentence
    indexes   of the corpus's shards, in their order; empty under the sequential plan
    """

    name: grid.Plan
    reason: str
    indexes: tuple[ShardIndex, ...] = ()


def choose_plan(corpus: Corpus, *, on_error: OnError = "raise", advance: Advance | None = None) -> Plan:
    """The plan for this corpus; under random access, indexes that its shards lack are made, one process a shard.

    advance   called with each further amount of stored bytes dealt with in that

    The same for every process that asks. PilekitError for a damaged shard and, under random access and unless
    `on_error` is "skip", for a bad line.
    """
    if any(shard.path == STANDARD_INPUT for shard in corpus.shards):
        return Plan("sequential", "standard input can only be read as it comes")
    found = find_indexes(corpus)
    known = [_known_sizes(*pair) for pair in zip(corpus.shards, found, strict=True)]
    small = _is_small(corpus, found, known)
    if not small:
        for shard, sizes in zip(corpus.shards, known, strict=True):
            if reason := _too_long(shard, sizes):
                return Plan("sequential", reason)
    if missing := found.count(None):
        logger.info("indexing %d of %d shards, which is done once", missing, len(found))
    indexes = tuple(indexes_of(corpus, on_error, advance, found))
    if small:
        return Plan("random", f"the corpus's text, at most {HELD_BYTES >> 20} MiB, is held whole", indexes)
    for shard, index in zip(corpus.shards, indexes, strict=True):
        if reason := _reason(shard, _mean(_index_sizes(index))):
            return Plan("sequential", reason)
    return Plan("random", "all shards have frames small enough to be decoded for a few documents", indexes)


def _is_small(corpus: Corpus, found: list[ShardIndex | None], known: list[Int64 | None]) -> bool:
    """Whether all text of the corpus, decoded, is at most `HELD_BYTES`; small corpora are decoded to find out."""
    if sum(map(_stored_size, corpus.shards, found)) > HELD_BYTES:
        return False  # What compresses text does not make it longer.
    left = HELD_BYTES
    for shard, sizes in zip(corpus.shards, known, strict=True):
        left -= int(sizes.sum()) if sizes is not None else _text_size(shard, left)
        if left < 0:
            return False
    return True


def _too_long(shard: Shard, known: Int64 | None) -> str | None:
    """Why the shard cannot be read here and there; None if what can be known without reading it all tells nothing."""
    if known is not None:
        return _reason(shard, _mean(known))
    storage = storage_of(shard.path)
    if storage in ("zstd", "gzip") and _text_size(shard, MOST_DECODED, frames=1) > MOST_DECODED:
        return _reason(shard, None)
    return None


def _reason(shard: Shard, mean: float | None) -> str | None:
    """Why frames of `mean` bytes, or of None: more than can be held, are too long; None if they are not."""
    if mean is not None and mean <= MOST_DECODED:
        return None
    size = f"over {MOST_DECODED >> 20} MiB" if mean is None else f"{mean / 2**20:,.0f} MiB"
    return f"{visible(shard.name)} has frames of {size}, which must be decoded from the beginning to reach a document"


def _mean(sizes: Int64) -> float:
    """The size of the frame in which a byte lies, on average over all bytes."""
    total = float(sizes.sum())
    return float(np.square(sizes, dtype=np.float64).sum()) / total if total else 0.0


def _index_sizes(index: ShardIndex) -> Int64:
    return np.diff(index.frames.text_offset, append=index.header.content_bytes)


def _known_sizes(shard: Shard, index: ShardIndex | None) -> Int64 | None:
    """Decoded bytes of the shard's frames, int64, where that can be known without decoding any; else None."""
    if index is not None:
        return _index_sizes(index)
    storage = storage_of(shard.path)
    if storage not in ("parquet", "zstd"):
        return None
    file, _ = open_stored(shard.path, scattered=True)
    with file, located_errors(shard.path, lambda: 0):
        size = file.seek(0, 2)
        if storage == "zstd":
            table = read_seek_table(file, size)
            return None if table is None else np.array([decoded for _, decoded in table], np.int64)
        from pilekit.shards.read.parquet import located_rows, open_table

        with located_rows(shard.path, lambda: 0):
            metadata = open_table(file, size).metadata
        groups = (metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        return np.fromiter(groups, np.int64)


def _stored_size(shard: Shard, index: ShardIndex | None) -> int:
    if index is not None:
        return index.header.size
    if shard.size is not None:
        return shard.size
    with open_stored(shard.path, scattered=True)[0] as file:
        return file.seek(0, 2)


def _text_size(shard: Shard, most: int, frames: int | None = None) -> int:
    """Bytes of the shard's text, or of that of its first `frames` zstd frames, as far as `most` and a little more."""
    file, storage = open_stored(shard.path)
    size = 0
    with file, located_errors(shard.path, lambda: 0):
        if storage == "plain":
            return file.seek(0, 2)
        if storage == "gzip":
            pieces = gunzipped(CountedFile(file))
        else:
            walked = islice(walk_frames(Stored(file), MAX_WINDOW), frames)
            pieces = (piece for blocks in walked for piece in decode(blocks, MAX_WINDOW))
        for piece in pieces:
            size += len(piece)
            if size > most:
                break
    return size
