"""`sample_documents`: an exact number of documents, drawn at random from a whole corpus.

A document's rank is the hash of (seed, shard name, document number). The sample is the documents of the lowest ranks
among those that pass all stages. So it does not depend on processes or batches, and a larger sample with the same seed
holds a smaller one. Every shard is read once. A job holds at most `count` documents.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter

import numpy as np

from pilekit.corpus import Corpus, Shard
from pilekit.documents import DocumentBatch
from pilekit.engine import Advance
from pilekit.pipeline.pipeline import Pipeline, Stage
from pilekit.pipeline.stages import Kept, document_hashes, filtered
from pilekit.shards.each_shard import each_shard
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.reader import OnError, Reading, read

Ranked = tuple[int, DocumentBatch]
"""Rank, and the document alone in a batch."""


def sample_documents(
    corpus: Corpus,
    count: int,
    *,
    seed: int = 0,
    subsets: Sequence[str] | None = None,
    stages: Sequence[Stage] = (),
    on_error: OnError = "raise",
    jobs: int | None = None,
    advance: Advance | None = None,
) -> tuple[list[DocumentBatch], SkippedLines]:
    """Draw `count` documents, or all if there are fewer: batches of one document, in the order of the corpus.

    seed      another seed draws another sample
    subsets   exact names; None: all
    stages    only documents that pass these stages are drawn
    jobs      shards at a time; None: the usable CPUs, or fewer for a small corpus
    """
    reading = functools.partial(read, subsets=subsets, on_error=on_error, manifest=corpus.manifest)
    draw = functools.partial(_draw, count=count, seed=seed, reading=reading, stages=stages)
    lowest: list[Ranked] = []
    skipped = SkippedLines()
    for drawn, bad in each_shard(draw, corpus.shards, jobs=jobs, advance=advance):
        lowest = heapq.nsmallest(count, chain(lowest, drawn), key=itemgetter(0))
        skipped.merge(bad)
    places = {shard.name: place for place, shard in enumerate(corpus.shards)}
    documents = (document for _, document in lowest)
    return sorted(documents, key=lambda document: (places[document.shard], document.numbers[0])), skipped


def _draw(
    shard: Shard, advance: Advance, *, count: int, seed: int, reading: Reading, stages: Sequence[Stage], ahead: bool
) -> tuple[list[Ranked], SkippedLines]:
    """The documents of one shard with the lowest ranks."""
    lowest: list[Ranked] = []

    def low_enough(batch: DocumentBatch) -> Kept:
        """Most documents are dropped here, before the stages look at their texts."""
        limit = lowest[-1][0] if len(lowest) == count else (1 << 64) - 1
        return document_hashes(batch.shard, batch.numbers, seed) <= np.uint64(limit)

    with reading(shard, advance=advance, ahead=ahead) as reader:
        for batch in Pipeline(stages)(filtered(reader, low_enough)):
            ranks = document_hashes(batch.shard, batch.numbers, seed).tolist()
            drawn = [(rank, _alone(batch, index)) for index, rank in enumerate(ranks)]
            lowest = heapq.nsmallest(count, chain(lowest, drawn), key=itemgetter(0))
    return lowest, reader.skipped


def _alone(batch: DocumentBatch, index: int) -> DocumentBatch:
    """One document of a batch, with a copy of its line: a view would keep 2 MiB of the shard in memory."""
    document = batch.take([index])
    return document if document.lines is None else replace(document, lines=[bytes(document.lines[0])])
