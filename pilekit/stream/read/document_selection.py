"""`StreamDocuments`: the documents that a stream reads, for any number of lanes.

Under random access, the documents are numbered 0 .. N - 1: shard by shard, in the order of the shards' names, and in
each shard by line. The subset and a finished dedup's keep masks leave documents out, and the indexes leave out bad
lines. Skipping them costs nothing. If all lines of a shard are selected, a document's place is computed and no row of
the shard's index is read. Otherwise there is one bit for each line of the shard.

It also computes the fingerprint of the documents.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np
import xxhash

from pilekit.corpus import UNLABELLED, Corpus
from pilekit.corpus.shard import is_url
from pilekit.corpus.shuffle import Int64
from pilekit.dedup.cluster_weights import ClusterWeights, LineWeights
from pilekit.dedup.drop_duplicates import DropDuplicates
from pilekit.documents import DocumentBatch, check_labels
from pilekit.errors import PilekitError, counted, shortened
from pilekit.pipeline.pipeline import Pipeline, Stage, described
from pilekit.shards.index.format import warn_of_bad_lines
from pilekit.shards.random_access.document_reader import OpenReaders
from pilekit.shards.random_access.frame_cache import FrameCache
from pilekit.shards.random_access.selected_lines import CorpusBitmap, LineBitmap, lines_of_subsets
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.read.change_check import version_of
from pilekit.shards.read.reader import OnError
from pilekit.stream.order.unit_sequence import Sequence as UnitSequence
from pilekit.stream.order.unit_sequence import slots_of
from pilekit.stream.read.lane_documents import LaneDocuments, document_table
from pilekit.stream.read.mixture import exact_repeats, repeats_of_weights
from pilekit.stream.read.read_plan import Plan
from pilekit.stream.read.token_files import TokenCorpus, TokenIndex
from pilekit.tokenize import Tokenizer

OTHER = "(other)"
"""The subset of documents whose label is not in the stream's `subset_names`."""

_COMPARED = 32
"""Texts of a shard that are compared with the deduplicated texts."""

_MOST_IN_UNIT = 256
_UNITS_PER_LANE = 16


@dataclass(eq=False)
class StreamDocuments:
    """The documents of a stream.

    subsets    exact names; None: all
    repeats    factors that are not 1, by exact name
    filters    document stages
    dedup      the masks of a finished dedup
    clusters   how often its documents count; None: once
    shuffle_block   under the sequential plan: lines in a block whose documents are permuted
    raw        whether to give whole documents, for a stream without a tokenizer
    cache      the cache of remote shards' frames
    beside     names of subsets beside those of the corpus; their ids are the last
    drawn      the subsets that weights by step draw, exact names

    documents  under random access: the selected documents by position
    count      under random access: their number; else None
    weights    the weights of all lines by `clusters`
    versions   under the sequential plan: the versions of the shards when the stream was made

    `PilekitError` if nothing is selected, if an index is damaged, if the dedup is not finished, or if it was made
    from other shards, which the first texts of each shard show. Without indexes, only reading finds the latter.
    """

    corpus: Corpus
    plan: Plan
    subsets: tuple[str, ...] | None = None
    repeats: Mapping[str, float] = field(default_factory=dict)
    filters: tuple[Stage, ...] = ()
    dedup: DropDuplicates | None = None
    clusters: ClusterWeights | None = None
    seed: int = 0
    shuffle: bool = True
    shuffle_block: int = 4096
    on_error: OnError = "raise"
    raw: bool = False
    cache: FrameCache | None = None
    beside: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.count: int | None = None
        self._of_subset: dict[str, CorpusBitmap] = {}
        self._uses_of_subset: dict[str, float] = {}
        self.versions: tuple[str, ...] = ()
        self.weights: LineWeights | None = None
        self._slots: tuple[int, Int64] | None = None
        if self.plan.name == "sequential":
            if self.cache is not None and any(is_url(shard.path) for shard in self.corpus.shards):
                raise PilekitError(
                    f"cache= keeps frames that are reached at random, but {self.plan.reason}; put what `pilekit "
                    "reframe` makes of the shards in their place, or leave out cache="
                )
            if self.clusters is not None:
                raise PilekitError(
                    f"copies needs random access to use single documents again, and {self.plan.reason}; write the "
                    "corpus again with `pilekit reframe`, or leave copies out"
                )
            self.versions = tuple(version_of(shard.path) for shard in self.corpus.shards)
            return
        self._selects_all = self.subsets is None and 0 not in self.repeats.values()
        self.documents = CorpusBitmap(self._lines(None if self._selects_all else self.selects))
        self.count = len(self.documents)
        if isinstance(self.corpus, Corpus):
            labels = set().union(*(index.subsets for index in self.plan.indexes)) if self.count else ()
            check_label(self.corpus, labels, self.subsets)
        if not self.count:
            raise PilekitError(
                f"{self.corpus.root}: no document is selected by subsets, repeats and dedup; `pilekit stats` "
                "shows what the shards hold"
            )
        if self.dedup is not None and not isinstance(self.corpus, TokenCorpus):
            # Compare some texts: another shard of the same name and length would lose the wrong documents.
            deque(self.dedup(self._some_of_each()), maxlen=0)
        if self.clusters is not None:
            self.weights = self.clusters.of_lines([shard.name for shard in self.corpus.shards])
        for shard, index in zip(self.corpus.shards, self.plan.indexes, strict=True):
            warn_of_bad_lines(shard, index)

    def take_weights(
        self, shares: Mapping[str, float], tokenizer: Tokenizer | None, append_eod: bool
    ) -> dict[str, float]:
        """Set `repeats` to the factors that give these shares of tokens, and return them.

        PilekitError under the sequential plan, which cannot draw documents.
        """
        if self.count is None or tokenizer is None:
            raise PilekitError(
                f"weights need random access to draw documents, and the plan is sequential: {self.plan.reason}; write "
                "the corpus again with `pilekit reframe`, or give repeats"
            )
        lines = self.documents.lines
        factors = repeats_of_weights(
            shares, self.corpus, self.plan.indexes, lines, tokenizer, append_eod=append_eod, uses=self.weights
        )
        self._slots = None
        self.repeats = exact_repeats(factors, self.subsets, self.corpus.manifest)
        return dict(self.repeats)

    @cached_property
    def readable(self) -> Sequence[LineBitmap]:
        """The lines of each shard from which subsets are drawn: also those that `subsets` and `repeats` leave out."""
        return self.documents.lines if self._selects_all else self._lines(None)

    def _lines(self, is_selected: Callable[[str], bool] | None) -> list[LineBitmap]:
        """The lines of each shard with such labels, without those that the dedup removed."""
        by_shard = []
        for shard, index in zip(self.corpus.shards, self.plan.indexes, strict=True):
            selected = lines_of_subsets(index, is_selected)
            if self.dedup is not None:
                mask = self.dedup.mask(shard.name)
                bits = mask.bits
                if isinstance(index, TokenIndex):
                    bits = index.mask_bits(mask, self.dedup.folder)
                elif not selected.end <= mask.header.lines <= selected.lines:
                    raise PilekitError(
                        f"{shard.path}: has {counted(selected.lines, 'line')}, but what was deduplicated in "
                        f"{self.dedup.folder} under its name has {mask.header.lines:,}; run `pilekit dedup` on "
                        "it"
                    )
                # A mask ends with the last document; blank lines may follow it in the shard.
                selected = selected.and_bits(np.pad(bits, (0, -(-selected.lines // 8) - len(bits))))
            by_shard.append(selected)
        return by_shard

    def of_subset(self, name: str) -> CorpusBitmap:
        """The `readable` documents of one subset, by their numbers among these; PilekitError if there are none."""
        if name not in self._of_subset:
            self.find_subsets([name])
        documents = self._of_subset[name]
        if not len(documents):
            raise PilekitError(f"weights names {shortened(name, 80)}, which has no document here; leave it out")
        return documents

    def uses_of_subset(self, name: str) -> float:
        """The uses of a subset's documents in an epoch of its own: their number, or the sum of their weights."""
        documents, weights = self.of_subset(name), self.weights
        if weights is None:
            return len(documents)
        if name not in self._uses_of_subset:
            sums = (weights.of(shard, numbers).sum() for shard, numbers in enumerate(_numbers(documents.lines)))
            self._uses_of_subset[name] = float(sum(sums))
        return self._uses_of_subset[name]

    def slots_of_subset(self, name: str, unit: int) -> Int64 | None:
        """The slots of a subset's own sequence in units of this size (see `Sequence`); None without weights."""
        if self.weights is None:
            return None
        return slots_of(self.weights.heaviest(_numbers(self.of_subset(name).lines), unit))

    def find_subsets(self, names: Sequence[str]) -> None:
        """Find the documents of these subsets, in one pass through the indexes."""
        by_shard: list[dict[str, LineBitmap]] = []
        for index, selected in zip(self.plan.indexes, self.readable, strict=True):
            numbers: dict[str, list[Int64]] = {name: [] for name in names}
            for rows in index.rows("number", "subset"):
                for code, label in enumerate(rows.labels):
                    if label in numbers:
                        numbers[label].append(rows.numbers[rows.codes == code])
            found = {name: LineBitmap.where(index.header.lines, parts) for name, parts in numbers.items()}
            if selected.bits is not None:
                found = {name: lines.and_bits(selected.bits) for name, lines in found.items()}
            by_shard.append(found)
        self._of_subset |= {name: CorpusBitmap([lines[name] for lines in by_shard]) for name in names}

    def _some_of_each(self) -> Iterator[DocumentBatch]:
        """The first selected documents of each shard."""
        readers = OpenReaders(self.corpus, self.plan.indexes)
        for shard, lines in enumerate(self.documents.lines):
            if len(lines):
                yield readers.reader(shard).batch(lines.numbers(0, min(_COMPARED, len(lines))))
        readers.close()

    @property
    def block(self) -> int | None:
        """Lines in a block whose documents are permuted; None if units or nothing is."""
        return self.shuffle_block if self.count is None and self.shuffle else None

    def selects(self, label: str) -> bool:
        """Whether the selection keeps documents with this label."""
        return (self.subsets is None or label in self.subsets) and self.repeats.get(label) != 0

    def ids_of(self, labels: Iterable[str]) -> Int64:
        """The subset ids of these labels."""
        ids, other = self.subset_ids, self.subset_ids[OTHER]
        return np.array([ids.get(label, other) for label in labels], np.int64)

    def lane_documents(self, batch: DocumentBatch, shard: int, position: int, orders: Int64) -> LaneDocuments:
        """The batch, which is of shard number `shard`, as documents of a lane, with these `orders` in the unit.

        For a stream of whole documents, their texts are `Document`s.
        """
        columns = {"order": orders, "shard": shard, "number": batch.numbers, "subset": self.ids_of(batch.subsets)}
        table = document_table(len(batch), position=position, **columns)
        return LaneDocuments(table, list(batch) if self.raw else batch.texts)

    @property
    def skipped(self) -> int | None:
        """Bad lines that the indexes left out; None without indexes."""
        return None if self.count is None else sum(index.header.skipped for index in self.plan.indexes)

    def default_unit(self, lanes: int) -> int:
        """Documents in a unit of a new run; 1 under the sequential plan, whose units are shards."""
        if self.count is None:
            return 1
        return max(1, min(_MOST_IN_UNIT, self.count // (_UNITS_PER_LANE * lanes)))

    def sequence(self, unit: int, lanes: int) -> UnitSequence:
        """Under random access: the sequence of the selected documents, for so many lanes."""
        copies, slots = self.copies, self.slots(unit)
        return UnitSequence(len(self.documents), unit, copies, self.seed, lanes, self.shuffle, slots)

    def per_epoch(self, unit: int) -> int:
        """Positions in an epoch over all lanes. Under the sequential plan: per shard of a lane."""
        if (slots := self.slots(unit)) is not None:
            return len(slots)
        return self.copies * (1 if self.count is None else -(-self.count // unit))

    def positions(self, unit: int) -> int:
        """Positions in an epoch of a stream with one lane."""
        return self.per_epoch(unit) * (len(self.corpus.shards) if self.count is None else 1)

    @property
    def largest_factor(self) -> float:
        """The largest factor of a selected subset."""
        if self.subsets is None:
            return max([1.0, *self.repeats.values()])
        return max(self.repeats.get(label, 1.0) for label in self.subsets)

    @property
    def copies(self) -> int:
        """Copies of each unit per epoch, without weights: the largest factor, rounded up; at least 1."""
        return max(1, math.ceil(self.largest_factor))

    @property
    def uses(self) -> float | None:
        """With weights: the sum of all documents' weights."""
        if self.weights is None:
            return None
        numbers_of_shards = enumerate(_numbers(self.documents.lines))
        return float(sum(self.weights.of(shard, numbers).sum() for shard, numbers in numbers_of_shards))

    def slots(self, unit: int) -> Int64 | None:
        """The slots of the sequence in units of this size (see `Sequence`); None without weights."""
        if self.weights is None:
            return None
        if self._slots is None or self._slots[0] != unit:
            heaviest = self.weights.heaviest(_numbers(self.documents.lines), unit)
            self._slots = unit, slots_of(heaviest * self.largest_factor)
        return self._slots[1]

    def moved_places(self, places: Int64, old_per_epoch: int, unit: int) -> Int64:
        """`places`, int64 [L, 3], for changed subsets or repeats: equally far in the epoch, at a window's start."""
        new = self.per_epoch(unit)
        moved = places.copy()
        moved[:, 2] = 0
        if new != old_per_epoch:
            lanes = len(places)
            first, stride = (0, 1) if self.count is None else (np.arange(lanes), lanes)
            moved[:, 0] = first + stride * ((places[:, 0] - first) // stride * new // old_per_epoch)
            moved[:, 1] = 0
        return moved

    @cached_property
    def subset_ids(self) -> dict[str, int]:
        """Ids from 0 by name: the manifest's names, other labels sorted by name, and `(other)` for the rest.

        They are the same for every rank. Other labels come from `subsets` if given, else from the shards' indexes.
        Without indexes (sequential plan) only `(none)` and the names in `repeats` are known.
        """
        listed = [subset.name for subset in self.corpus.manifest.subsets]
        if self.subsets is not None:
            labels = {*self.subsets, *self.drawn}
        elif self.count is not None:
            labels = {name for index in self.plan.indexes for name in index.subsets}
        else:
            labels = {UNLABELLED, *self.repeats}
        other_labels = labels.difference(listed, [OTHER, *self.beside])
        check_labels(other_labels)
        return {name: number for number, name in enumerate([*listed, *sorted(other_labels), OTHER, *self.beside])}

    def fingerprint(self) -> dict[str, object]:
        """The identity of the documents and of their order, without the plan; JSON types."""
        manifest = self.corpus.manifest
        record: dict[str, object] = {"text_field": manifest.text_field, "label_path": manifest.label_path}
        content: object = [[shard.name, shard.size] for shard in self.corpus.shards]
        if self.count is not None:
            # Recompressing does not change it. A Parquet shard's index has no hash of the text, so its file is hashed
            # instead (size and sample).
            identities = [
                [shard.name, header.documents, header.content_hash or [header.size, header.sample]]
                for shard, header in zip(self.corpus.shards, (index.header for index in self.plan.indexes), strict=True)
            ]
            content = xxhash.xxh3_128_hexdigest(json.dumps(identities).encode())
            # Only labels that occur: a state from before labels were joined fits where none is.
            if joined := {label: name for index in self.plan.indexes for label, name in index.joined.items()}:
                record["joined"] = joined
        elif self.subsets is not None or self.repeats:
            record = {**manifest.record}
        return {
            "shards": {
                "count": len(self.corpus.shards),
                "content": _hash(content),
                **({"stored as": "token files"} if isinstance(self.corpus, TokenCorpus) else {}),
            },
            "record": record,
            "subset_names": _hash([subset.name for subset in manifest.subsets]),
            "filters": [described(stage) for stage in self.filters],
            "dedup": None if self.dedup is None else self.dedup.identity,
            **({} if self.clusters is None else {"copies": self.clusters.described()}),
            "seed": self.seed,
            "shuffle": self.shuffle,
            "shuffle_block": self.block,
            "subsets": None if self.subsets is None else sorted(self.subsets),
            "repeats": dict(self.repeats),
        }


def checked_filters(filters: Sequence[Stage]) -> tuple[Stage, ...]:
    """`filters` as a tuple; PilekitError if it is not a list of document stages, or if a stage is stateful."""
    chain = Pipeline(filters)
    if chain.stateful:
        raise PilekitError(
            f"filters={shortened(repr(list(chain.stages)), 200)}: a stage's result depends on earlier documents, and a "
            "stream's documents are read by many processes; run `pilekit dedup` and give dedup=FOLDER"
        )
    return tuple(chain.stages)


def _numbers(by_shard: Sequence[LineBitmap]) -> Iterator[Int64]:
    """The numbers of the chosen lines of each shard."""
    return (lines.numbers(0, len(lines)) for lines in by_shard)


def _hash(value: object) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(value, order="sorted"))
