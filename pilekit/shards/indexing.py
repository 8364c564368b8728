"""Make indexes: read a shard once, note what an index holds, write it, under a lock.

A scan costs little beside reading: the lines are decoded as everywhere, a batch of texts is measured and hashed in two
calls, the decompressed bytes are hashed in the decoding thread. Rows are written as they come, in groups of 100,000, so
memory is that of reading and 32 bytes a frame.

The index goes beside the shard or, where nothing can be made there (a read-only folder, a URL), into the cache folder.
It appears under its name when it is complete; of several processes that want one, one builds it and the others take it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import xxhash

from pilekit import __version__
from pilekit.corpus import Corpus, Manifest, Shard
from pilekit.corpus.shard import STANDARD_INPUT, is_url
from pilekit.documents import DocumentBatch
from pilekit.engine import Advance, map_shards, usable_cpus
from pilekit.errors import PilekitError, visible
from pilekit.shards.atomic import write_atomically
from pilekit.shards.damage import BadLine, SkippedLines
from pilekit.shards.fingerprint import Fingerprint, fingerprint
from pilekit.shards.frame_lines import FrameLines
from pilekit.shards.index import (
    FORMAT,
    ROWS_PER_GROUP,
    Frames,
    IndexHeader,
    ShardIndex,
    find_index,
    index_metadata,
    index_places,
    index_schema,
)
from pilekit.shards.locking import locked
from pilekit.shards.opening import is_parquet, open_stored, storage_of
from pilekit.shards.reading import OnError, line_blocks, located_errors, record_format
from pilekit.shards.records import LineParser

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

WRITTEN_BYTES = 64 << 20
"""Rows are written when they take so much memory, however few: labels may be long."""
READ_BYTES = 1 << 20


@dataclass
class _TellingSkippedLines(SkippedLines):
    """Skipped lines of which each is told."""

    on_bad: Callable[[BadLine], None] | None = None

    def add(self, bad: BadLine) -> None:
        """Count one bad line, and tell of it."""
        SkippedLines.add(self, bad)
        if self.on_bad is not None:
            self.on_bad(bad)


class IndexScan(Iterator["pa.RecordBatch"]):
    """Reads a shard once, yielding the rows of its index; the rest is known when it is exhausted.

    lines           lines read so far
    skipped         bad lines passed over so far
    content_bytes   decompressed bytes so far; for Parquet as its metadata tells them
    frames          the `Frames`, at the end; where the shard is damaged, as far as it was read
    """

    frames: Frames

    def __init__(
        self,
        shard: Shard,
        parser: LineParser,
        skipped: SkippedLines,
        advance: Advance | None,
        ahead: bool,
        on_stored: Callable[[bytes], None] | None,
    ):
        self.lines = self.content_bytes = 0
        self.skipped, self.format = skipped, parser.format
        self._shard, self._parser, self._on_stored = shard, parser, on_stored
        self._hash = xxhash.xxh3_128()
        self._parquet = is_parquet(shard.path)
        self._batches = self._rows_of_parquet(advance) if self._parquet else self._rows(advance, ahead)

    @property
    def content_hash(self) -> str:
        """The xxh3_128 of the decompressed bytes so far, in hexadecimal; "" for Parquet."""
        return "" if self._parquet else self._hash.hexdigest()

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def close(self) -> None:
        """Stop reading: the decoding thread ends and the file is closed."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _rows(self, advance: Advance | None, ahead: bool) -> Generator[pa.RecordBatch, None, None]:
        path = self._shard.path
        storage = storage_of(path)
        frame_lines = FrameLines(path, marks=storage == "plain")
        if storage != "zstd":
            frame_lines.begin_frame(0, 0)

        def hear(piece: bytes) -> None:
            self.content_bytes += len(piece)
            self._hash.update(piece)

        listening = line_blocks(
            path,
            advance=advance,
            ahead=ahead,
            on_stored=self._on_stored,
            on_frame=lambda number, offset: frame_lines.begin_frame(offset, self.content_bytes),
            on_text=hear,
        )
        try:
            with located_errors(path, lambda: self.lines), listening as blocks:
                for block in blocks:
                    lines = block.lines()
                    frame_lines.pass_lines(block, len(lines))
                    self.lines += len(lines)
                    yield from _record_batch(self._parser.parse(lines, np.arange(self.lines - len(lines), self.lines)))
        finally:
            self.frames = frame_lines.frames(self.content_bytes)

    def _rows_of_parquet(self, advance: Advance | None) -> Generator[pa.RecordBatch, None, None]:
        from pilekit.shards.parquet import parquet_batches, row_groups
        from pilekit.shards.reading import MAX_DOCUMENT_BYTES

        path = self._shard.path
        with open_stored(path)[0] as file:
            rows, sizes = row_groups(file, path)
            if self._on_stored is not None:
                file.seek(0)
                with located_errors(path, lambda: 0):
                    while piece := file.read(READ_BYTES):
                        self._on_stored(piece)
            for batch in parquet_batches(file, self._parser, 0, MAX_DOCUMENT_BYTES, advance):
                self.lines = int(batch.numbers[-1]) + 1
                yield from _record_batch(batch)
        self.lines, self.content_bytes = sum(rows), sum(sizes)
        first_rows, before = (np.cumsum([0, *counts[:-1]], dtype=np.int64)[: len(rows)] for counts in (rows, sizes))
        self.frames = Frames(np.arange(len(rows)), before, first_rows, np.zeros_like(before))


def _record_batch(batch: DocumentBatch) -> Iterator[pa.RecordBatch]:
    """The rows of these documents; nothing where there are none."""
    import pyarrow as pa

    if len(batch):
        sizes, hashes = batch.text_hashes()
        columns = [batch.numbers, pa.array(batch.subsets, pa.string()).dictionary_encode(), sizes, hashes]
        yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=index_schema())


def scan_shard(
    shard: Shard,
    *,
    manifest: Manifest | None = None,
    on_error: OnError = "raise",
    advance: Advance | None = None,
    ahead: bool = True,
    on_bad: Callable[[BadLine], None] | None = None,
    on_stored: Callable[[bytes], None] | None = None,
) -> IndexScan:
    """Read a shard for what its index holds; arguments as in `read`, and two listeners.

    on_bad      told of each bad line, which is then skipped whatever `on_error` says
    on_stored   given all stored bytes in order, from the decoding thread

    A damaged shard is a `PilekitError`, raised from the scan after all rows before the damage.
    """
    if shard.path == STANDARD_INPUT:
        raise PilekitError("standard input (-) has no index, as it cannot be read again; save it to a file first")
    skipped = _TellingSkippedLines(on_bad=on_bad)
    skip = on_error == "skip" or on_bad is not None
    parser = LineParser(shard.path, shard.name, record_format(manifest), None, skipped if skip else None)
    return IndexScan(shard, parser, skipped, advance, ahead, on_stored)


def index_of(
    shard: Shard,
    *,
    manifest: Manifest | None = None,
    on_error: OnError = "raise",
    advance: Advance | None = None,
    ahead: bool = True,
) -> ShardIndex:
    """The shard's index if there is one that fits, else a new one; of several processes that want it, one builds it."""
    index = find_index(shard, manifest, tell=False)
    if index is not None:
        return index
    now = fingerprint(shard.path)
    with ExitStack() as held:
        place = _lock_place(shard, index_places(shard), held)
        index = find_index(shard, manifest, tell=False)  # Another process may have built it while this one waited.
        return index or _build(shard, place, now, manifest, on_error, advance, ahead)


def build_index(
    shard: Shard,
    *,
    manifest: Manifest | None = None,
    on_error: OnError = "raise",
    advance: Advance | None = None,
    ahead: bool = True,
    place: str | None = None,
    content_hash: str | None = None,
) -> ShardIndex:
    """Read the shard and write its index, whether there is one or not.

    place          where it goes; None: beside the shard or, where nothing can be made there, into the cache folder
    content_hash   what the hash of the decompressed bytes must be, else it is a `PilekitError`

    On any error nothing is written, and an index that was there stays.
    """
    now = fingerprint(shard.path)
    with ExitStack() as held:
        place = _lock_place(shard, index_places(shard) if place is None else [place], held)
        return _build(shard, place, now, manifest, on_error, advance, ahead, content_hash)


def index_corpus(
    corpus: Corpus,
    *,
    on_error: OnError = "raise",
    jobs: int | None = None,
    advance: Advance | None = None,
) -> list[ShardIndex]:
    """An index of every shard, in their order; those that are there and fit are kept.

    jobs      how many shards at a time, each in a process of its own; None: the usable CPUs
    advance   called with each further amount of stored bytes dealt with
    """
    found = [find_index(shard, corpus.manifest, tell=False) for shard in corpus.shards]
    missing = [shard for shard, index in zip(corpus.shards, found, strict=True) if index is None]
    if advance is not None:
        advance(sum(index.header.size for index in found if index is not None))
    if any(shard.path.startswith("memory://") for shard in missing):
        jobs = 1  # Only this process has it.
    processes = min(usable_cpus() if jobs is None else jobs, len(missing))
    build = functools.partial(
        _index_shard,
        manifest=corpus.manifest,
        on_error=on_error,
        ahead=processes <= 1 or 2 * processes <= usable_cpus(),
    )
    names = [shard.name for shard in missing]
    built = iter(map_shards(build, missing, jobs=jobs, names=names, on_progress=advance))
    return [index or next(built) for index in found]


def _index_shard(shard: Shard, advance: Advance, *, manifest: Manifest, on_error: OnError, ahead: bool) -> ShardIndex:
    return index_of(shard, manifest=manifest, on_error=on_error, advance=advance, ahead=ahead)


def _lock_place(shard: Shard, places: list[str], held: ExitStack) -> str:
    """Lock the first of the places at which something can be made."""
    places = [place for place in places if not is_url(place)]
    if not places:
        raise PilekitError(f"{visible(shard.path)}: has no place for an index; save it to a file first")
    for place in places:

        def waiting(place: str = place) -> None:
            logger.warning("%s: waiting for another process that makes it", visible(place))

        try:
            # With `wait` a lock that fails is one that cannot be made.
            held.enter_context(locked(Path(f"{place}.lock"), waiting=waiting))
            return place
        except PilekitError:
            if place == places[-1]:
                raise
    raise AssertionError("the last place is returned or raises")


def _build(
    shard: Shard,
    place: str,
    now: Fingerprint,
    manifest: Manifest | None,
    on_error: OnError,
    advance: Advance | None,
    ahead: bool,
    content_hash: str | None = None,
) -> ShardIndex:
    """Write the index of the shard, whose fingerprint is `now`, to `place`, which is locked."""
    with (
        scan_shard(shard, manifest=manifest, on_error=on_error, advance=advance, ahead=ahead) as scan,
        write_atomically(place) as file,
    ):
        import pyarrow.parquet as pq

        with pq.ParquetWriter(
            file, index_schema(), compression="zstd", use_dictionary=["subset"], write_page_checksum=True
        ) as writer:
            documents = text_bytes = 0
            for rows in _row_groups(scan):
                writer.write_table(rows, row_group_size=len(rows))
                documents += len(rows)
                text_bytes += int(rows["text_bytes"].to_numpy().sum())
            if fingerprint(shard.path) != now:
                raise PilekitError(f"{visible(shard.path)}: was changed while it was read; index it again")
            if content_hash not in (None, scan.content_hash):
                raise PilekitError(f"{visible(shard.path)}: holds other text than it should")
            header = IndexHeader(
                format=FORMAT,
                pilekit=__version__,
                storage=storage_of(shard.path),
                text_field=scan.format.text_field,
                label_path=".".join(scan.format.label_path),
                size=now.size,
                sample=now.sample,
                lines=scan.lines,
                documents=documents,
                text_bytes=text_bytes,
                content_bytes=scan.content_bytes,
                content_hash=scan.content_hash,
                skipped=scan.skipped.count,
                examples=[(bad.line, bad.reason) for bad in scan.skipped.examples],
            )
            writer.add_key_value_metadata(index_metadata(header, scan.frames))
    return ShardIndex(place, header, scan.frames, built=True)


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in tables of 100,000, of fewer where they take much memory."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        rows, size = sum(map(len, held)), sum(batch.nbytes for batch in held)
        if rows >= ROWS_PER_GROUP or size >= WRITTEN_BYTES:
            # Labels of one table have one dictionary, or they would be written one by one.
            table = pa.Table.from_batches(held).unify_dictionaries()
            whole = rows // ROWS_PER_GROUP * ROWS_PER_GROUP or rows
            for begin in range(0, whole, ROWS_PER_GROUP):
                yield table.slice(begin, min(ROWS_PER_GROUP, whole - begin))
            held = table.slice(whole).to_batches()
    if held:
        yield pa.Table.from_batches(held).unify_dictionaries()
