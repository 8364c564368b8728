"""Cut a table's spans out of shards: the pieces of a document become documents of their own.

A table has the columns `shard`, `number`, `start` and `end` (characters), and perhaps `cut`, which is false where the
span of a row is no reason to cut. Lines of documents without a span are copied
byte for byte.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset

from pilekit.artifacts.sort.external_sort import Table
from pilekit.corpus import Manifest, Shard, subsets_or_all
from pilekit.dedup.drop_duplicates import DropDuplicates
from pilekit.documents import DocumentBatch, check_labels
from pilekit.errors import PilekitError
from pilekit.shards.corpus_job import CorpusJob, Share
from pilekit.shards.random_access.document_reader import DocumentReader
from pilekit.shards.read.reader import OnError, read
from pilekit.shards.write.shard_writer import write_documents
from pilekit.workers import Advance

SHORTEST_PIECE, MOST_PIECES = 200, 10
ROWS_AT_A_TIME = 1 << 15

Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class CutScope:
    """The documents of a job.

    subsets   subsets to search; None: all
    only      leave out the documents of other subsets
    dedup     folder of a finished dedup, whose removed documents are left out
    protected names of held-out shards, which come first; nothing is taken from their documents
    """

    subsets: list[str] | None
    only: bool
    dedup: Path | None
    manifest: Manifest
    on_error: OnError
    protected: Sequence[str] = ()

    @classmethod
    def for_job(
        cls,
        job: CorpusJob,
        subsets: str | Sequence[str] | None,
        only: bool,
        dedup: Path | None = None,
        protected: Sequence[str] = (),
    ) -> Self:
        """The scope for subsets in any spelling that the manifest knows; PilekitError for `only` without subsets."""
        if only and subsets is None:
            raise PilekitError("`only` leaves out the documents of other subsets; name subsets too")
        manifest = job.corpus.manifest
        chosen = subsets_or_all([subsets] if isinstance(subsets, str) else subsets, manifest)
        return cls(None if chosen is None else sorted(chosen), only, dedup, manifest, job.on_error, protected)

    def batches(
        self, shard: Shard, advance: Advance, counts: dict[str, Any], *, ahead: bool
    ) -> Iterator[DocumentBatch]:
        """All documents that are not left out; `counts` receives `read` by subset, and the numbers of all others."""
        documents, of_subset, subsets = 0, Counter[str](), self.subsets if self.only else None

        def all_read() -> Iterator[DocumentBatch]:
            nonlocal documents
            for batch in reader:
                documents += len(batch)
                yield batch

        with read(shard, subsets, self.on_error, manifest=self.manifest, advance=advance, ahead=ahead) as reader:
            mask = None if shard.name in self.protected else self.dedup
            for batch in all_read() if mask is None else DropDuplicates(mask)(all_read()):
                of_subset.update(batch.subsets)
                check_labels(of_subset)
                yield batch
        counts.update(reader.skip_counts(), read=dict(of_subset))
        counts["others"] += documents - of_subset.total()

    def compared(self, batch: DocumentBatch) -> DocumentBatch:
        """The documents of a batch to search."""
        chosen = self.subsets
        return batch if chosen is None else batch.where([name in chosen for name in batch.subsets])


def pieces_around(text: str, spans: Spans, window: int) -> list[str]:
    """The pieces of a text without spans and `window` characters on each side, in whole words; [] drops it."""
    pieces, at = [], 0
    for start, end in spans:
        start, end = max(0, start - window), min(len(text), end + window)
        while start > 0 and not (text[start].isspace() or text[start - 1].isspace()):
            start -= 1
        while end < len(text) and not (text[end].isspace() or text[end - 1].isspace()):
            end += 1
        pieces.append(text[at:start].strip() if at < start else "")
        at = max(at, end)
    pieces = [piece for piece in (*pieces, text[at:].strip()) if len(piece) >= SHORTEST_PIECE]
    return pieces if len(pieces) <= MOST_PIECES else []


def _bytes(text: str) -> int:
    """The length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def stored_rows(path: Path, columns: int) -> Iterator[Table]:
    """The rows of a file of uint64 values, some at a time: uint64 [rows, columns]."""
    with path.open("rb") as file:
        while len(rows := np.fromfile(file, np.uint64, columns * ROWS_AT_A_TIME)):
            yield rows.reshape(-1, columns)


def spans_of(table: Path, shard: str) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The number of each document of a shard that has spans to cut, and its different spans; few are in memory."""
    dataset = pyarrow.dataset.dataset(table, format="parquet")
    columns, of_shard = ["number", "start", "end"], pc.field("shard") == shard
    chosen = of_shard & pc.field("cut") if "cut" in dataset.schema.names else of_shard
    batches = dataset.to_batches(columns=columns, filter=chosen, use_threads=False)
    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    for number, of_document in groupby(rows, key=itemgetter(0)):
        yield number, sorted({(start, end) for _, start, end in of_document})


@dataclass(frozen=True)
class CutShard:
    """Writes a shard without the spans of a table; returns the counts of each subset, and the paths written.

    table     the table of spans
    write     false: write nothing, and read only the documents with spans
    before    an earlier pass's counts of each shard
    pieces    cuts the spans out of a text; a document without pieces is dropped
    check     called before the file gets its name
    """

    table: Path
    write: bool
    before: Mapping[str, Mapping[str, Any]]
    pieces: Callable[[str, Spans], list[str]]
    check: Callable[[Shard], None]
    scope: CutScope

    def __call__(
        self, shard: Shard, advance: Advance, /, *, path: Path, share: Share
    ) -> tuple[dict[str, Any], list[Path]]:
        """Write the shard at `path`."""
        waiting, counts = spans_of(self.table, shard.name), defaultdict[str, Counter[str]](Counter)
        number, spans = next(waiting, (-1, []))

        def cut(subset: str, text: str) -> list[str]:
            nonlocal number, spans
            pieces = self.pieces(text, spans)
            removed = {"characters_removed": len(text) - sum(map(len, pieces))}
            removed["bytes_removed"] = _bytes(text) - sum(map(_bytes, pieces))
            counts[subset].update(removed, pieces=len(pieces), spans=len(spans), untouched=-1)
            counts[subset]["cut" if pieces else "dropped"] += 1
            number, spans = next(waiting, (-1, []))
            return pieces

        def cut_batches() -> Iterator[DocumentBatch]:
            for batch in self.scope.batches(shard, advance, read_counts, ahead=share.ahead):
                index_of = {number: index for index, number in enumerate(batch.numbers.tolist())}
                replaced = dict[int, list[str]]()
                while (index := index_of.get(number)) is not None:
                    replaced[index] = cut(batch.subsets[index], batch.texts[index])
                yield batch.with_pieces(replaced)

        read_counts, files = dict[str, Any](), list[Path]()
        if self.write:
            files = write_documents(path, cut_batches(), lambda: self.check(shard))
        else:
            read_counts = dict(self.before[shard.name])
            numbers = np.array([number for number, _ in spans_of(self.table, shard.name)], np.int64)
            with closing(DocumentReader(shard, None, manifest=self.scope.manifest, advance=advance)) as documents:
                for document in documents.increasing(numbers):
                    cut(document.subset, document.text)
        if number >= 0:
            raise PilekitError(f"{shard.path}: changed while it was read; run the same command again")
        for subset, count in read_counts["read"].items():
            counts[subset]["untouched"] += count
        return {"subsets": counts}, files
