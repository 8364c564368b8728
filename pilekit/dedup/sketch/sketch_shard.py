"""Make the sketch of a shard, in one pass over it: exact hashes, signatures, band keys.

Signatures take a third of the time and no GIL, so a thread makes those of one batch while the next are decompressed and
decoded: one shard is read at 430 MB/s on two cores, and at 230 on one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pilekit import __version__
from pilekit.artifacts.atomic_write import write_atomically
from pilekit.corpus import Manifest, Shard, resolve_subsets
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.minhash import SEED, Int64, band_keys, permutations, signatures
from pilekit.dedup.sketch.shingles import Bytes, UInt64
from pilekit.dedup.sketch.sketch_format import (
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
from pilekit.documents import DocumentBatch
from pilekit.engine import Advance, usable_cpus
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import Inputs, changed_at, fingerprint
from pilekit.shards.read.damage import BadLine
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.reader import OnError, read, record_format
from pilekit.stats.counting import Counts

__all__ = ["ShardSketch", "SketchHeader", "key_column", "load_sketch", "sketch_shard"]

MAX_LINES = 1 << 32
"""Document numbers are written in 32 bits."""
MAX_THREADS = 2
"""For signatures: two keep up with the reading of one shard on any machine."""

LARGE_BYTES = 16 << 20
"""Signatures of longer texts are made before more is read."""


def sketch_shard(
    shard: Shard,
    advance: Advance,
    *,
    bands: Bands,
    ngram: int,
    subsets: Sequence[str] | None,
    manifest: Manifest | None,
    on_error: OnError,
    folder: Path,
    threads: int | None = None,
    inputs: Inputs | None = None,
) -> ShardSketch:
    """Read the shard once and write its sketch into `folder`, or take the sketch of an earlier run.

    advance    called with each further amount of stored bytes dealt with
    subsets    documents of these are sketched, in any spelling that the manifest knows, all others only counted
    threads    how many CPUs this shard may use; None: all usable ones. The sketch does not depend on it
    inputs     of the job: a shard that is not as it was when the job began is a `ShardChanged`

    The folder belongs to a job (`output_folder`), so the sketch in it was made of this shard with these settings.
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
        "seed": SEED,
        "bands": bands.bands,
        "rows": bands.rows,
    }
    place = folder / f"{shard.name}{SUFFIX}"
    if is_fresh(place, shard):
        sketch = load_sketch(place)
        if on_error == "raise" and sketch.header.skipped:
            line, reason = sketch.header.examples[0]
            raise bad_line_error(BadLine(shard.path, line, visible(reason)))
        advance(now.size)
        return sketch

    threads = usable_cpus() if threads is None else threads
    counts = Counts()
    with write_atomically(place) as file, sketch_writer(file, bands.bands) as writer:
        with read(shard, None, on_error, manifest=manifest, advance=advance, ahead=threads > 1) as reader:
            texts = _Texts(reader, counts, made_of["subsets"])
            rows = _RowGroups(writer, bands.bands, counts)
            for some, keys in _with_keys(texts, bands, ngram, threads):
                rows.add(some, keys)
                del some  # A large text is not to be held while the next is read.
            rows.flush()
        if inputs is not None:
            inputs.check(shard)
        documents = counts.lengths.sum(axis=1).tolist()
        header = SketchHeader(
            format=FORMAT,
            pilekit=__version__,
            lines=texts.lines,
            skipped=reader.skipped.count,
            examples=[(bad.line, bad.reason) for bad in reader.skipped.examples],
            counts={label: (documents[row], int(counts.bytes[row])) for label, row in sorted(counts.groups.items())},
            **made_of,
        )
        writer.add_key_value_metadata(header_metadata(header))
    return ShardSketch(str(place), header)


def is_fresh(place: Path, shard: Shard) -> bool:
    """Whether there is a sketch at `place` that is not older than its shard."""
    return place.exists() and changed_at(shard.path) <= changed_at(str(place))


class _Batch(NamedTuple):
    """Selected documents of a shard; what the sketch has of them but their keys.

    numbers, labels   document numbers, and rows of `Counts`; int64, [documents]
    data, offsets     the UTF-8 of all texts, and where each begins, int64 [documents + 1]
    hashes            xxh3_128 of each text, high half and low half; uint64 [2, documents]
    """

    numbers: Int64
    labels: Int64
    data: Bytes
    offsets: Int64
    hashes: UInt64


class _Texts:
    """Counts all documents of a shard and yields the selected ones; `lines` is one more than the last one's number."""

    def __init__(self, batches: Iterable[DocumentBatch], counts: Counts, selected: list[str] | None):
        self.lines = 0
        self._batches, self._counts = batches, counts
        self._selected = None if selected is None else frozenset(selected)

    def __iter__(self) -> Iterator[_Batch]:
        for batch in self._batches:
            # What is not needed any more is let go of at once: a single text may take 500 MB, each time it is held.
            self.lines = int(batch.numbers[-1]) + 1
            if self.lines > MAX_LINES:
                raise PilekitError(f"{visible(batch.shard)}: has more than {MAX_LINES:,} lines; split it")
            # Encoded one by one: a third of what an Arrow column takes, which would be hashed in slices as well.
            strings, subsets, numbers = batch.texts, batch.subsets, batch.numbers
            del batch
            texts = list(map(str.encode, strings))
            del strings
            labels = self._counts.rows(subsets)
            self._counts.add(labels, np.fromiter(map(len, texts), np.int64, len(texts)))
            if self._selected is not None:
                chosen = [i for i, label in enumerate(subsets) if label in self._selected]
                texts, labels, numbers = [texts[i] for i in chosen], labels[chosen], numbers[chosen]
            if texts:
                offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
                digests = np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, texts)), dtype=">u8")
                hashes = digests.reshape(-1, 2).T.astype(np.uint64)
                data = [np.frombuffer(b"".join(texts), dtype=np.uint8)]
                del texts
                yield _Batch(numbers, labels, data.pop(), offsets, hashes)


def _with_keys(texts: Iterable[_Batch], bands: Bands, ngram: int, threads: int) -> Iterator[tuple[_Batch, UInt64]]:
    """Each batch with its band keys, uint64 [bands, documents]."""
    a, b = permutations(bands.num_perm)

    def keys(batch: _Batch) -> UInt64:
        return band_keys(signatures(batch.data, batch.offsets, ngram, a, b), bands.bands, bands.rows)

    waiting: deque[tuple[_Batch, Future[UInt64]]] = deque()
    workers = min(threads - 1, MAX_THREADS)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for batch in texts:
            # With one CPU a thread would only get into the way, and nothing is to be read while a large text is held.
            alone = workers < 1 or len(batch.data) > LARGE_BYTES
            while waiting and (alone or len(waiting) > workers):
                done, future = waiting.popleft()
                yield done, future.result()
            if alone:
                yield batch, keys(batch)
            else:
                waiting.append((batch, pool.submit(keys, batch)))
            del batch
        for done, future in waiting:
            yield done, future.result()


class _RowGroups:
    """Gathers rows and writes them in groups of the same size, so that a sketch does not depend on batches."""

    def __init__(self, writer: pq.ParquetWriter, bands: int, counts: Counts):
        self._writer, self._schema, self._groups = writer, sketch_schema(bands), counts.groups
        self._numbers = np.empty(ROWS_PER_GROUP, dtype=np.uint32)
        self._sizes = np.empty(ROWS_PER_GROUP, dtype=np.uint32)
        self._labels = np.empty(ROWS_PER_GROUP, dtype=np.int32)
        self._hashes = np.empty((2 + bands, ROWS_PER_GROUP), dtype=np.uint64)
        self._held = 0

    def add(self, batch: _Batch, keys: UInt64) -> None:
        """Take documents and their band keys, uint64 [bands, documents]."""
        sizes = np.diff(batch.offsets)
        done = 0
        while done < len(sizes):
            taken = min(len(sizes) - done, ROWS_PER_GROUP - self._held)
            here, there = slice(self._held, self._held + taken), slice(done, done + taken)
            self._numbers[here], self._sizes[here] = batch.numbers[there], sizes[there]
            self._labels[here] = batch.labels[there]
            self._hashes[:2, here], self._hashes[2:, here] = batch.hashes[:, there], keys[:, there]
            done += taken
            self._held += taken
            if self._held == ROWS_PER_GROUP:
                self.flush()

    def flush(self) -> None:
        """Write what is held as one row group."""
        held = self._held
        if held:
            # By numpy: the first use of Arrow's dictionary_encode imports all compute functions, 30 ms in each process.
            rows, codes = np.unique(self._labels[:held], return_inverse=True)
            names = list(self._groups)
            labels = pa.DictionaryArray.from_arrays(
                codes.astype(np.int32), pa.array([names[row] for row in rows], pa.string())
            )
            columns = [self._numbers[:held], self._sizes[:held], labels, *self._hashes[:, :held]]
            table = pa.Table.from_arrays([pa.array(column) for column in columns], schema=self._schema)
            self._writer.write_table(table, row_group_size=ROWS_PER_GROUP)
            self._held = 0
