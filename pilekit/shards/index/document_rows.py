"""`document_rows`: from a shard's blocks to the number, label, size and hash of its documents.

`DocumentRows` is the common form of stats, index and verify. `documents_of` gives the lines too, for a copy of some of
them. Lines are decoded or, where a process reads much, scanned by compiled code (json_line_kernel.py). The scan takes
two thirds of the time of decoding and gives exactly the same rows. Lines that the scan cannot read are decoded, so
errors, skipped lines and odd spellings are the same either way. The first documents of each label are decoded, which
teaches the scan the label. If most lines have another form, scanning stops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.corpus import Shard, SubsetNames
from pilekit.documents import DocumentBatch, RecordFormat, SeeTexts
from pilekit.shards.read.blocks import ShardWatch, shard_blocks
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import LINES_AT_A_TIME, Line, LineBlock, LineCount, numbered_parts
from pilekit.shards.read.open import ReadOptions, is_parquet
from pilekit.workers.local import may_fork

if TYPE_CHECKING:
    from pilekit.shards.corpus_job import CorpusJob

SCANNED_FROM_BYTES = 96 << 20
"""Loading the compiled scan takes half a second and 80 MB. It saves that time on about this many stored bytes."""

LARGEST_SCANNED_HEAD = 2 << 20
"""A line of more bytes that crossed the border of two pieces of text is decoded, if texts are hashed."""

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

    def where(self, chosen: npt.NDArray[np.bool_]) -> DocumentRows:
        """The rows of chosen documents, bool [documents], and their labels alone."""
        codes = self.codes[chosen]
        labels = {code: place for place, code in enumerate(dict.fromkeys(codes.tolist()))}
        places = np.zeros(len(self.labels), np.int64)
        places[list(labels)] = list(labels.values())
        names = [self.labels[code] for code in labels]
        return DocumentRows(
            self.numbers[chosen], places[codes], names, self.text_bytes[chosen], self.text_hashes[chosen]
        )


class DocumentsRead(NamedTuple):
    """Some documents of a shard.

    rows     their rows
    format   where their records keep text and label
    lines    gives the lines of some of them, bool [documents], each with its newline; until the next are read
    """

    rows: DocumentRows
    format: RecordFormat
    lines: Callable[[npt.NDArray[np.bool_]], bytes]


def document_rows(
    shard: Shard,
    parser: LineParser,
    options: ReadOptions,
    *,
    hashed: bool = True,
    watch: ShardWatch | None = None,
    see_batch: Callable[[DocumentBatch], None] | None = None,
    see_texts: SeeTexts | None = None,
) -> Generator[DocumentRows, None, None]:
    """The rows of a shard's documents; arguments and errors as in `documents_of`."""
    parts = documents_of(shard, parser, options, hashed=hashed, watch=watch, see_batch=see_batch, see_texts=see_texts)
    with closing(parts):
        yield from map(attrgetter("rows"), parts)  # `map` holds no part, and so no long line.


def documents_of(
    shard: Shard,
    parser: LineParser,
    options: ReadOptions,
    *,
    hashed: bool = True,
    watch: ShardWatch | None = None,
    see_batch: Callable[[DocumentBatch], None] | None = None,
    see_texts: SeeTexts | None = None,
) -> Generator[DocumentsRead, None, None]:
    """The documents of a shard, in parts of bounded size; `PilekitError` for damage, after all documents before it.

    parser      selects the documents, and names their subsets
    hashed      whether to hash the texts
    watch       sees all bytes and blocks
    see_batch   receives the documents of each part
    see_texts   with `hashed`: receives the texts of all documents, in any order
    """
    with shard_blocks(shard.path, options, shown=parser.path, columns=parser.format, watch=watch) as blocks:
        only_rows = parser.subsets is None and see_batch is None and not is_parquet(shard.path)
        if only_rows and options.stored >= SCANNED_FROM_BYTES:
            scanner = LineScanner(parser, hashed=hashed, see_texts=see_texts)
            while scanner.pays and isinstance(block := next(blocks, None), LineBlock):
                yield from scanner.documents(block)
            block = None  # The consumer alone holds a long line.
        for batch in parser.batches(numbered_parts(blocks)):
            if see_batch is not None:
                see_batch(batch)
            lines = functools.partial(_lines_of_batch, batch)
            part = [DocumentsRead(index_rows(batch, hashed=hashed, see_texts=see_texts), batch.format, lines)]
            del batch, lines  # A long text must not be held while the next is read.
            yield part.pop()


def _lines_of_batch(batch: DocumentBatch, chosen: npt.NDArray[np.bool_]) -> bytes:
    return b"\n".join([*batch.where(chosen).raw_lines(), b""])


def load_scan(job: CorpusJob, shards: Sequence[Shard], *, hashed: bool = True) -> None:
    """Load the compiled scan here, if processes that are forked from this one will scan `shards` with it.

    Otherwise each of them would take the 0.3 CPU seconds. `hashed` as for `documents_of`: the two scans are two loads.
    """
    forks = job.cluster is None and job.processes(shards) > 1 and may_fork()
    if forks and job.share(shards).stored >= SCANNED_FROM_BYTES:
        scanner = LineScanner(LineParser("", "", RecordFormat(), None, None), hashed=hashed)
        list(scanner.documents(LineBlock(None, b"\n", 0, 1, LineCount())))


def index_rows(batch: DocumentBatch, *, hashed: bool = True, see_texts: SeeTexts | None = None) -> DocumentRows:
    """The rows of a batch's documents; with `hashed`, `see_texts` receives their texts."""
    sizes, hashes = batch.text_hashes(see_texts) if hashed else (batch.text_bytes(), np.empty(0, np.uint64))
    places = {label: place for place, label in enumerate(dict.fromkeys(batch.subsets))}
    codes = np.fromiter(map(places.__getitem__, batch.subsets), np.int64, len(batch))
    return DocumentRows(batch.numbers, codes, list(places), sizes, hashes)


class LineScanner:
    """Scans the blocks of a shard, in order.

    hashed   whether to hash the texts
    lines    how many lines are scanned at a time
    labels   how many labels the scan learns; documents with others are decoded
    see_texts   with `hashed`: receives the texts
    pays     becomes false if most lines have another form
    """

    def __init__(
        self,
        parser: LineParser,
        *,
        hashed: bool = True,
        lines: int = LINES_AT_A_TIME,
        labels: int = 256,
        see_texts: SeeTexts | None = None,
    ):
        from pilekit.shards.index import json_line_kernel

        # The scan learns labels as the records spell them.
        self.parser = replace(parser, format=replace(parser.format, names=None))
        self.names, self.hashed, self.labels, self.pays = parser.format.names, hashed, labels, True
        self._kernel = json_line_kernel
        self._form = json_line_kernel.line_form(parser.format.text_field, parser.format.label_path)
        self._see_texts = see_texts
        self._known: dict[str, int] = {}
        self._table = json_line_kernel.known_labels(self._known)
        self._arrays = np.empty((4, 1 + lines), dtype=np.int64)
        self._texts = np.empty(0, dtype=np.uint8)

    def documents(self, block: LineBlock) -> Iterator[DocumentsRead]:
        """The documents of the next block, in parts of bounded size; counts its lines."""
        careful, blank = self._kernel.CAREFUL, self._kernel.BLANK
        head, view = block.head, memoryview(block.data)
        data = np.frombuffer(view, dtype=np.uint8)
        begins, ends, codes, sizes = self._arrays
        first = written = 0  # lines and bytes of texts before those of `data`
        if head is not None:  # The line that crossed a border comes first.
            first, codes[0], sizes[0] = 1, careful, 0
            if not self.hashed or len(head) <= LARGEST_SCANNED_HEAD:
                self._scan(np.frombuffer(head, dtype=np.uint8), 0, len(head), 0, 0)
            written = int(sizes[0]) if codes[0] >= 0 else 0
        begin = block.begin
        while first or begin < block.end:
            count, begin = self._scan(data, begin, block.end, first, written)
            count += first
            code, size = codes[:count], sizes[:count]
            hashes = self._hashes(size[code >= 0]) if self.hashed else []
            if self._see_texts is not None:
                self._see_texts(self._texts[: int(size[code >= 0].sum())], size[code >= 0])
            unscanned = [
                head if head is not None and place == 0 else view[begins[place] : ends[place]]
                for place in np.flatnonzero(code == careful).tolist()
            ]
            numbers, scanned = np.arange(block.count.lines, block.count.lines + count), code >= 0
            block.count.lines += count
            rows = DocumentRows(
                numbers[scanned], code[scanned], list(self._known), size[scanned], np.array(hashes, dtype=np.uint64)
            )
            if unscanned:
                batch = self.parser.parse(unscanned, numbers[code == careful])
                decoded = index_rows(batch, hashed=self.hashed, see_texts=self._see_texts)
                del batch
                rows = _merge(rows, decoded)
                self._learn(decoded.labels, len(unscanned), int(np.count_nonzero(code != blank)))
            lines = _ScannedLines(rows.numbers - numbers[0], head, view, begins[first:count], ends[first:count])
            yield DocumentsRead(rows.named(self.names), self.parser.format, lines.chosen)
            head, first, written = None, 0, 0

    def _scan(self, data: npt.NDArray[np.uint8], begin: int, end: int, first: int, written: int) -> tuple[int, int]:
        """`scan_lines` into the arrays from row `first` on, and into the texts from byte `written` on."""
        if self.hashed and len(self._texts) < written + len(data):
            self._texts = np.concatenate([self._texts[:written], np.empty(len(data), dtype=np.uint8)])
        texts = (self._texts[written:],) if self.hashed else ()
        return self._kernel.scan_lines(data, begin, end, *self._form, *self._table, *self._arrays[:, first:], *texts)

    def _hashes(self, sizes: Int64) -> list[int]:
        """The hashes of texts of these sizes, stored end to end."""
        texts, begin, hashes = self._texts.data, 0, []
        for end in np.cumsum(sizes).tolist():
            hashes.append(xxhash.xxh3_64_intdigest(texts[begin:end]))
            begin = end
        return hashes

    def _learn(self, labels: list[str], unscanned: int, lines: int) -> None:
        """Teach the scan these labels; it does not pay if it left most lines unscanned and knew all labels."""
        before = len(self._known)
        for label in labels:
            if len(self._known) < self.labels:
                self._known.setdefault(label, len(self._known))
        self.pays = 2 * unscanned <= lines or len(self._known) > before
        if len(self._known) > before:
            self._table = self._kernel.known_labels(self._known)


class _ScannedLines(NamedTuple):
    """The lines of scanned documents.

    places         which of the lines each document has, int64 [documents]
    head           the first line, if it crossed the border of two pieces of text
    data           the other lines, each with its newline, from `begins` to before `ends`
    """

    places: Int64
    head: Line | None
    data: memoryview
    begins: Int64
    ends: Int64

    def chosen(self, chosen: npt.NDArray[np.bool_]) -> bytes:
        """The lines of the chosen documents. Neighbours are copied together."""
        places = self.places[chosen] - (self.head is not None)
        parts: list[Line] = []
        if self.head is not None and len(places) and places[0] < 0:
            parts, places = [self.head, b"\n"], places[1:]
        is_first = np.diff(places, prepend=-2) != 1
        is_last = np.append(is_first[1:], True)[: len(places)]
        begins, ends = self.begins[places[is_first]].tolist(), self.ends[places[is_last]].tolist()
        parts += [self.data[begin : end + 1] for begin, end in zip(begins, ends, strict=True)]
        return b"".join(parts)


def _merge(scanned: DocumentRows, decoded: DocumentRows) -> DocumentRows:
    """The rows of both, in the order of their numbers."""
    places = {label: place for place, label in enumerate(dict.fromkeys([*scanned.labels, *decoded.labels]))}
    # The labels of `scanned` come first, so its codes stay. The codes of `decoded` go by way of its own labels.
    codes = np.array([places[label] for label in decoded.labels], dtype=np.int64)[decoded.codes]
    order = np.argsort(np.concatenate([scanned.numbers, decoded.numbers]))
    hashes = np.concatenate([scanned.text_hashes, decoded.text_hashes])
    return DocumentRows(
        np.concatenate([scanned.numbers, decoded.numbers])[order],
        np.concatenate([scanned.codes, codes])[order],
        list(places),
        np.concatenate([scanned.text_bytes, decoded.text_bytes])[order],
        hashes[order] if len(hashes) else hashes,
    )
