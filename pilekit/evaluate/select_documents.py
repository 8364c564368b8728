"""Which documents are scored, and by which rank.

    read -> the subsets asked for, or a sample -> the first of each, up to its limits -> not recorded yet
         -> this rank's -> tokens

Every rank reads all of the text, which costs little compared with the model. Without communication it computes which
documents are its own: each goes to the rank with the least work so far. So the work of two ranks differs by at most one
document. A rank tokenizes and scores only its own documents. No text is kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import repeat

import numpy as np
import numpy.typing as npt

from pilekit.corpus import Shard
from pilekit.corpus.shard import STANDARD_INPUT, is_url
from pilekit.documents import DocumentBatch, check_labels
from pilekit.errors import PilekitError, shortened
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.score.batching import TokenizedDocument
from pilekit.evaluate.score_plan import Plan
from pilekit.shards.index.document_rows import DocumentRows, index_rows
from pilekit.shards.index.format import ShardIndex, find_indexes
from pilekit.shards.read.change_check import check_version
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import read
from pilekit.tokenize import Tokenize, Tokenizer

DOCUMENT_BYTES = 64
"""A document's weight is its bytes plus this, so that empty documents reach all ranks too."""


def selected_batches(
    plan: Plan, labels: dict[str, int], skipped: SkippedLines, advance: Callable[[int], None]
) -> Generator[DocumentBatch, None, None]:
    """All batches of the documents that `plan` selects, in the corpus's order.

    `limit` ends a subset after so many documents, and `limit_bytes` with the document whose text reaches so many bytes
    of UTF-8. With a limit, reading ends when all requested subsets are full. Without a request, these are all subsets
    of the manifest and all others found so far. A manifest without subsets does not name the labels to come, so all
    shards are read.

    labels    receives the number of documents selected of each label found, 0 for labels that are not requested
    skipped   collects the bad lines that are passed over
    advance   called with the number of stored bytes newly read
    """
    selection = _Selection(plan, labels)
    for shard in plan.corpus.shards:
        check_version(shard.path, plan.shard_versions[shard.path])
        manifest = plan.corpus.manifest
        with read(shard, None, plan.options.on_error, manifest=manifest, advance=advance) as reader:
            for batch in reader:
                sizes = repeat(0) if plan.options.limit_bytes is None else batch.text_bytes().tolist()
                yield batch.where(selection.take(batch.shard, batch.numbers, batch.subsets, sizes))
                if selection.is_full():
                    break
            skipped.merge(reader.skipped)
        if selection.is_full():
            return


def text_bytes_selected(plan: Plan) -> int | None:
    """The bytes of text of all documents that `selected_batches` gives; None if counting them would cost much.

    Indexes hold the bytes. With a limit, local shards without an index are read, as far as the limits reach.
    """
    indexes = find_indexes(plan.corpus)
    limits = (plan.options.limit, plan.options.limit_bytes) != (None, None)
    costly = (not limits or shard.path == STANDARD_INPUT or is_url(shard.path) for shard in plan.corpus.shards)
    if any(index is None and cost for index, cost in zip(indexes, costly, strict=True)):
        return None
    selection, total = _Selection(plan, {}), 0
    try:
        for shard, index in zip(plan.corpus.shards, indexes, strict=True):
            for rows in _sizes(shard, index, plan):
                labels = [rows.labels[code] for code in rows.codes.tolist()]
                taken = selection.take(shard.name, rows.numbers, labels, rows.text_bytes.tolist())
                total += int(rows.text_bytes[taken].sum())
                if selection.is_full():
                    return total
    except PilekitError:  # the reading that scores raises it again
        return None
    return total


def _sizes(shard: Shard, index: ShardIndex | None, plan: Plan) -> Iterator[DocumentRows]:
    if index is not None:
        yield from index.rows("number", "subset", "text_bytes")
        return
    with read(shard, None, plan.options.on_error, manifest=plan.corpus.manifest) as reader:
        yield from (index_rows(batch, hashed=False) for batch in reader)


class _Selection:
    """Decides which documents are selected, from first to last; `labels` as for `selected_batches`."""

    def __init__(self, plan: Plan, labels: dict[str, int]) -> None:
        self._limit, self._limit_bytes, self._subsets = plan.options.limit, plan.options.limit_bytes, plan.subsets
        self._missing_bytes: dict[str, int] = {}  # of each label, until its limit
        named = [subset.name for subset in plan.corpus.manifest.subsets]
        self._expected = named if plan.subsets is None else list(plan.subsets)
        self._labels, self._sample = labels, plan.sample

    def take(
        self, shard: str, numbers: npt.NDArray[np.int64], labels: Iterable[str], sizes: Iterable[int]
    ) -> list[bool]:
        """Whether each of the next documents is selected, by its place, its label and its bytes of text."""
        sampled = repeat(True) if self._sample is None else self._sample.keeps(shard, numbers)
        choices = list(map(self._take, labels, sizes, sampled))
        check_labels(self._labels, len(self._expected))
        return choices

    def _take(self, label: str, size: int, sampled: bool) -> bool:
        self._labels.setdefault(label, 0)
        is_selected = sampled and (self._subsets is None or label in self._subsets) and not self._is_over(label)
        self._labels[label] += is_selected
        if is_selected and self._limit_bytes is not None:
            self._missing_bytes[label] = self._missing_bytes.get(label, self._limit_bytes) - size
        return is_selected

    def _is_over(self, label: str) -> bool:
        return (self._limit is not None and self._labels.get(label) == self._limit) or self._missing_bytes.get(
            label, 1
        ) <= 0

    def is_full(self) -> bool:
        """Whether no further document of the known subsets can be selected."""
        names = self._expected if self._subsets is not None else {*self._expected, *self._labels}
        has_limit = (self._limit, self._limit_bytes) != (None, None)
        return bool(self._expected) and has_limit and all(map(self._is_over, names))


class Recorded:
    """The records of earlier runs, and which of their documents have been found in the corpus."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.missing = {(document.shard, document.number): document for document in records.documents()}

    def without_recorded(self, batch: DocumentBatch) -> DocumentBatch:
        """The documents of `batch` that are not recorded; PilekitError if a record has another text or subset."""
        earlier = [self.missing.pop((batch.shard, number), None) for number in batch.numbers.tolist()]
        if not any(earlier):
            return batch
        for record, text, subset in zip(earlier, batch.text_hashes()[1].tolist(), batch.subsets, strict=True):
            if record is not None and (record.text, record.subset) != (text, subset):
                raise _changed(batch.shard, record.number, "is not the text that was scored and recorded")
        return batch.where([record is None for record in earlier])

    def require_all_found(self) -> Records:
        """The records; PilekitError unless all their documents have been found in the corpus."""
        for shard, number in self.missing:
            raise _changed(shard, number, "is recorded, but is not among the documents that are read")
        return self.records


def _changed(shard: str, number: int, how: str) -> PilekitError:
    return PilekitError(
        f"{shortened(shard, 200)}, document {number}: {how}, so the corpus has changed; name another --out, or remove "
        "its records/ to score all of it again"
    )


def assign_to_rank(batches: Iterable[DocumentBatch], rank: int, world_size: int) -> Iterator[DocumentBatch]:
    """This rank's documents of all batches, which must be the same on every rank."""
    # A heap of (load, rank): the least loaded rank is first, and the lowest of equals.
    loads = [(0, any_rank) for any_rank in range(world_size)]
    for batch in batches:
        is_own = np.zeros(len(batch), dtype=np.bool_)
        for i, size in enumerate(batch.text_bytes().tolist()):
            load, least = loads[0]
            heapq.heapreplace(loads, (load + size + DOCUMENT_BYTES, least))
            is_own[i] = least == rank
        yield batch.where(is_own)


def tokenized_documents(batches: Iterable[DocumentBatch], tokenizer: Tokenizer) -> Iterator[TokenizedDocument]:
    """The documents of all batches, each with its tokens."""
    tokenize = Tokenize(tokenizer)
    for batch in batches:
        sizes, hashes = (column.tolist() for column in batch.text_hashes())
        for tokens in tokenize(iter([batch])):
            for i, (begin, end) in enumerate(zip(tokens.offsets, tokens.offsets[1:], strict=False)):
                number, subset, ids = int(tokens.numbers[i]), tokens.subsets[i], tokens.ids[begin:end]
                yield TokenizedDocument(batch.shard, number, hashes[i], subset, sizes[i], ids)
