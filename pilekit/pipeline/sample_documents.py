"""`sample_documents`: an exact number of documents, drawn at random from a whole corpus.

A document's rank is the hash of (seed, shard name, document number). The sample is the documents of the lowest ranks
among those that pass all stages. So it does not depend on processes or batches, and a larger sample with the same seed
holds a smaller one. Every shard is read once. A job holds at most `count` documents.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence
from typing import BinaryIO, Unpack

import msgspec
import numpy as np

from pilekit.corpus import Corpus, Shard
from pilekit.documents import DocumentBatch, RecordFormat
from pilekit.pipeline.pipeline import Pipeline, Stage
from pilekit.pipeline.stages import KeepFlags, document_hashes, filtered
from pilekit.shards.corpus_job import CorpusJob, Share
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import Reading, read
from pilekit.shards.work import Work, takes
from pilekit.workers import Advance


class DrawnDocument(msgspec.Struct, frozen=True):
    """A document that may be in the sample, with its rank."""

    rank: int
    shard: str
    number: int
    subset: str
    text: str
    line: bytes


class _LowestRanks:
    """The `count` documents of the lowest ranks so far; of equal ranks, the first. Adding takes log(count) steps."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._added = 0
        self._heap: list[tuple[int, int, DrawnDocument]] = []  # the highest rank first, and of equal ranks the last

    def add(self, drawn: DrawnDocument) -> None:
        """Keep the document if its rank is low enough."""
        self._added += 1
        (heapq.heappush if len(self._heap) < self._count else heapq.heappushpop)(
            self._heap, (-drawn.rank, -self._added, drawn)
        )

    def limit(self) -> int:
        """No document of a higher rank is kept."""
        return -self._heap[0][0] if len(self._heap) == self._count else (1 << 64) - 1

    def documents(self) -> list[DrawnDocument]:
        """The documents, in no order."""
        return [drawn for _, _, drawn in self._heap]


@takes(Work)
def sample_documents(
    corpus: Corpus,
    count: int,
    *,
    seed: int = 0,
    subsets: Sequence[str] | None = None,
    stages: Sequence[Stage] = (),
    **work: Unpack[Work],
) -> tuple[list[DocumentBatch], SkippedLines]:
    """Draw `count` documents, or all if there are fewer: batches of one document, in the order of the corpus.

    seed      another seed draws another sample
    subsets   exact names; None: all
    stages    only documents that pass these stages are drawn
    work      on_error, jobs, advance, cluster: see `Work`
    """
    job = CorpusJob(corpus, **work)
    reading = functools.partial(read, subsets=subsets, on_error=job.on_error, manifest=corpus.manifest)
    draw = functools.partial(_draw, count=count, seed=seed, reading=reading, stages=stages)
    lowest = _LowestRanks(count)
    skipped = SkippedLines()
    for file, bad in job.each_file(draw, job.shards, "sample"):
        for drawn in msgspec.msgpack.decode(file.read_bytes(), type=list[DrawnDocument]):
            lowest.add(drawn)
        skipped.merge(bad)
    places = {shard.name: place for place, shard in enumerate(corpus.shards)}
    documents = sorted(lowest.documents(), key=lambda document: (places[document.shard], document.number))
    form = RecordFormat.from_manifest(corpus.manifest)
    return [
        DocumentBatch(
            [document.text],
            [document.subset],
            document.shard,
            np.array([document.number]),
            [document.line],
            format=form,
        )
        for document in documents
    ], skipped


def _draw(
    shard: Shard,
    file: BinaryIO,
    advance: Advance,
    *,
    count: int,
    seed: int,
    reading: Reading,
    stages: Sequence[Stage],
    share: Share,
) -> SkippedLines:
    """Write the documents of one shard with the lowest ranks to `file`."""
    lowest = _LowestRanks(count)

    def low_enough(batch: DocumentBatch) -> KeepFlags:
        """Most documents are dropped here, before the stages look at their texts."""
        return document_hashes(batch.shard, batch.numbers, seed) <= np.uint64(lowest.limit())

    with reading(shard, advance=advance, ahead=share.ahead) as reader:
        for batch in Pipeline(stages)(filtered(reader, low_enough)):
            ranks = document_hashes(batch.shard, batch.numbers, seed).tolist()
            columns = zip(ranks, batch.numbers.tolist(), batch.subsets, batch.texts, batch.raw_lines(), strict=True)
            for rank, number, subset, text, line in columns:
                # The line is copied: a view would keep 2 MiB of the shard in memory.
                lowest.add(DrawnDocument(rank, batch.shard, number, subset, text, bytes(line)))
    file.write(msgspec.msgpack.encode(lowest.documents()))
    return reader.skipped
