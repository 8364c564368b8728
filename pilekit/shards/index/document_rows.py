"""`DocumentRows`: number, label, size and hash of documents, the common form of stats, index and verify.

`LineRows` makes them from blocks of lines, decoded or scanned by compiled code (json_line_kernel.py). The scan takes
two thirds of the time of decoding and gives exactly the same rows. Lines that the scan cannot read are decoded, so
errors, skipped lines and odd spellings are the same either way. The first documents of each label are decoded, which
teaches the scan the label. If most lines have another form, scanning stops.

Loading the scan takes half a second, so only large shards are scanned.

Labels are as the records spell them. `named` gives the rows the names of subsets, label by label.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.corpus import Shard, SubsetNames
from pilekit.documents import DocumentBatch, RecordFormat
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import Line, LineBlock, whole_lines
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES, located_errors, text_pieces
from pilekit.workers import Advance

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

    def named(self, names: SubsetNames | None) -> DocumentRows:
        """The rows with the subset of each label; several places of `labels` may then have one name."""
        return self if names is None else self._replace(labels=[names[label] for label in self.labels])


def document_rows(
    shard: Shard,
    format: RecordFormat,
    *,
    skipped: SkippedLines | None = None,
    advance: Advance | None = None,
    ahead: bool = True,
    hashed: bool = True,
) -> Iterator[DocumentRows]:
    """Scan a long shard (not Parquet), block by block; the rows have the subsets' names.

    skipped   where bad lines are counted; None: a bad line is a `PilekitError`
    hashed    hash the texts
    """
    parser = LineParser(shard.path, shard.name, replace(format, names=None), None, skipped)
    documents = LineRows(parser, scan=True, hashed=hashed)
    reading = text_pieces(shard.path, advance=advance, ahead=ahead)
    with located_errors(shard.path, lambda: documents.lines), reading as pieces:
        for block in whole_lines(pieces, MAX_DOCUMENT_BYTES):
            yield from (rows.named(format.names) for rows in documents.rows(block))


def index_rows(batch: DocumentBatch, *, hashed: bool = True) -> DocumentRows:
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

    def rows(self, block: LineBlock) -> Iterator[DocumentRows]:
        """The documents of the next block, in parts of bounded size."""
        if self.scan:
            yield from self._scanned(block)
            return
        for numbers, lines, end in block.lines(self.lines):
            self.lines = end
            yield self._decoded(lines, numbers)

    def _decoded(self, lines: list[Line], numbers: Int64) -> DocumentRows:
        return index_rows(self.parser.parse(lines, numbers), hashed=self.hashed)

    def _scanned(self, block: LineBlock) -> Iterator[DocumentRows]:
        careful, blank = self._kernel.CAREFUL, self._kernel.BLANK
        heads = [] if block.head is None else [block.head]
        view = memoryview(block.data)
        data = np.frombuffer(view, dtype=np.uint8)
        words = np.frombuffer(view, dtype=np.uint64, count=len(view) // 8)
        if self.hashed and len(self._texts) < len(data):
            self._texts = np.empty(len(data), dtype=np.uint8)
        texts = (self._texts,) if self.hashed else ()
        begins, ends, found, sizes = self._arrays
        begin = block.begin
        while heads or begin < block.end:
            count, begin = self._kernel.scan_lines(
                data, words, begin, block.end, *self._form, *self._labels, begins, ends, found, sizes, *texts
            )
            code, size = found[:count], sizes[:count]
            hashes = self._hashes(size[code >= 0]) if self.hashed else []
            left = [*heads, *(view[begins[line] : ends[line]] for line in np.flatnonzero(code == careful).tolist())]
            code, size = (
                np.concatenate([np.full(len(heads), value), of]) for value, of in ((careful, code), (0, size))
            )
            heads = []
            numbers, scanned = np.arange(self.lines, self.lines + len(code)), code >= 0
            self.lines += len(code)
            rows = DocumentRows(
                numbers[scanned], code[scanned], list(self._known), size[scanned], np.array(hashes, dtype=np.uint64)
            )
            if left:
                decoded = self._decoded(left, numbers[code == careful])
                rows = _merged(rows, decoded)
                self._learn(decoded.labels, len(left), int(np.count_nonzero(code != blank)))
            yield rows

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
