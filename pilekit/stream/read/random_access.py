"""`RandomAccess`: lanes read units of the shared sequence from anywhere, through the shards' indexes.

Lane l of L reads the units at the positions l, l + L, l + 2L, ... of a `Sequence`. For each unit, the frames of its
documents are decoded once and their lines parsed. Then repeats and filters drop documents, and the remaining documents
are given in the unit's own order.

All lanes of a process share one set of open files. Filters always see a whole unit, as a `DocumentBatch` for each of
its shards, even if a lane begins inside the unit.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pilekit.corpus.shuffle import Int64
from pilekit.errors import PilekitError, shortened
from pilekit.pipeline.pipeline import Pipeline
from pilekit.shards.random_access.document_reader import OpenReaders
from pilekit.shards.random_access.selected_lines import CorpusBitmap
from pilekit.stream.order.unit_sequence import Sequence as UnitSequence
from pilekit.stream.order.unit_sequence import Unit, documents_of_copy, is_of_copy
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.lane_documents import ORDER, LaneDocuments, document_table
from pilekit.stream.read.token_files import TokenIndex
from pilekit.tokenize.files.stored_ids import StoredIds, join_stored


class RandomAccess:
    """A `LaneSource`.

    selected       the stream's documents
    sequence       their units, for all lanes
    name           the subset whose documents alone are given; None: all that are selected
    documents      those that the sequence is of, without factors of `repeats`; by default all that are selected, with
                   these factors
    readers        the corpus's readers, which several sources may share
    end            the position at which lanes end, for a finite pass; None: endless
    most_dropped   it is an error if a lane drops so many documents in a row (or 100 epochs), and its share of an epoch

    It can be pickled if the filters can, and used after a fork. Threads must not share it. Reading raises
    `PilekitError` for damage, for a shard or index that has changed since, and if repeats and filters drop everything.
    """

    def __init__(
        self,
        selected: StreamDocuments,
        sequence: UnitSequence,
        name: str | None = None,
        documents: CorpusBitmap | None = None,
        readers: OpenReaders | None = None,
        end: int | None = None,
        most_dropped: int = 1 << 20,
    ) -> None:
        self.selected, self.sequence, self.end, self._most_dropped = selected, sequence, end, most_dropped
        self._selects = selected.selects if name is None else name.__eq__
        self._documents = selected.documents if documents is None else documents
        self._only = selected.of_subset(name) if name is not None and documents is None else None
        self._repeats = selected.repeats if documents is None else {}
        self._largest_factor = selected.largest_factor if documents is None else 1.0
        self._filters = Pipeline(selected.filters)
        corpus, indexes, cache = selected.corpus, selected.plan.indexes, selected.cache
        self._readers = OpenReaders(corpus, indexes, cache) if readers is None else readers

    def documents(
        self, lane: int, position: int, document: int, end: int | None = None
    ) -> Generator[LaneDocuments, None, None]:
        """The lane's documents from this place on, a unit at a time.

        end   the position at which the lane ends; None: the source's
        """
        documents, end = self.sequence.documents, self.end if end is None else end
        epoch_share = self.sequence.per_epoch * self.sequence.unit // self.sequence.lanes
        dropped, most = 0, max(epoch_share, min(self._most_dropped, 100 * documents))
        while end is None or position < end:
            read = [self._unit(position, document)]
            dropped = 0 if len(read[0]) else dropped + self.sequence.unit
            if end is None and dropped > most:
                raise PilekitError(
                    f"no document stays in lane {lane}: repeats and filters "
                    f"({shortened(repr(list(self._filters.stages)), 200)}) drop all of {dropped:,} in a row; loosen "
                    "them, or shuffle"
                )
            yield read.pop()  # pop, so that a waiting lane keeps no texts alive here
            position, document = position + self.sequence.lanes, 0

    def _unit(self, position: int, document: int) -> LaneDocuments:
        """The remaining documents of the unit at this position, from number `document` of its order on."""
        unit = self.sequence.at(position)
        order = self.sequence.order(unit)
        # The inverse permutation: the place in the unit's order of each of its documents.
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        selected, begin = self.selected, 0
        parts: list[LaneDocuments] = []
        for shard, lines in self._documents.locate(unit.begin, unit.end):
            index, orders = selected.plan.indexes[shard], rank[begin : begin + len(lines)]
            begin += len(lines)
            if self._only is not None:
                is_given = self._only.lines[shard].has(lines)
                lines, orders = lines[is_given], orders[is_given]
                if not len(lines):
                    continue
            if selected.weights is not None and unit.copy:
                again = selected.weights.of(shard, lines) * self._largest_factor > unit.copy
                lines, orders = lines[again], orders[again]
                if not len(lines):
                    continue
            parts += (
                self._stored(unit, index, shard, position, lines, orders)
                if isinstance(index, TokenIndex)
                else self._texts(unit, shard, position, lines, orders)
            )
        if not parts:
            return LaneDocuments(document_table(0), [])
        table = parts[0].table if len(parts) == 1 else np.concatenate([part.table for part in parts])
        in_order = table[:, ORDER].argsort()
        orders = table[in_order, ORDER]
        if (orders[1:] == orders[:-1]).any():
            raise self._filter_error()
        chosen = in_order[orders.searchsorted(document) :]
        return LaneDocuments(table[chosen], _chosen([part.texts for part in parts], chosen))

    def _texts(self, unit: Unit, shard: int, position: int, lines: Int64, orders: Int64) -> Iterator[LaneDocuments]:
        """The documents of these lines that this copy of their unit reads and the filters keep, if any."""
        selected = self.selected
        # Without weights only the first copy has all subsets.
        more_copies = {label for label, factor in self._repeats.items() if factor > unit.copy}
        has_all = not unit.copy or selected.weights is not None
        batch = self._readers.reader(shard).batch(lines, None if has_all else more_copies)
        if not all(map(self._selects, set(batch.subsets))):
            raise PilekitError(
                f"{selected.plan.indexes[shard].path}: does not fit {selected.corpus.shards[shard].path} (documents "
                "have other subsets); remove it and make a new one with `pilekit index`"
            )
        weights = None if selected.weights is None else selected.weights.of(shard, batch.numbers)
        batch = documents_of_copy(batch, self._repeats, self.sequence.seed, unit.epoch, unit.copy, shard, weights)
        for filtered in self._filters([batch]) if len(batch) else ():
            filtered_orders = orders
            if not np.array_equal(lines, filtered.numbers):
                # Each document must be one of `lines`. The minimum is for numbers above all of them.
                at = np.minimum(np.searchsorted(lines, filtered.numbers), len(lines) - 1)
                if not np.array_equal(lines[at], filtered.numbers):
                    raise self._filter_error()
                filtered_orders = orders[at]
            yield selected.lane_documents(filtered, shard, position, filtered_orders)

    @cached_property
    def _subset_ids(self) -> Int64:
        """The subset id of each label of the token files, which is the same in all their indexes."""
        return self.selected.ids_of(self.selected.plan.indexes[0].header.subsets)

    def _stored(
        self, unit: Unit, index: TokenIndex, shard: int, position: int, lines: Int64, orders: Int64
    ) -> Iterator[LaneDocuments]:
        """The documents of these numbers of a token file that this copy of their unit reads, if any."""
        selected, codes = self.selected, index.codes_of(lines)
        if self._repeats or selected.weights is not None:
            factors = np.array([self._repeats.get(label, 1.0) for label in index.header.subsets])[codes]
            weights = None if selected.weights is None else selected.weights.of(shard, lines)
            seed = self.sequence.seed
            chosen = np.flatnonzero(is_of_copy(factors, seed, unit.epoch, unit.copy, shard, lines, weights))
            lines, orders, codes = lines[chosen], orders[chosen], codes[chosen]
        if len(lines):
            columns = {"order": orders, "shard": shard, "number": lines, "subset": self._subset_ids[codes]}
            yield LaneDocuments(document_table(len(lines), position=position, **columns), index.stored(lines))

    def _filter_error(self) -> PilekitError:
        return PilekitError(
            f"the filters ({shortened(repr(list(self._filters.stages)), 200)}) give documents that they were not "
            "given, or one twice; a document stage drops documents or changes their texts"
        )


def _chosen(parts: Sequence[Sequence[Any]], chosen: Int64) -> Sequence[Any]:
    """The texts of these numbers, counted over all parts, in this order."""
    stored = [part for part in parts if isinstance(part, StoredIds)]
    if stored:
        return join_stored(stored).take(chosen)
    texts = [text for part in parts for text in part]
    return [texts[i] for i in chosen.tolist()]
