"""`audit_shard`: the counts of one shard that published figures are compared with.

Lengths of texts in characters are counted exactly: a corpus has few different ones (a terabyte of text fewer than two
million), so each with its number of documents is small. The scan that hashes texts hands them to text_kernel.py, which
counts their characters and the given strings. Hashes of the texts go to a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from pilekit.corpus import Manifest, Shard
from pilekit.documents import DocumentBatch
from pilekit.shards.corpus_job import Share
from pilekit.shards.index.document_rows import document_rows
from pilekit.shards.read.json_records import LineParser, OnError
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.stats.text_kernel import count_texts
from pilekit.workers import Advance

if TYPE_CHECKING:
    from pilekit.tokenize import Tokenizer

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_WAITING = 1 << 17
"""Lengths that are counted together."""


@dataclass
class Lengths:
    """Documents by the length of their texts.

    values, counts   int64, increasing: each length, and the number of documents that have it
    """

    values: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, values: Int64, counts: Int64 | None = None) -> None:
        """Count lengths: once each, or as often as `counts` says."""
        every = np.concatenate([self.values, values])
        weights = np.concatenate([self.counts, np.ones(len(values), np.int64) if counts is None else counts])
        order = np.argsort(every, kind="stable")
        begins = np.flatnonzero(np.diff(every[order], prepend=-1))
        self.values = every[order][begins]
        self.counts = np.add.reduceat(weights[order], begins) if len(begins) else self.counts

    @property
    def median(self) -> float:
        """The median length, between two if the number of documents is even; nan without documents."""
        ends, number = np.cumsum(self.counts), int(self.counts.sum())
        if not number:
            return float("nan")
        middle = np.searchsorted(ends, [(number - 1) // 2, number // 2], side="right")
        return float(self.values[middle].mean())

    def share_below(self, length: float) -> tuple[float, float]:
        """The shares of documents with a shorter text, and with one that is not longer."""
        number = max(1, int(self.counts.sum()))
        shorter, not_longer = self.values < length, self.values <= length
        return int(self.counts[shorter].sum()) / number, int(self.counts[not_longer].sum()) / number

    def documents_of(self, length: int) -> int:
        """The documents whose texts have this length."""
        return int(self.counts[self.values == length].sum())


@dataclass
class AuditCounts:
    """The counts of some shards.

    bytes         UTF-8 bytes of the texts
    lengths       characters of the texts
    occurrences   of each sought string; they may overlap
    tokens        without EOD; 0 without a tokenizer
    """

    documents: int = 0
    bytes: int = 0
    lengths: Lengths = field(default_factory=Lengths)
    occurrences: list[int] = field(default_factory=list)
    tokens: int = 0
    skipped: SkippedLines = field(default_factory=SkippedLines)

    def merge(self, other: AuditCounts) -> None:
        """Add the counts of other shards."""
        self.documents += other.documents
        self.bytes += other.bytes
        self.tokens += other.tokens
        self.lengths.add(other.lengths.values, other.lengths.counts)
        self.occurrences = [
            a + b for a, b in zip(self.occurrences or [0] * len(other.occurrences), other.occurrences, strict=True)
        ]
        self.skipped.merge(other.skipped)


@dataclass(frozen=True)
class AuditOptions:
    """How shards are counted.

    strings     are sought in the texts, UTF-8
    tokenizer   counts tokens too
    stored      the stored bytes that a process reads
    """

    manifest: Manifest
    strings: Sequence[bytes]
    tokenizer: Tokenizer | None
    on_error: OnError
    stored: int


def audit_shard(shard: Shard, file: BinaryIO, advance: Advance, *, options: AuditOptions, share: Share) -> AuditCounts:
    """Count one shard, and write the 64-bit hashes of its texts to `file`."""
    counts = AuditCounts()
    parser = LineParser.for_shard(shard, options.manifest, None, options.on_error, counts.skipped)
    waiting, occurrences = list[Int64](), np.zeros(len(options.strings), np.int64)
    strings = np.frombuffer(b"".join(options.strings), np.uint8)
    string_ends = np.cumsum([*map(len, options.strings)], dtype=np.int64)

    def count_tokens(batch: DocumentBatch) -> None:
        assert options.tokenizer is not None
        counts.tokens += len(options.tokenizer.encode_batch(batch.texts)[0])

    def see_texts(data: Bytes, sizes: Int64) -> None:
        data = data.view()
        data.flags.writeable = False  # A kernel is compiled for one kind of array.
        waiting.append(np.empty(len(sizes), np.int64))
        count_texts(data, np.cumsum(sizes), strings, string_ends, waiting[-1], occurrences)
        if sum(map(len, waiting)) > _WAITING:
            counts.lengths.add(np.concatenate(waiting))
            waiting.clear()

    see_batch = None if options.tokenizer is None else count_tokens
    read_options = ReadOptions(advance, share.ahead, options.stored)
    with closing(document_rows(shard, parser, read_options, see_batch=see_batch, see_texts=see_texts)) as rows:
        for part in rows:
            counts.documents += len(part.numbers)
            counts.bytes += int(part.text_bytes.sum())
            file.write(part.text_hashes.tobytes())
    counts.lengths.add(np.concatenate([np.zeros(0, np.int64), *waiting]))
    counts.occurrences = occurrences.tolist()
    return counts
