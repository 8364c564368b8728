"""Build indexes: one scan of the shard, rows written in groups of 100,000, under a lock.

The index goes beside the shard or, where that cannot be written (a read-only folder, a URL), into the cache folder. It
appears under its name when it is complete. Of several processes that want it, one builds it and the others wait.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Unpack

import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.file_lock import locked
from pilekit.corpus import Corpus, Described, Manifest, Shard, Source, subset_names
from pilekit.corpus.shard import is_url
from pilekit.documents import RecordFormat, check_labels
from pilekit.errors import PilekitError, message_logger
from pilekit.shards.corpus_job import CorpusJob, Share, await_files
from pilekit.shards.fingerprint import Fingerprint, changed_at, fingerprint
from pilekit.shards.index.document_rows import DocumentRows, load_scan
from pilekit.shards.index.format import ShardIndex, find_index, find_indexes, index_places, index_schema, load_index
from pilekit.shards.index.metadata import INDEX, ROWS_PER_GROUP, Frames, IndexHeader, index_metadata
from pilekit.shards.index.scan import ShardScan
from pilekit.shards.read.change_check import check_version, version_of
from pilekit.shards.read.open import ReadOptions, storage_of
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import OnError
from pilekit.shards.work import PartWork, takes
from pilekit.version import __version__
from pilekit.workers import Advance

if TYPE_CHECKING:
    import pyarrow as pa

logger = message_logger(__name__)

WRITTEN_BYTES = 64 << 20
"""Rows are written once they take this much memory, even if they are few: labels may be long."""


def index_of(
    shard: Shard,
    options: ReadOptions | None = None,
    *,
    manifest: Manifest | None = None,
    whole: bool = False,
    place: str | None = None,
    on_error: OnError = "raise",
) -> ShardIndex:
    """The shard's index: an existing one that fits, else a new one; of several processes, one builds it.

    options   say how the shard is read for a new index
    whole     also reads all rows of an existing index, and builds a new one if they are damaged
    place     the path of a new index, which no other process writes; None: beside the shard, else in the cache folder
    """
    find = functools.partial(find_index, shard, manifest, warn=False, whole=whole)
    if index := find():
        return index
    # No lock at a given place: in a cluster, a node that hangs would hold it.
    with _locked_place(shard) if place is None else nullcontext(place) as place:
        # Another process may have built it while this one waited.
        return find() or build_index(shard, place, options, manifest=manifest, on_error=on_error)


def build_index(
    shard: Shard,
    place: str,
    options: ReadOptions | None = None,
    *,
    manifest: Manifest | None = None,
    on_error: OnError = "raise",
    content_hash: str | None = None,
) -> ShardIndex:
    """Read the shard and write its index to `place`, which no other process writes, even if an index exists.

    content_hash   the hash that the decompressed bytes must have; another hash is a `PilekitError`

    On any error nothing is written, and an existing index stays.
    """
    version, now = version_of(shard.path), fingerprint(shard.path)
    scan = ShardScan(shard, options, manifest=manifest, on_error=on_error)

    def checked_fingerprint() -> Fingerprint:
        check_version(shard.path, version)
        if content_hash not in (None, scan.content_hash):
            raise PilekitError(f"{shard.path}: holds other text than it should")
        return now

    with closing(scan.rows()) as rows:
        return write_index(place, shard.path, scan, rows, checked_fingerprint)


@takes(PartWork)
def index_corpus(
    corpus: Corpus | Source,
    *,
    manifest: Described = None,
    whole: bool = True,
    found: Sequence[ShardIndex | None] | None = None,
    **work: Unpack[PartWork],
) -> list[ShardIndex]:
    """An index of every shard, in their order; existing indexes that fit and are undamaged are kept.

    corpus    a `Corpus`, or one or several paths, globs or URLs
    manifest  describes the corpus at a path, as for `Corpus`
    whole     False: do not read the rows of existing indexes, so damage in them shows later
    found     the result of `find_indexes`, if it is known
    part      (I, N): only the shards of `corpus.part(part)`
    work      on_error, jobs, advance, cluster: see `PartWork`
    """
    corpus = Corpus.of(corpus, manifest)
    job = CorpusJob(corpus, **work)
    indexes = find_indexes(corpus.part(job.part), whole=whole) if found is None else found
    missing = [shard for shard, index in zip(job.shards, indexes, strict=True) if index is None]
    if job.advance is not None:
        job.advance(sum(index.header.size for index in indexes if index is not None))
    build = functools.partial(_place_of_index, manifest=corpus.manifest, on_error=job.on_error)
    load_scan(job, missing)
    items = [(shard, None if job.cluster is None else _place_for(shard)) for shard in missing]
    built = iter(list(job.each(build, items)))
    return [index or _load_built(*next(built), corpus.manifest) for index in indexes]


def _place_for(shard: Shard) -> str:
    """The first place of the shard's index that a cluster, which has this process's user, can write."""
    for place in index_places(shard)[:-1]:
        if not is_url(place) and os.access(Path(place).parent, os.W_OK):
            return place
    return next(reversed(index_places(shard)), "")


def _place_of_index(
    item: tuple[Shard, str | None], advance: Advance, *, manifest: Manifest, on_error: OnError, share: Share
) -> tuple[str, bool]:
    """Build the index if there is none; returns where it is, because its frames may take megabytes."""
    shard, place = item
    options = share.read_options(advance)
    index = index_of(shard, options, manifest=manifest, whole=True, place=place, on_error=on_error)
    return index.path, index.built


def _load_built(place: str, built: bool, manifest: Manifest) -> ShardIndex:
    if not is_url(place):  # A URL was found at the second try.
        await_files([Path(place)])
    return replace(load_index(place), names=subset_names(manifest), built=built)


@contextmanager
def _locked_place(shard: Shard) -> Iterator[str]:
    """Lock the first place of the shard's index that can be written, and yield it."""
    fingerprint(shard.path)  # Nothing is made for a shard that cannot be read.
    places = [place for place in index_places(shard) if not is_url(place)]
    if not places:
        raise PilekitError(f"{shard.path}: has no place for an index; save it to a file first")
    with ExitStack() as resources:
        for place in places:
            warn = functools.partial(logger.warning, "%s: waiting for another process that builds it", place)
            try:
                resources.enter_context(locked(Path(f"{place}.lock"), waiting=warn))
                break
            except PilekitError as error:  # The lock's file cannot be made.
                if place == places[-1]:
                    raise PilekitError(f"{error}; $PILEKIT_CACHE can name another folder for indexes") from error
        yield place


class Scan(Protocol):
    """The facts about a whole shard, complete when its rows have been read; `ShardScan` has them."""

    skipped: SkippedLines
    format: RecordFormat
    frames: Frames

    @property
    def lines(self) -> int:
        """The number of its lines, bad and blank lines included."""

    @property
    def content_bytes(self) -> int:
        """How many bytes its text has."""

    @property
    def content_hash(self) -> str:
        """The xxh3_128 of the decompressed bytes, in hexadecimal."""


def write_index(
    place: str,
    path: str,
    scan: Scan,
    rows: Iterable[DocumentRows],
    checked_fingerprint: Callable[[], Fingerprint],
    rows_per_group: int = ROWS_PER_GROUP,
) -> ShardIndex:
    """Write the index of the shard at `path` to `place`, which no other process writes.

    checked_fingerprint   is called after the last row: it returns the shard's fingerprint, or raises the shard's error
    """
    with write_atomically(place) as file:
        import pyarrow.parquet as pq

        from pilekit.artifacts.parquet_rows import in_row_groups

        with pq.ParquetWriter(
            file, index_schema(), compression="zstd", use_dictionary=["subset"], write_page_checksum=True
        ) as writer:
            documents = text_bytes = 0
            subsets: set[str] = set()
            for table in in_row_groups(_batches(rows), rows_per_group, WRITTEN_BYTES):
                writer.write_table(table, row_group_size=len(table))
                for part in table["subset"].chunks:  # unique() would import pyarrow.compute: 0.1 s
                    names = part.dictionary.to_pylist()
                    subsets.update(names[code] for code in np.flatnonzero(np.bincount(part.indices.to_numpy())))
                check_labels(subsets, path=path)
                documents += len(table)
                text_bytes += int(table["text_bytes"].to_numpy().sum())
            now, changed = checked_fingerprint(), changed_at(path)
            header = IndexHeader(
                format=INDEX.format,
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
                subsets=sorted(subsets),
            )
            writer.add_key_value_metadata(index_metadata(header, scan.frames))
        file.flush()
        written = os.fstat(file.fileno())
        if written.st_mtime_ns < changed:  # by another clock: an index is never older than its shard
            os.utime(file.fileno(), ns=(written.st_atime_ns, changed))
    return ShardIndex(place, header, scan.frames, scan.format.names, built=True)


def _batches(parts: Iterable[DocumentRows]) -> Iterator[pa.RecordBatch]:
    """The rows as batches of an index's columns."""
    import pyarrow as pa

    for part in parts:
        if len(part.numbers):
            codes = pa.array(part.codes, pa.int32())
            subsets = pa.DictionaryArray.from_arrays(codes, pa.array(part.labels, pa.string()))
            columns = [part.numbers, subsets, part.text_bytes, part.text_hashes]
            yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=index_schema())
