"""Which documents are scored, and by whom: text goes by in batches, and none of it is held.

    read -> those of the subsets asked for -> the first `limit` of each subset -> those not recorded yet -> this rank's

Every rank reads all of the text, which costs little beside the model, and none asks the others: the deal follows from
the bytes alone. A document goes to the rank that has the fewest so far, so no rank has more than one document's bytes
above another, and only its own are tokenized and scored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator

import numpy as np

from pilekit.corpus import Corpus
from pilekit.documents import MAX_SUBSETS, DocumentBatch, too_many_subsets
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.protocol import Rules
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.score.causal_nll import TokenizedDocument
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.reader import OnError, read
from pilekit.tokenize import Tokenize, Tokenizer

DOCUMENT_BYTES = 64
"""What a document counts beside its bytes: a million empty ones are work too."""


def selected(
    corpus: Corpus,
    rules: Rules,
    on_error: OnError,
    skipped: SkippedLines,
    advance: Callable[[int], None],
    labels: dict[str, None] | None = None,
) -> Generator[DocumentBatch, None, None]:
    """All batches of the documents that `rules` select, in the corpus's order.

    on_error   "raise" or "skip" at a bad line; what is passed over is added to `skipped`
    advance    called with each further amount of stored bytes read
    labels     gets those of all documents that are read, also of those that are not selected. So all are decoded, which
               costs little beside the model; None: only what `rules` select is
    """
    wanted = None if rules.subsets is None else frozenset(rules.subsets)
    first = _FirstDocuments(corpus, rules)
    for shard in corpus.shards:
        decoded = rules.subsets if labels is None else None
        with read(shard, decoded, on_error, manifest=corpus.manifest, advance=advance) as reader:
            for batch in reader:
                if labels is not None and len(labels) < MAX_SUBSETS:
                    labels.update(dict.fromkeys(batch.subsets))
                if wanted is not None:
                    batch = batch.where([label in wanted for label in batch.subsets])
                yield first.of(batch)
                if first.are_all_there:
                    break
            skipped.merge(reader.skipped)
        if first.are_all_there:
            return


class Recorded:
    """What is recorded already, and which of it the corpus has been found to hold."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.met = np.zeros(len(records), dtype=np.bool_)

    def left_of(self, batch: DocumentBatch) -> DocumentBatch:
        """The documents of `batch` that are not recorded.

        PilekitError for one whose record is of another text or subset: what was scored is not what is there now.
        """
        of = self.records
        if not len(of) or not len(batch):
            return batch
        begin, end = np.searchsorted(of.shard, [shard := of.shards.index(batch.shard), shard + 1])
        places = begin + np.searchsorted(of.number[begin:end], batch.numbers)
        found = places < end
        found[found] = of.number[places[found]] == batch.numbers[found]
        if not found.any():
            return batch
        _, hashes = batch.text_hashes()
        for i in np.flatnonzero(found).tolist():
            place = int(places[i])
            if of.text[place] != hashes[i] or of.subsets[of.subset[place]] != batch.subsets[i]:
                raise PilekitError(
                    f"{visible(batch.shard, 200)}, document {batch.numbers[i]}: is not the text that was scored and "
                    "recorded, so the corpus has changed; name another --out, or remove its records/ to score all of "
                    "it again"
                )
        self.met[places[found]] = True
        return batch.where(~found)

    def all_met(self) -> Records:
        """The records, all of which the corpus must have been found to hold, else PilekitError."""
        missing = np.flatnonzero(~self.met)
        if len(missing):
            of, first = self.records, int(missing[0])
            raise PilekitError(
                f"{visible(of.shards[of.shard[first]], 200)}, document {of.number[first]}: is recorded, but not among "
                "the documents that are read, so the corpus has changed; name another --out, or remove its records/ "
                "to score all of it again"
            )
        return self.records


def dealt(batches: Iterable[DocumentBatch], rank: int, world_size: int) -> Iterator[DocumentBatch]:
    """This rank's documents of all batches, which every rank must be given alike."""
    if world_size == 1:
        yield from batches
        return
    loads = [(0, of) for of in range(world_size)]  # a heap: the least loaded first, the lower rank of two alike
    for batch in batches:
        own = np.zeros(len(batch), dtype=np.bool_)
        for i, size in enumerate(batch.text_bytes().tolist()):
            load, of = loads[0]
            heapq.heapreplace(loads, (load + size + DOCUMENT_BYTES, of))
            own[i] = of == rank
        yield batch.where(own)


def tokenized(batches: Iterable[DocumentBatch], tokenizer: Tokenizer) -> Iterator[TokenizedDocument]:
    """The documents of all batches, each with its tokens."""
    tokenize = Tokenize(tokenizer)
    for batch in batches:
        sizes, hashes = (column.tolist() for column in batch.text_hashes())
        for tokens in tokenize(iter([batch])):
            for i, (begin, end) in enumerate(zip(tokens.offsets, tokens.offsets[1:], strict=False)):
                number, subset, ids = int(tokens.numbers[i]), tokens.subsets[i], tokens.ids[begin:end]
                yield TokenizedDocument(batch.shard, number, hashes[i], subset, sizes[i], ids)


class _FirstDocuments:
    """Takes the first `limit` documents of each subset; counts what it takes."""

    def __init__(self, corpus: Corpus, rules: Rules) -> None:
        self.limit = rules.limit
        known = [subset.name for subset in corpus.manifest.subsets]
        self.taken = dict.fromkeys(known if rules.subsets is None else rules.subsets, 0)
        self.most = len(self.taken) + MAX_SUBSETS
        self.ends = self.limit is not None and bool(self.taken)

    def of(self, batch: DocumentBatch) -> DocumentBatch:
        keep = []
        for subset in batch.subsets:
            taken = self.taken.get(subset, 0)
            keep.append(self.limit is None or taken < self.limit)
            self.taken[subset] = taken + keep[-1]
        if len(self.taken) > self.most:
            raise too_many_subsets(MAX_SUBSETS)
        return batch.where(keep)

    @property
    def are_all_there(self) -> bool:
        return self.ends and all(taken == self.limit for taken in self.taken.values())
