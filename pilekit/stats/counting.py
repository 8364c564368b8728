"""Count one shard: `Counts` of documents, bytes, sizes and tokens per subset, and hashes of texts, among which
`CopyCounter` finds the copies.

`DocumentRows` come from the shard's index, from the compiled scan, or from reading the shard, and are counted alike, so
the result is exactly the same. An index holds everything except tokens. If the index is damaged, a warning is logged
and the shard is read.

The rows of a block are counted with a handful of numpy calls. Only hashes of texts grow with the shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pilekit.corpus import Manifest, Shard
from pilekit.documents import DocumentBatch, check_labels
from pilekit.errors import message_logger
from pilekit.shards.corpus_job import ShardWork, Share
from pilekit.shards.index.document_rows import DocumentRows, document_rows
from pilekit.shards.index.format import IndexDamage, ShardIndex, bad_lines
from pilekit.shards.read.json_records import LineParser, OnError, bad_line_error
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.stats.histogram import BINS, bin_of
from pilekit.workers import Advance

if TYPE_CHECKING:
    from pilekit.tokenize import Tokenizer

logger = message_logger(__name__)

_TOP_BYTES = 256

Int64 = npt.NDArray[np.int64]
TextHashes = list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int16]]]
"""64-bit hashes of texts in the shard's order, and the row of each in the shard's `Counts`; an entry per block."""


@dataclass(slots=True)
class Counts:
    """Counts per group; a group is the documents of one label, and row i of each array belongs to group i.

    groups    label -> the number of its group, counted up from 0 in the order of first occurrence
    bytes     UTF-8 bytes of text, int64 [groups or more]
    lengths   histogram of the documents' bytes, int64 [groups or more, BINS]
    tokens    int64 [groups or more], EOD not counted
    skipped   the bad lines passed over
    joined    the subset of each label that is spelled otherwise
    """

    groups: dict[str, int] = field(default_factory=dict)
    bytes: Int64 = field(default_factory=lambda: np.zeros(32, dtype=np.int64))
    lengths: Int64 = field(default_factory=lambda: np.zeros((32, BINS), dtype=np.int64))
    tokens: Int64 = field(default_factory=lambda: np.zeros(32, dtype=np.int64))
    skipped: SkippedLines = field(default_factory=SkippedLines)
    joined: dict[str, str] = field(default_factory=dict)

    def rows(self, labels: list[str]) -> npt.NDArray[np.intp]:
        """The row of each label, intp [labels]; makes rows for new labels."""
        for label in labels:
            self.groups.setdefault(label, len(self.groups))
        check_labels(self.groups)
        rows = np.fromiter(map(self.groups.__getitem__, labels), np.intp, len(labels))
        while len(self.groups) > len(self.bytes):
            self.bytes, self.tokens, self.lengths = (
                np.concatenate([old, np.zeros_like(old)]) for old in (self.bytes, self.tokens, self.lengths)
            )
        return rows

    def add(self, rows: npt.NDArray[np.intp], sizes: Int64) -> None:
        """Count documents: the row and the UTF-8 bytes of each, [documents]."""
        np.add.at(self.bytes, rows, sizes)
        np.add.at(self.lengths.reshape(-1), rows * BINS + bin_of(sizes), 1)

    def __reduce__(self) -> tuple[Any, ...]:
        # Few bins of few rows are used, and a task on a cluster sends home at most a MiB.
        used = np.flatnonzero(self.lengths).astype(np.int32)
        columns = (self.groups, self.bytes, self.tokens, used, self.lengths.flat[used], self.skipped, self.joined)
        return _unpickle, columns

    def merge(self, other: Counts) -> npt.NDArray[np.intp]:
        """Add another shard's counts; returns this object's row for each row of the other."""
        rows = self.rows(list(other.groups))
        self.bytes[rows] += other.bytes[: len(rows)]
        self.tokens[rows] += other.tokens[: len(rows)]
        self.lengths[rows] += other.lengths[: len(rows)]
        self.skipped.merge(other.skipped)
        self.joined |= other.joined
        check_labels(self.joined)
        return rows


def _unpickle(
    groups: dict[str, int],
    sizes: Int64,
    tokens: Int64,
    used: npt.NDArray[np.int32],
    lengths: Int64,
    *skipped_and_joined: Any,
) -> Counts:
    """`Counts` of the bins that were pickled."""
    counts = Counts(groups, sizes, np.zeros((len(sizes), BINS), np.int64), tokens, *skipped_and_joined)
    counts.lengths.flat[used] = lengths
    return counts


@dataclass(frozen=True)
class CountOptions:
    """How shards are counted.

    subsets     only their documents are counted; None: all
    tokenizer   counts tokens too; None: none are counted
    copies      whether the hashes of texts are wanted
    stored      the stored bytes that a process reads, of all shards without an index
    """

    manifest: Manifest
    subsets: Sequence[str] | None
    tokenizer: Tokenizer | None
    copies: bool
    on_error: OnError
    stored: int


def count_shard(
    item: tuple[Shard, ShardIndex | None], advance: Advance, *, options: CountOptions, share: Share
) -> tuple[Counts, TextHashes]:
    """Count one shard, from its index if there is one; the second result is empty unless copies are wanted."""
    (shard, index), copies = item, options.copies
    if index is not None:
        counts = Counts(skipped=bad_lines(shard, index))
        if counts.skipped.count and options.on_error != "skip":
            raise bad_line_error(counts.skipped.examples[0])
        rows = index.rows("subset", "text_bytes", *["text_hash"] * copies)
        try:
            hashes = _count_all(rows, counts, copies, options.subsets)
        except IndexDamage as damage:
            logger.warning("index not used: %s", damage)
        else:
            advance(index.header.size)
            counts.joined = {} if index.names is None else index.names.joined
            return counts, hashes
    counts = Counts()
    parser = LineParser.for_shard(shard, options.manifest, options.subsets, options.on_error, counts.skipped)

    def count_tokens(batch: DocumentBatch) -> None:
        assert options.tokenizer is not None
        tokens = np.diff(options.tokenizer.encode_batch(batch.texts)[1])
        np.add.at(counts.tokens, counts.rows(batch.subsets), tokens)

    see_batch = None if options.tokenizer is None else count_tokens
    read_options = ReadOptions(advance, share.ahead, options.stored)
    with closing(document_rows(shard, parser, read_options, hashed=copies, see_batch=see_batch)) as rows_read:
        hashes = _count_all(rows_read, counts, copies)
    names = parser.format.names
    counts.joined = {} if names is None else names.joined
    return counts, hashes


def count_into_file(
    item: tuple[Shard, ShardIndex | None],
    file: BinaryIO,
    advance: Advance,
    *,
    count: ShardWork[tuple[Shard, ShardIndex | None], tuple[Counts, TextHashes]],
    share: Share,
) -> Counts:
    """`count` a shard on another node, and write the hashes, which may take megabytes, to `file`."""
    counts, blocks = count(item, advance, share=share)
    for column, dtype in enumerate((np.uint64, np.int16)):
        np.save(file, np.concatenate([np.zeros(0, dtype), *(block[column] for block in blocks)]))
    return counts


def hashes_from_file(path: Path) -> TextHashes:
    """The hashes that `count_into_file` wrote."""
    with path.open("rb") as file:
        return [(np.load(file), np.load(file))]


def _count_all(
    parts: Iterator[DocumentRows], counts: Counts, copies: bool, subsets: Collection[str] | None = None
) -> TextHashes:
    """Count documents into `counts`, only those of `subsets` if given; returns their hashes if `copies`."""
    hashes: TextHashes = []
    for rows in parts:
        codes = np.flatnonzero(np.bincount(rows.codes, minlength=len(rows.labels))).tolist()
        if subsets is not None:
            codes = [code for code in codes if rows.labels[code] in subsets]
        # The row of each code, and so of each document; -1 for documents of other subsets.
        row_of_code = np.full(len(rows.labels), -1)
        row_of_code[codes] = counts.rows([rows.labels[code] for code in codes])
        row_of_document = row_of_code[rows.codes]
        chosen = row_of_document >= 0
        counts.add(row_of_document[chosen], rows.text_bytes[chosen])
        if copies:
            hashes.append((rows.text_hashes[chosen], row_of_document[chosen].astype(np.int16)))
    return hashes


class CopyCounter:
    """Counts, per group, the hashes that occurred before; they must come in the order of the corpus.

    A document takes 10 bytes: its hash and its group. (A Python set of integers takes 70.) They are collected in parts
    of a million (`part`), each sorted by the hash's top byte. At the end the 256 values of that byte are processed one
    by one, so nothing large is copied.

    Two different texts share a hash with probability 2^-64: with the Pile's 210 million documents, the chance of a
    single wrong copy is about 1 in 800.
    """

    def __init__(self, part: int = 1 << 20) -> None:
        self._part = part
        # Hashes by their top byte, within a byte in the order given; the groups; where each byte's hashes begin.
        self._parts: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int16], npt.NDArray[np.int64]]] = []
        self._waiting: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int16]]] = []
        self._waiting_count = 0

    def add(self, hashes: npt.NDArray[np.uint64], groups: npt.NDArray[np.int16]) -> None:
        """Take the next hashes, uint64 [documents], and the group of each, int16 [documents], >= 0."""
        self._waiting.append((hashes, groups))
        self._waiting_count += len(hashes)
        if self._waiting_count >= self._part:
            self._sort()

    def copies(self, groups: int) -> npt.NDArray[np.int64]:
        """How many hashes of each group had occurred before, in any group; int64 [groups]."""
        self._sort()
        counts = np.zeros(groups, dtype=np.int64)
        for byte in range(_TOP_BYTES if self._parts else 0):
            hashes = np.concatenate([part[ends[byte] : ends[byte + 1]] for part, _, ends in self._parts])
            group_of_hash = np.concatenate([part[ends[byte] : ends[byte + 1]] for _, part, ends in self._parts])
            order = np.argsort(hashes)  # A stable sort takes five times as long, and only the first of a run matters.
            ordered = hashes[order]
            # A run of equal hashes begins where a hash differs from the hash before it. The least place in a run is
            # that of the document that is no copy.
            begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
            firsts = np.minimum.reduceat(order, begins) if len(begins) else order
            counts += np.bincount(group_of_hash, minlength=groups)
            counts -= np.bincount(group_of_hash[firsts], minlength=groups)
        return counts

    def _sort(self) -> None:
        if self._waiting_count:
            hashes = np.concatenate([block for block, _ in self._waiting])
            groups = np.concatenate([block for _, block in self._waiting])
            top = (hashes >> np.uint64(56)).astype(np.uint8)
            order = np.argsort(top, kind="stable")
            ends = np.searchsorted(top[order], np.arange(_TOP_BYTES + 1))
            self._parts.append((hashes[order], groups[order], ends))
        self._waiting, self._waiting_count = [], 0
