"""`DocumentRows`: number, label, size and hash of documents, the common form of stats, index and verify.

`LineRows` makes them from blocks of lines, decoded or scanned by compiled code (json_line_kernel.py). The scan takes
two thirds of the time of decoding and gives exactly the same rows. Lines that the scan cannot read are decoded, so
errors, skipped lines and odd spellings are the same either way. The first documents of each label are decoded, which
teaches the scan the label. If most lines have another form, scanning stops.

Loading the scan takes half a second, so only large shards are scanned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.corpus import Manifest, Shard
from pilekit.documents import DocumentBatch
from pilekit.engine import Advance
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import Line, LineBlock
from pilekit.shards.read.reader import line_blocks, located_errors, record_format

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]


class DocumentRows(NamedTuple):
    """Some documents in the order of their numbers, [documents] each; columns that were not requested are empty.

    codes         the place of each document's label in `labels`, which may hold other labels too
    text_bytes    UTF-8 bytes of each text
    text_hashes   xxh3_64 of each text
    """

    numbers: Int64
    codes: Int64
    labels: list[str]
    text_bytes: Int64
    text_hashes: UInt64


def document_rows(
    shard: Shard,
    *,
    manifest: Manifest | None = None,
    skipped: SkippedLines | None = None,
    advance: Advance | None = None,
    ahead: bool = True,
    hashed: bool = True,
) -> Iterator[DocumentRows]:
    """Scan a long shard (not Parquet), block by block.

    skipped   where bad lines are counted; None: a bad line is a `PilekitError`
    hashed    hash the texts
    """
    parser = LineParser(shard.path, shard.name, record_format(manifest), None, skipped)
    documents = LineRows(parser, scan=True, hashed=hashed)
    reading = line_blocks(shard.path, advance=advance, ahead=ahead)
    with located_errors(shard.path, lambda: documents.lines), reading as blocks:
        yield from map(documents.rows, blocks)


def rows_of(batch: DocumentBatch, *, hashed: bool = True) -> DocumentRows:
    """The rows of a batch's documents."""
    sizes, hashes = batch.text_hashes() if hashed else (batch.text_bytes(), np.empty(0, np.uint64))
    places = {label: place for place, label in enumerate(dict.fromkeys(batch.subsets))}
    codes = np.fromiter(map(places.__getitem__, batch.subsets), np.int64, len(batch))
    return DocumentRows(batch.numbers, codes, list(places), sizes, hashes)


class LineRows:
    """Makes `DocumentRows` of the blocks of a shard, in order.

    scan     scan the lines; becomes false if most lines have another form
    hashed   hash the texts
    lines    how many lines have been read
    """

    def __init__(self, parser: LineParser, *, scan: bool, hashed: bool = True):
        self.parser, self.scan, self.hashed, self.lines = parser, scan, hashed, 0
        if scan:
            from pilekit.shards.index import json_line_kernel

            self._kernel = json_line_kernel
            self._form = json_line_kernel.line_form(parser.format.text_field, parser.format.label_path)
            self._known: dict[str, int] = {}
            self._labels = json_line_kernel.known_labels(self._known)
            self._arrays = np.empty((4, json_line_kernel.LINES), dtype=np.int64)
            self._texts = np.empty(0, dtype=np.uint8)

    def rows(self, block: LineBlock) -> DocumentRows:
        """The documents of the next block."""
        if self.scan:
            return self._scanned(block)
        lines = block.lines()
        return self._decoded(lines, self._numbers(len(lines)))

    def _numbers(self, lines: int) -> Int64:
        """The numbers of the next lines, int64 [lines]."""
        self.lines += lines
        return np.arange(self.lines - lines, self.lines)

    def _decoded(self, lines: list[Line], numbers: Int64) -> DocumentRows:
        return rows_of(self.parser.parse(lines, numbers), hashed=self.hashed)

    def _scanned(self, block: LineBlock) -> DocumentRows:
        left: list[Line] = [] if block.head is None else [block.head]
        codes, sizes = [np.full(len(left), -1)], [np.zeros(len(left), dtype=np.int64)]
        hashes: list[int] = []
        view = memoryview(block.data)
        data = np.frombuffer(view, dtype=np.uint8)
        words = np.frombuffer(view, dtype=np.uint64, count=len(view) // 8)
        if self.hashed and len(self._texts) < len(data):
            self._texts = np.empty(len(data), dtype=np.uint8)
        texts = (self._texts,) if self.hashed else ()
        begins, ends, found, found_sizes = self._arrays
        begin = block.begin
        while begin < block.end:
            count, begin = self._kernel.scan_lines(
                data, words, begin, block.end, *self._form, *self._labels, begins, ends, found, found_sizes, *texts
            )
            codes.append(found[:count].copy())
            sizes.append(found_sizes[:count].copy())
            if self.hashed:
                hashes += self._hashes(sizes[-1][codes[-1] >= 0])
            left += [view[begins[line] : ends[line]] for line in np.flatnonzero(codes[-1] < 0).tolist()]
        code, size = np.concatenate(codes), np.concatenate(sizes)
        numbers, scanned = self._numbers(len(code)), code >= 0
        rows = DocumentRows(
            numbers[scanned], code[scanned], list(self._known), size[scanned], np.array(hashes, dtype=np.uint64)
        )
        if left:
            decoded = self._decoded(left, numbers[~scanned])
            rows = _merged(rows, decoded)
            self._learn(decoded.labels, len(left), len(code))
        return rows

    def _hashes(self, sizes: Int64) -> list[int]:
        """The hashes of texts of these sizes, stored end to end."""
        texts, begin, hashes = self._texts.data, 0, []
        for end in np.cumsum(sizes).tolist():
            hashes.append(xxhash.xxh3_64_intdigest(texts[begin:end]))
            begin = end
        return hashes

    def _learn(self, labels: list[str], left: int, lines: int) -> None:
        """Teach the scan these labels; stop scanning if it left most lines and knew all labels."""
        before = len(self._known)
        for label in labels:
            if len(self._known) < self._kernel.KNOWN_LABELS:
                self._known.setdefault(label, len(self._known))
        self.scan = 2 * left <= lines or len(self._known) > before
        if len(self._known) > before:
            self._labels = self._kernel.known_labels(self._known)


def _merged(one: DocumentRows, other: DocumentRows) -> DocumentRows:
    """The rows of both, in the order of their numbers."""
    places = {label: place for place, label in enumerate(dict.fromkeys([*one.labels, *other.labels]))}
    codes = np.array([places[label] for label in other.labels], dtype=np.int64)[other.codes]
    order = np.argsort(np.concatenate([one.numbers, other.numbers]))
    hashes = np.concatenate([one.text_hashes, other.text_hashes])
    return DocumentRows(
        np.concatenate([one.numbers, other.numbers])[order],
        np.concatenate([one.codes, codes])[order],
        list(places),
        np.concatenate([one.text_bytes, other.text_bytes])[order],
        hashes[order] if len(hashes) else hashes,
    )
