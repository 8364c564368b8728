"""Make indexes: one scan of the shard, rows written as they come in groups of 100,000, under a lock.

The index goes beside the shard or, where nothing can be made there (a read-only folder, a URL), into the cache folder.
It appears under its name when it is complete; of several processes that want one, one builds it and the others take it.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pilekit import __version__
from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.file_lock import locked
from pilekit.corpus import Corpus, Manifest, Shard
from pilekit.corpus.shard import is_url
from pilekit.documents import MAX_SUBSETS, RecordFormat
from pilekit.engine import Advance, map_shards
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import Fingerprint, changed_at, fingerprint
from pilekit.shards.index.format import Frames, ShardIndex, find_index, find_indexes, index_places, index_schema
from pilekit.shards.index.metadata import FORMAT, ROWS_PER_GROUP, IndexHeader, index_metadata
from pilekit.shards.index.scan import IndexScan, scan_shard
from pilekit.shards.processes import decompress_ahead, processes_for
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.open import storage_of
from pilekit.shards.read.reader import OnError
from pilekit.shards.read.unchanged import check_version, version_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["IndexScan", "build_index", "index_corpus", "index_of", "scan_shard"]

logger = logging.getLogger(__name__)

WRITTEN_BYTES = 64 << 20
"""Rows are written when they take so much memory, however few: labels may be long."""


def index_of(
    shard: Shard,
    *,
    manifest: Manifest | None = None,
    on_error: OnError = "raise",
    advance: Advance | None = None,
    ahead: bool = True,
    whole: bool = False,
) -> ShardIndex:
    """The shard's index if there is one that fits, else a new one; of several processes that want it, one builds it.

    whole   one with damaged rows, which else shows when they are read, is made anew
    """
    index = find_index(shard, manifest, tell=False, whole=whole)
    if index is not None:
        return index
    with ExitStack() as held:
        place = _lock_place(shard, index_places(shard), held)
        # Another process may have built it while this one waited.
        index = find_index(shard, manifest, tell=False, whole=whole)
        return index or _build(shard, place, manifest, on_error, advance, ahead)


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
    with ExitStack() as held:
        place = _lock_place(shard, index_places(shard) if place is None else [place], held)
        return _build(shard, place, manifest, on_error, advance, ahead, content_hash)


def index_corpus(
    corpus: Corpus | str | Path | Sequence[str | Path],
    *,
    on_error: OnError = "raise",
    jobs: int | None = None,
    advance: Advance | None = None,
    whole: bool = True,
    found: Sequence[ShardIndex | None] | None = None,
) -> list[ShardIndex]:
    """An index of every shard, in their order; those that are there, whole and fit are kept.

    corpus    a `Corpus`, or what makes one: a path, glob or URL, or several
    jobs      how many shards at a time, each in a process of its own; None: the usable CPUs, or fewer for shards so
              small that starting processes would take longer
    advance   called with each further amount of stored bytes dealt with
    whole     False: no rows are read, so one with damaged rows is kept; that shows when they are read
    found     what `find_indexes` has just found
    """
    corpus = corpus if isinstance(corpus, Corpus) else Corpus(corpus)
    found = find_indexes(corpus, whole=whole) if found is None else found
    missing = [shard for shard, index in zip(corpus.shards, found, strict=True) if index is None]
    if advance is not None:
        advance(sum(index.header.size for index in found if index is not None))
    processes = processes_for(missing, jobs)
    build = functools.partial(
        _index_shard,
        manifest=corpus.manifest,
        on_error=on_error,
        ahead=decompress_ahead(processes),
    )
    names = [shard.name for shard in missing]
    built = iter(map_shards(build, missing, jobs=processes, names=names, on_progress=advance))
    return [index or next(built) for index in found]


def _index_shard(shard: Shard, advance: Advance, *, manifest: Manifest, on_error: OnError, ahead: bool) -> ShardIndex:
    return index_of(shard, manifest=manifest, on_error=on_error, advance=advance, ahead=ahead, whole=True)


def _lock_place(shard: Shard, places: list[str], held: ExitStack) -> str:
    """Lock the first of the places at which something can be made; nothing is made for a shard that is not there."""
    fingerprint(shard.path)
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
        except PilekitError as error:
            if place == places[-1]:
                raise PilekitError(f"{error}; $PILEKIT_CACHE can name another folder for indexes") from error
    raise AssertionError("the last place is returned or raises")


def _build(
    shard: Shard,
    place: str,
    manifest: Manifest | None,
    on_error: OnError,
    advance: Advance | None,
    ahead: bool,
    content_hash: str | None = None,
) -> ShardIndex:
    """Write the index of the shard to `place`, which is locked."""
    version, now = version_of(shard.path), fingerprint(shard.path)
    with scan_shard(shard, manifest=manifest, on_error=on_error, advance=advance, ahead=ahead) as scan:

        def made_of() -> Fingerprint:
            check_version(shard.path, version)
            if content_hash not in (None, scan.content_hash):
                raise PilekitError(f"{visible(shard.path)}: holds other text than it should")
            return now

        return write_index(place, shard.path, scan, made_of)


class Scan(Protocol):
    """What goes through a shard for its index, as `IndexScan` does; all but the rows is asked for behind the last."""

    lines: int
    content_bytes: int
    skipped: SkippedLines
    format: RecordFormat
    frames: Frames

    @property
    def content_hash(self) -> str: ...
    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


def write_index(place: str, path: str, scan: Scan, made_of: Callable[[], Fingerprint]) -> ShardIndex:
    """Write the index of the shard at `path` to `place`, where nobody else writes.

    made_of   gives the shard's fingerprint when all rows are read, or raises what is wrong with it
    """
    with write_atomically(place) as file:
        import pyarrow.parquet as pq

        with pq.ParquetWriter(
            file, index_schema(), compression="zstd", use_dictionary=["subset"], write_page_checksum=True
        ) as writer:
            documents = text_bytes = 0
            subsets: set[str] = set()
            for rows in _row_groups(iter(scan)):
                writer.write_table(rows, row_group_size=len(rows))
                if len(subsets) <= MAX_SUBSETS:
                    subsets.update(rows["subset"].unique().to_pylist())
                documents += len(rows)
                text_bytes += int(rows["text_bytes"].to_numpy().sum())
            now, changed = made_of(), changed_at(path)
            header = IndexHeader(
                format=FORMAT,
                pilekit=__version__,
                storage=storage_of(path),
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
                subsets=sorted(subsets)[: MAX_SUBSETS + 1],
            )
            writer.add_key_value_metadata(index_metadata(header, scan.frames))
        file.flush()
        written = os.fstat(file.fileno())
        if written.st_mtime_ns < changed:  # by another clock; an index is never older than its shard
            os.utime(file.fileno(), ns=(written.st_atime_ns, changed))
    return ShardIndex(place, header, scan.frames, built=True)


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in tables of 100,000, of fewer where they take much memory."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= ROWS_PER_GROUP or size >= WRITTEN_BYTES:
            # Labels of one table have one dictionary, or they would be written one by one.
            table = pa.Table.from_batches(held).unify_dictionaries()
            whole = rows // ROWS_PER_GROUP * ROWS_PER_GROUP or rows
            for begin in range(0, whole, ROWS_PER_GROUP):
                yield table.slice(begin, min(ROWS_PER_GROUP, whole - begin))
            held = table.slice(whole).to_batches()
            rows, size = rows - whole, sum(rest.nbytes for rest in held)
    if held:
        yield pa.Table.from_batches(held).unify_dictionaries()
