"""Documents by number: `read_documents(shard, numbers)`.

    for document in read_documents("00.jsonl.zst", [5_000_000, 17]):
        print(document.subset, document.text[:80])

Reading a document decodes only its frame: about 1 MiB of text in a shard that `pilekit reframe` wrote. A shard with
frames too long for memory (as released) is read once, in order, and documents that are read before their turn wait in
memory. `OpenReaders` reads any shard of a corpus, with few open files and bounded memory.
"""

from __future__ import annotations

import operator
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from pilekit.corpus import Corpus, Described, Manifest, Shard, load_manifest, shard_of
from pilekit.corpus.shard import is_url
from pilekit.documents import Document, DocumentBatch, RecordFormat, meta_of
from pilekit.errors import PilekitError, shortened
from pilekit.shards.index.build import index_of
from pilekit.shards.index.format import ShardIndex, changed_since
from pilekit.shards.random_access.frame_cache import WHOLE_BYTES, FrameCache, FrameLRU, frames_fit
from pilekit.shards.random_access.lines_by_number import LinesByNumber, LinesInOrder, no_such_number
from pilekit.shards.read.change_check import ShardChanged
from pilekit.shards.read.json_records import LineParser, document_of, record_of
from pilekit.shards.read.lines import Line
from pilekit.shards.read.open import is_parquet
from pilekit.shards.read.read_errors import BadLine, BadRecord, SkippedLines

if TYPE_CHECKING:
    from pilekit.shards.random_access.rows_by_number import RowsByNumber


def read_documents(
    shard: str | Path | Shard, numbers: Iterable[int], *, manifest: Described = None
) -> Iterator[Document]:
    """Yield the documents of these numbers, in the order given; numbers may repeat.

    shard      a path, a URL, or a `Shard` of a `Corpus`
    numbers    line numbers from 0, bad and blank lines included
    manifest   where records keep text and label; the Pile's by default

    Uses the shard's index. Where no index fits, one is built, which reads the shard once. `PilekitError` for a number
    whose line is not a document, for a number that the shard does not have, and for damage in a frame that is needed.
    """
    manifest = load_manifest(manifest)
    shard = shard if isinstance(shard, Shard) else shard_of(str(shard))
    index = index_of(shard, manifest=manifest, on_error="skip")  # Bad lines matter only if they are requested.

    def documents() -> Iterator[Document]:
        with closing(DocumentReader(shard, index, manifest=manifest)) as reader:
            yield from reader.read(numbers)

    return documents()


class DocumentReader:
    """Reads documents of one shard; close it when done. One thread at a time may use it.

    index     the shard's index; None: the shard is read from its beginning (Parquet needs no index)
    frames    holds the decoded frames; several readers may share it
    advance   is called with the number of further stored bytes read, if the shard is read from its beginning
    cache     keeps frames of a remote shard on disk (not of Parquet)
    """

    def __init__(
        self,
        shard: Shard,
        index: ShardIndex | None,
        *,
        manifest: Manifest | None = None,
        frames: FrameLRU | None = None,
        advance: Callable[[int], None] | None = None,
        cache: FrameCache | None = None,
    ):
        self.shard, self.format, self._index = shard, RecordFormat.from_manifest(manifest), index
        self._path = shard.path if shard.path != "-" else shard.name
        self._stored: LinesByNumber | RowsByNumber | LinesInOrder
        self._in_order = False
        frames = FrameLRU() if frames is None else frames
        if is_parquet(shard.path):
            from pilekit.shards.random_access.rows_by_number import RowsByNumber

            self._stored = rows = RowsByNumber(shard.path, self.format, frames)
            self.format, self._in_order = rows.format, not rows.all_fit
        elif index is not None and frames_fit(index, frames.held_bytes):
            self._stored = LinesByNumber(shard.path, index, frames, cache)
        else:
            lines = None if index is None else index.header.lines
            self._stored, self._in_order = LinesInOrder(shard.path, self._path, lines, advance), True

    def close(self) -> None:
        """Close the shard's file."""
        self._stored.close()

    def document(self, number: int) -> Document:
        """The document of this number; `PilekitError` if its line is not a document."""
        number = self._check_number(number)
        if isinstance(self._stored, LinesByNumber):
            with self._explain_change():
                return self._document(number, _record(self._stored.line(number)))
        [document] = self.increasing(np.array([number]))
        return document

    def read(self, numbers: Iterable[int]) -> Iterator[Document]:
        """Yield the documents of these numbers, in their order."""
        checked_numbers = map(self._check_number, numbers)
        if not self._in_order:
            yield from map(self.document, checked_numbers)
            return
        order = list(checked_numbers)
        times = Counter(order)
        following = self.increasing(np.array(sorted(times), dtype=np.int64))
        waiting: dict[int, Document] = {}
        for number in order:
            while number not in waiting:
                document = next(following)
                waiting[document.number] = document
            times[number] -= 1
            yield waiting[number] if times[number] else waiting.pop(number)

    def batch(self, numbers: npt.NDArray[np.int64], labels: Collection[str] | None = None) -> DocumentBatch:
        """The documents of these numbers, int64 and increasing, of a shard with an index; each frame is decoded once.

        labels   only documents with these labels; lines whose ending shows another label are not parsed

        `PilekitError` if the line of a number is not a document.
        """
        skipped = SkippedLines()
        parser = LineParser(self._path, self.shard.name, self.format, None, skipped)
        with self._explain_change():
            for number in numbers[[0, -1]].tolist() if len(numbers) else []:
                self._check_number(number)
            if isinstance(self._stored, LinesByNumber | LinesInOrder):
                lines = list(self._stored.lines_of(numbers))
                if labels is not None:
                    chosen = parser.may_be_of(lines, labels)
                    lines, numbers = [lines[i] for i in chosen], numbers[chosen]
                batch = parser.parse(lines, numbers)
            else:
                batch = parser.parse_records(self._stored.records(numbers), numbers, self.format)
            if len(batch) < len(numbers):
                blank = BadLine(self._path, int(np.setdiff1d(numbers, batch.numbers)[0]) + 1, "is blank")
                bad = min([*skipped.examples[:1], blank], key=lambda bad: bad.line)
                raise PilekitError(f"{bad}; its index has a document there: make the index again with `pilekit index`")
        return batch if labels is None else batch.where([label in labels for label in batch.subsets])

    def increasing(self, numbers: npt.NDArray[np.int64]) -> Iterator[Document]:
        """Yield the documents of these increasing numbers, int64; none waits in memory."""
        if isinstance(self._stored, LinesByNumber | LinesInOrder):
            records: Iterator[object] = map(_record, self._stored.lines_of(numbers))
        else:
            records = self._stored.records(numbers)
        # Records come first in the zip: so their iterator runs to its end and holds the decoded row group.
        with self._explain_change():
            for record, number in zip(records, numbers, strict=True):
                yield self._document(int(number), record)

    @contextmanager
    def _explain_change(self) -> Iterator[None]:
        """Raise `ShardChanged` instead of another error if the shard changed after its index was made."""
        try:
            yield
        except PilekitError as error:
            if self._index is None or is_url(self.shard.path):  # reading itself compares the tag that a store gives
                raise
            why = changed_since(self._index, self.shard.path)
            if why is None:
                raise
            raise ShardChanged(
                f"{self._path}: was changed since its index was made: {self._index.path} {why}; make "
                "the index again with `pilekit index`, and run again"
            ) from error

    def _document(self, number: int, record: object) -> Document:
        try:
            if isinstance(record, BadRecord):
                raise record
            text, subset = document_of(record, self.format)
        except BadRecord as bad:
            raise PilekitError(f"{self._path}: number {number:,} is no document: line {number + 1:,} {bad}") from None
        assert isinstance(record, dict)
        return Document(text, meta_of(record, self.format.text_field), subset, number, self.shard.name)

    def _check_number(self, number: int) -> int:
        """The number as an int; `PilekitError` if the shard cannot have it."""
        try:
            number = operator.index(number)
        except TypeError:
            raise PilekitError(f"a document's number is an integer, not {shortened(repr(number), 80)}") from None
        lines = self._stored.lines
        if number < 0:
            raise PilekitError(f"{self._path}: has no document {number:,}: numbers begin at 0")
        if lines is not None and number >= lines:
            raise no_such_number(self._path, number, lines)
        return number


OPEN_SHARDS = 32
"""The most recently used files stay open: the Pile has 30 shards, and opening one in a store costs a request."""


class OpenReaders:
    """The readers of a corpus's shards; `indexes` has one index per shard, in order. Threads must not share it.

    cache   keeps frames of remote shards on disk

    All shards together hold 64 MiB of decoded frames. A corpus of up to 128 MiB is held whole, because a stream reads
    each document many times. Files and frames are not pickled. After a fork each process opens its own files, because
    parent and child would share one file position.
    """

    def __init__(self, corpus: Corpus, indexes: Sequence[ShardIndex], cache: FrameCache | None = None):
        self.corpus, self.indexes, self.cache = corpus, indexes, cache
        self._start()

    def reader(self, shard: int) -> DocumentReader:
        """The reader of a shard, by its place in the corpus; valid until the next call."""
        if self._process != os.getpid():
            self._start()
        reader = self._readers.get(shard)
        if reader is None:
            reader = self._readers[shard] = DocumentReader(
                self.corpus.shards[shard],
                self.indexes[shard],
                manifest=self.corpus.manifest,
                frames=self._frames,
                cache=self.cache,
            )
            if len(self._readers) > OPEN_SHARDS:
                self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(shard)
        return reader

    def close(self) -> None:
        """Close all files and drop all frames; they are opened again when they are needed."""
        for reader in self._readers.values():
            reader.close()
        self._start()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenReaders, (self.corpus, self.indexes, self.cache)

    def _start(self) -> None:
        self._process = os.getpid()
        self._readers: OrderedDict[int, DocumentReader] = OrderedDict()
        size = sum(index.header.content_bytes for index in self.indexes)
        self._frames: FrameLRU = FrameLRU(whole=size <= WHOLE_BYTES)


def _record(line: Line) -> object:
    """The decoded line, or the `BadRecord` with the reason."""
    if not bytes(line).strip():
        return BadRecord("is blank")
    record = record_of(line)
    if isinstance(record, BadRecord):
        return record
    try:
        # orjson makes floats of integers past 64 bits.
        return msgspec.json.decode(line) if _has_float(record) else record
    except (msgspec.DecodeError, RecursionError):
        return record


def _has_float(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_float, value.values()))
    return isinstance(value, float) or (isinstance(value, list) and any(map(_has_float, value)))
