"""What an index says of a shard's documents, by the compiled scan (line_scan.py): only what that leaves is decoded.

Numbers, labels, sizes and hashes are, to the last bit, those that decoding gives, in two thirds of the time. What the
scan leaves goes through the parser, so errors, skipped lines and odd spellings are what they are elsewhere. A label's
first documents are among that, and then the scan knows it. Where most lines are of another form, scanning them is lost
time, and no more are scanned.

Loading the scan takes half a second: it is for shards of half a gigabyte of text and more.
"""

from __future__ import annotations

import numpy as np
import xxhash

from pilekit.shards.index.decoded_lines import DocumentRows, LineDecoder, rows_of
from pilekit.shards.index.json_line_kernel import KNOWN_LABELS, LINES, Int64, known_labels, line_form, scan_lines
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import Line, LineBlock


class LineScanner:
    """Takes the blocks of a shard, each with `pass_block` and then `rows`, as a `LineDecoder` does.

    worthwhile   turns false when the shard's lines are of another form
    """

    def __init__(self, parser: LineParser):
        self.worthwhile = True
        self._decoder = LineDecoder(parser)
        self._form = line_form(parser.format.text_field, parser.format.label_path)
        self._known: dict[str, int] = {}
        self._labels = known_labels(self._known)
        self._arrays = np.empty((4, LINES), dtype=np.int64)
        self._texts = np.empty(0, dtype=np.uint8)
        self._left: list[Line] = []
        self._rows = self._sizes = np.empty(0, dtype=np.int64)
        self._hashes: list[int] = []

    def pass_block(self, block: LineBlock) -> int:
        """Scan the next block; returns how many lines it has."""
        if not self.worthwhile:
            return self._decoder.pass_block(block)
        head = [] if block.head is None else [block.head]
        rows, sizes = [np.full(len(head), -1)], [np.zeros(len(head), dtype=np.int64)]
        self._left, self._hashes = list(head), []
        view = memoryview(block.data)
        data = np.frombuffer(view, dtype=np.uint8)
        words = np.frombuffer(view, dtype=np.uint64, count=len(view) // 8)
        if len(self._texts) < len(data):
            self._texts = np.empty(len(data), dtype=np.uint8)
        begins, ends, found, found_sizes = self._arrays
        begin = block.begin
        while begin < block.end:
            count, begin = scan_lines(
                data, words, begin, block.end, *self._form, *self._labels, begins, ends, found, found_sizes, self._texts
            )
            rows.append(found[:count].copy())
            sizes.append(found_sizes[:count].copy())
            self._hash(sizes[-1][rows[-1] >= 0])
            self._left += [view[begins[line] : ends[line]] for line in np.flatnonzero(rows[-1] < 0).tolist()]
        self._rows, self._sizes = np.concatenate(rows), np.concatenate(sizes)
        return len(self._rows)

    def _hash(self, sizes: Int64) -> None:
        """Hash the texts of these sizes, which lie end to end."""
        texts, begin = self._texts.data, 0
        for end in np.cumsum(sizes).tolist():
            self._hashes.append(xxhash.xxh3_64_intdigest(texts[begin:end]))
            begin = end

    def rows(self, first: int) -> DocumentRows:
        """The documents of that block, whose first line has this number; decodes what is left of it."""
        if not self.worthwhile:
            return self._decoder.rows(first)
        labels = list(self._known)
        scanned = np.flatnonzero(self._rows >= 0)
        subsets = [labels[row] for row in self._rows[scanned].tolist()]
        rows = DocumentRows(first + scanned, subsets, self._sizes[scanned], np.array(self._hashes, dtype=np.uint64))
        if not self._left:
            return rows
        decoded = rows_of(self._decoder.parser.parse(self._left, first + np.flatnonzero(self._rows < 0)))
        self._learn(decoded.subsets)
        numbers, sizes, hashes = (
            np.concatenate([getattr(rows, name), getattr(decoded, name)])
            for name in ("numbers", "text_bytes", "text_hashes")
        )
        subsets += decoded.subsets
        order = np.argsort(numbers)
        return DocumentRows(numbers[order], [subsets[i] for i in order.tolist()], sizes[order], hashes[order])

    def _learn(self, labels: list[str]) -> None:
        """Let the scan know these labels from now on."""
        before = len(self._known)
        for label in dict.fromkeys(labels):
            if len(self._known) < KNOWN_LABELS:
                self._known.setdefault(label, len(self._known))
        self.worthwhile = 2 * len(self._left) <= len(self._rows) or len(self._known) > before
        if len(self._known) > before:
            self._labels = known_labels(self._known)
