"""Chooses a stream's plan by how the corpus is stored: random access, or shard after shard.

Random access reads single documents all over the corpus, so each shard needs small frames. A shard's cost is the mean
size of the frame around a byte of text: the sum of the squared frame sizes divided by the sum of the sizes. One
document with a long frame of its own hardly changes it. A corpus whose text fits in memory needs no small frames.

Finding the frames reads no whole shard (43 GB): their sizes come from an index, a seek table, Parquet's footer, or the
length of the first frame. For random access, missing indexes are made, and the decision is checked again with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pilekit.corpus import Corpus, Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.corpus.shuffle import Int64
from pilekit.errors import message_logger, visible
from pilekit.shards.index.build import index_corpus
from pilekit.shards.index.format import ShardIndex, bad_lines, find_indexes
from pilekit.shards.random_access.frame_cache import HELD_BYTES
from pilekit.shards.read.blocks import gunzip, locate_errors
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.open import open_stored, storage_of
from pilekit.shards.read.parquet import row_groups
from pilekit.shards.read.reader import OnError
from pilekit.shards.read.zstd_frames import MAX_WINDOW, Stored, decode, walk_frames
from pilekit.shards.write.seekable_frames import read_seek_table
from pilekit.stream.order import lane_grid as grid
from pilekit.workers import Advance

logger = message_logger(__name__)

MOST_DECODED = 8 << 20
"""The most bytes of text decoded to reach a document, on average: 6 ms. `pilekit reframe` makes frames of 1 MiB."""


@dataclass(frozen=True)
class Plan:
    """A stream's plan.

    name      "random" or "sequential"
    reason    why this plan, in one sentence
    indexes   of the corpus's shards, in their order; empty under the sequential plan
    """

    name: grid.Plan
    reason: str
    indexes: tuple[ShardIndex, ...] = ()


def choose_plan(
    corpus: Corpus,
    *,
    on_error: OnError = "raise",
    advance: Advance | None = None,
    held_bytes: int = HELD_BYTES,
    most_decoded: int = MOST_DECODED,
) -> Plan:
    """The plan for this corpus, the same for every process. Under random access, missing indexes are made.

    advance        called with the number of stored bytes newly indexed
    held_bytes     a corpus with no more bytes of text is held whole in memory
    most_decoded   the most bytes of text decoded to reach a document, on average

    PilekitError for a damaged shard and, while indexing and unless `on_error` is "skip", for a bad line.
    """
    if any(shard.path == STANDARD_INPUT for shard in corpus.shards):
        return Plan("sequential", "standard input can only be read as it comes")
    existing = find_indexes(corpus)
    # Text is not shorter than its stored form: a corpus whose stored form is too large does not fit in memory.
    may_be_held = sum(map(_stored_size, corpus.shards, existing)) <= held_bytes
    if not may_be_held and (reason := _too_long(corpus, existing, most_decoded)):
        return Plan("sequential", reason)
    indexes = tuple(index for index in existing if index is not None)
    if missing := len(existing) - len(indexes):
        logger.info("indexing %d of %d shards, which is done once", missing, len(existing))
        indexes = tuple(index_corpus(corpus, on_error=on_error, advance=advance, whole=False, found=existing))
    for shard, index in zip(corpus.shards, indexes, strict=True):
        if on_error == "raise" and index.header.skipped:
            raise bad_line_error(bad_lines(shard, index).examples[0])
    if may_be_held and sum(index.header.content_bytes for index in indexes) <= held_bytes:
        return Plan("random", f"the corpus's text, at most {held_bytes >> 20} MiB, is held whole", indexes)
    if reason := _too_long(corpus, indexes, most_decoded):
        return Plan("sequential", reason)
    return Plan("random", "all shards have frames small enough to be decoded for a few documents", indexes)


def _too_long(corpus: Corpus, indexes: Sequence[ShardIndex | None], most_decoded: int) -> str | None:
    """The reason why the frames of a shard are too long; None if those of all shards are short, or not known."""
    for shard, index in zip(corpus.shards, indexes, strict=True):
        sizes = _frame_sizes(shard, index, most_decoded)
        total = float(sizes.sum())
        mean = float(np.square(sizes, dtype=np.float64).sum()) / total if total else 0.0
        if mean > most_decoded:
            return (
                f"{visible(shard.name)} has frames of {mean / 2**20:,.0f} MiB or more, which must be decoded from the "
                "beginning to reach a document"
            )
    return None


def _frame_sizes(shard: Shard, index: ShardIndex | None, most_decoded: int) -> Int64:
    """Decoded bytes of the shard's frames, int64, found by decoding at most little more than `most_decoded`."""
    if index is not None:
        return np.diff(index.frames.text_offset, append=index.header.content_bytes)
    storage = storage_of(shard.path)
    if storage == "plain":
        return np.zeros(0, np.int64)
    file, _ = open_stored(shard.path, scattered=True)
    with file, locate_errors(shard.path, lambda: 0):
        size = file.seek(0, 2)
        if storage == "parquet":
            return np.array([group.size for group in row_groups(file, shard.path)], np.int64)
        table = read_seek_table(file, size) if storage == "zstd" else None
    if table is not None:
        return np.array([decoded for _, decoded in table], np.int64)
    return np.array([_first_frame(shard, most_decoded)], np.int64)


def _first_frame(shard: Shard, most_decoded: int) -> int:
    """Decoded bytes of the first frame, counted up to a little more than `most_decoded`. Gzip counts as one frame."""
    file, storage = open_stored(shard.path)
    size = 0
    with file, locate_errors(shard.path, lambda: 0):
        if storage == "gzip":
            pieces = gunzip(file)
        else:
            frames = islice(walk_frames(Stored(file), MAX_WINDOW), 1)
            pieces = (piece for blocks in frames for piece in decode(blocks, MAX_WINDOW))
        for piece in pieces:
            size += len(piece)
            if size > most_decoded:
                break
    return size


def _stored_size(shard: Shard, index: ShardIndex | None) -> int:
    if index is not None:
        return index.header.size
    if shard.size is not None:
        return shard.size
    with open_stored(shard.path, scattered=True)[0] as file:
        return file.seek(0, 2)
