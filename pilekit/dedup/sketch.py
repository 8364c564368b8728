"""Make the sketch of a shard, in one pass over it: exact hashes, signatures, band keys.

Signatures take most of the time and no GIL, so a thread makes those of one batch while the next is read and decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pilekit import __version__
from pilekit.corpus import Manifest, Shard, resolve_subsets
from pilekit.dedup.bands import Bands
from pilekit.dedup.minhash import band_keys, permutations, signatures
from pilekit.dedup.shingles import UInt64
from pilekit.dedup.sketch_file import (
    FORMAT,
    ROWS_PER_GROUP,
    SUFFIX,
    ShardSketch,
    SketchHeader,
    header_metadata,
    key_column,
    load_sketch,
    sketch_schema,
    sketch_writer,
)
from pilekit.documents import MAX_SUBSETS, DocumentBatch
from pilekit.engine import Advance, usable_cpus
from pilekit.errors import PilekitError, visible
from pilekit.shards.atomic import write_atomically
from pilekit.shards.damage import BadLine
from pilekit.shards.fingerprint import fingerprint
from pilekit.shards.reading import OnError, read, record_format
from pilekit.shards.records import bad_line_error

__all__ = ["ShardSketch", "SketchHeader", "key_column", "load_sketch", "sketch_shard"]

MAX_LINES = 1 << 32


def sketch_shard(
    shard: Shard,
    advance: Advance,
    *,
    bands: Bands,
    ngram: int,
    seed: int,
    subsets: Sequence[str] | None,
    manifest: Manifest | None,
    on_error: OnError,
    folder: Path,
    threads: int | None = None,
) -> ShardSketch:
    """Read the shard once and write its sketch into `folder`; one that is there and was made of the same is taken.

    advance    called with each further amount of stored bytes dealt with
    subsets    documents of these are sketched, in any spelling that the manifest knows, all others only counted
    threads    how many CPUs this shard may use; None: all usable ones. The sketch does not depend on it

    A sketch that is there but was made of anything else is a `PilekitError` that names what differs.
    """
    now = fingerprint(shard.path)
    format = record_format(manifest)
    made_of: dict[str, Any] = {
        "shard": shard.name,
        "size": now.size,
        "sample": now.sample,
        "text_field": format.text_field,
        "label_path": ".".join(format.label_path),
        "subsets": None if subsets is None else sorted(resolve_subsets(*subsets, manifest=manifest)),
        "ngram": ngram,
        "num_perm": bands.num_perm,
        "seed": seed,
        "bands": bands.bands,
        "rows": bands.rows,
    }
    place = folder / f"{shard.name}{SUFFIX}"
    if place.exists():
        advance(now.size)
        return _taken(load_sketch(place), made_of, shard, on_error)

    threads = usable_cpus() if threads is None else threads
    selected = None if made_of["subsets"] is None else frozenset(made_of["subsets"])
    counts = _Counts()
    with write_atomically(place) as file, sketch_writer(file, bands.bands) as writer:
        with read(shard, None, on_error, manifest=manifest, advance=advance, ahead=threads > 1) as reader:
            chosen = counts.counted(reader, selected)
            rows = _RowGroups(writer, bands.bands)
            for batch, keys in _with_keys(chosen, bands, ngram, seed, threads):
                rows.add(batch, keys)
            rows.flush()
        if fingerprint(shard.path) != now:
            raise PilekitError(f"{visible(shard.path)}: was changed while it was read; run again")
        header = SketchHeader(
            format=FORMAT,
            pilekit=__version__,
            lines=counts.lines,
            skipped=reader.skipped.count,
            examples=[(bad.line, bad.reason) for bad in reader.skipped.examples],
            counts=dict(sorted(counts.counts.items())),
            **made_of,
        )
        writer.add_key_value_metadata(header_metadata(header))
    return ShardSketch(str(place), header)


def _taken(sketch: ShardSketch, made_of: dict[str, Any], shard: Shard, on_error: OnError) -> ShardSketch:
    """The sketch, if it was made of the same."""
    for name, value in made_of.items():
        was = getattr(sketch.header, name)
        if was != value:
            raise PilekitError(
                f"{visible(sketch.path)}: was made with {name} {visible(str(was), 200)}, now it is "
                f"{visible(str(value), 200)}; use another folder, or remove this one"
            )
    if on_error == "raise" and sketch.header.skipped:
        line, reason = sketch.header.examples[0]
        raise bad_line_error(BadLine(shard.path, line, reason))
    return sketch


@dataclass
class _Counts:
    """Documents and bytes of each subset, and one more than the last document's number."""

    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    lines: int = 0

    def counted(self, batches: Iterator[DocumentBatch], selected: frozenset[str] | None) -> Iterator[DocumentBatch]:
        """Count all documents and yield the selected ones, in batches that are not empty."""
        for batch in batches:
            self.lines = int(batch.numbers[-1]) + 1
            if self.lines > MAX_LINES:
                raise PilekitError(f"{visible(batch.shard)}: has more than {MAX_LINES:,} lines; split it")
            for label, size in zip(batch.subsets, batch.text_bytes().tolist(), strict=True):
                documents, total = self.counts.get(label, (0, 0))
                self.counts[label] = documents + 1, total + size
            if len(self.counts) > MAX_SUBSETS:
                raise PilekitError(
                    f"more than {MAX_SUBSETS:,} different subset labels; set label_path in a manifest to where "
                    "records keep their subset, and give it with --manifest"
                )
            if selected is not None:
                batch = batch.where([label in selected for label in batch.subsets])
            if len(batch):
                yield batch


def _with_keys(
    batches: Iterator[DocumentBatch], bands: Bands, ngram: int, seed: int, threads: int
) -> Iterator[tuple[DocumentBatch, UInt64]]:
    """Each batch with its band keys, uint64 [bands, documents]."""
    a, b = permutations(bands.num_perm, seed)

    def keys(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> UInt64:
        return band_keys(signatures(data, offsets, ngram, a, b), bands.bands, bands.rows)

    if threads <= 1:  # A thread of its own would only get into the way.
        for batch in batches:
            yield batch, keys(*batch.utf8())
        return
    waiting: deque[tuple[DocumentBatch, Future[UInt64]]] = deque()
    with ThreadPoolExecutor(threads - 1) as pool:
        for batch in batches:
            waiting.append((batch, pool.submit(keys, *batch.utf8())))
            if len(waiting) > threads:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()


class _RowGroups:
    """Gathers rows and writes them in groups of the same size, so that a sketch does not depend on batches."""

    def __init__(self, writer: pq.ParquetWriter, bands: int):
        self._writer, self._schema = writer, sketch_schema(bands)
        self._numbers = np.empty(ROWS_PER_GROUP, dtype=np.uint32)
        self._sizes = np.empty(ROWS_PER_GROUP, dtype=np.uint32)
        self._labels: list[str] = []
        self._words = np.empty((2 + bands, ROWS_PER_GROUP), dtype=np.uint64)

    def add(self, batch: DocumentBatch, keys: UInt64) -> None:
        """Take documents and their band keys, uint64 [bands, documents]."""
        data, offsets = batch.utf8()
        words = np.concatenate([_text_hashes(data, offsets), keys])
        done = 0
        while done < len(batch):
            first = len(self._labels)
            taken = min(len(batch) - done, ROWS_PER_GROUP - first)
            here, there = slice(first, first + taken), slice(done, done + taken)
            self._numbers[here] = batch.numbers[there]
            self._sizes[here] = np.diff(offsets[done : done + taken + 1])
            self._words[:, here] = words[:, there]
            self._labels += batch.subsets[there]
            done += taken
            if len(self._labels) == ROWS_PER_GROUP:
                self.flush()

    def flush(self) -> None:
        """Write what is held as one row group."""
        count = len(self._labels)
        if count:
            labels = pa.array(self._labels, pa.string()).dictionary_encode()
            columns = [self._numbers[:count], self._sizes[:count], labels, *self._words[:, :count]]
            table = pa.Table.from_arrays([pa.array(column) for column in columns], schema=self._schema)
            self._writer.write_table(table, row_group_size=ROWS_PER_GROUP)
            self._labels = []


def _text_hashes(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> UInt64:
    """The xxh3_128 of each text, high half and low half, uint64 [2, documents]."""
    view, ends = data.data, offsets.tolist()
    digests = b"".join([xxhash.xxh3_128_digest(view[begin:end]) for begin, end in pairwise(ends)])
    return np.frombuffer(digests, dtype=">u8").reshape(-1, 2).T.astype(np.uint64)
