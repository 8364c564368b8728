"""`audit_shard`: the counts of one shard that published figures are compared with.

Lengths of texts in characters are counted exactly: a corpus has few different ones (a terabyte of text fewer than two
million), so each with its number of documents is small. Given strings are sought in the texts of a block end to end,
and an occurrence that crosses the end of a text does not count. Hashes of the texts go to a file.
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
from pilekit.workers import Advance
from pilekit.workers.kernels import compiled

if TYPE_CHECKING:
    from pilekit.tokenize import Tokenizer

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_WAITING = 1 << 20
"""Lengths that are counted together."""

_LANES, _PAIRS, _SUM = np.uint64(0x0101010101010101), np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0001000100010001)
_MOST_WORDS = 255
"""Words that a byte can count."""


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
    counts = AuditCounts(occurrences=[0] * len(options.strings))
    parser = LineParser.for_shard(shard, options.manifest, None, options.on_error, counts.skipped)
    waiting, texts = list[Int64](), bytearray()

    def count_tokens(batch: DocumentBatch) -> None:
        assert options.tokenizer is not None
        counts.tokens += len(options.tokenizer.encode_batch(batch.texts)[0])

    def see_texts(data: Bytes, sizes: Int64) -> None:
        ends = np.cumsum(sizes)
        waiting.append(characters(data, ends))
        if sum(map(len, waiting)) > _WAITING:
            counts.lengths.add(np.concatenate(waiting))
            waiting.clear()
        if options.strings:
            if len(texts) < len(data):
                texts.extend(bytes(len(data) - len(texts)))
            texts[: len(data)] = data.data  # `find` needs bytes, and memory that was used before costs least
            for place, string in enumerate(options.strings):
                counts.occurrences[place] += occurrences(texts, ends, string)

    see_batch = None if options.tokenizer is None else count_tokens
    read_options = ReadOptions(advance, share.ahead, options.stored)
    with closing(document_rows(shard, parser, read_options, see_batch=see_batch, see_texts=see_texts)) as rows:
        for part in rows:
            counts.documents += len(part.numbers)
            counts.bytes += int(part.text_bytes.sum())
            file.write(part.text_hashes.tobytes())
    counts.lengths.add(np.concatenate([np.zeros(0, np.int64), *waiting]))
    return counts


def occurrences(texts: bytes | bytearray, ends: Int64, string: bytes) -> int:
    """How often the string stands in texts that end at `ends`, within one text; occurrences may overlap."""
    size = int(ends[-1]) if len(ends) else 0
    count, at = 0, texts.find(string, 0, size)
    while at >= 0:
        end = int(ends[np.searchsorted(ends, at, side="right")])
        count += at + len(string) <= end
        at = texts.find(string, at + 1, size)
    return count


def characters(data: Bytes, ends: Int64) -> Int64:
    """The characters of UTF-8 texts that end at `ends`, int64 [texts]: all bytes but those that continue one."""
    return _characters(data, data[: len(data) // 8 * 8].view(np.uint64), ends)


@compiled()
def _characters(data: Bytes, words: npt.NDArray[np.uint64], ends: Int64) -> Int64:
    """Eight bytes at a time. A byte that continues a character has the highest bit, and not the next."""
    counts = np.empty(len(ends), np.int64)
    begin = 0
    for i in range(len(ends)):
        end, first, last, continued = ends[i], (begin + 7) >> 3, ends[i] >> 3, np.int64(0)
        if last <= first:
            first = last = begin >> 3  # no whole word
            middle = begin
        else:
            middle = 8 * last
            for place in range(begin, 8 * first):
                continued += np.int64((data[place] & np.uint8(0xC0)) == np.uint8(0x80))
        for place in range(middle, end):
            continued += np.int64((data[place] & np.uint8(0xC0)) == np.uint8(0x80))
        while first < last:
            stop = min(last, first + _MOST_WORDS)
            lanes = np.uint64(0)  # a count for each byte of a word
            for word in range(first, stop):
                lanes += (words[word] >> np.uint64(7)) & ~(words[word] >> np.uint64(6)) & _LANES
            pairs = (lanes & _PAIRS) + ((lanes >> np.uint64(8)) & _PAIRS)
            continued += np.int64((pairs * _SUM) >> np.uint64(48))
            first = stop
        counts[i] = end - begin - continued
        begin = end
    return counts
