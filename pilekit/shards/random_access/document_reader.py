"""Documents by number: `read_documents(shard, numbers)`.

    for document in read_documents("00.jsonl.zst", [5_000_000, 17]):
        print(document.subset, document.text[:80])

A document costs what decoding its frame costs, 1 MiB of text or so in a shard that `pilekit reframe` wrote, wherever it
lies. In a shard with frames too large to hold, as the released ones are, what is asked of them is sorted and they are
gone through once; what comes before its turn waits in memory.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.corpus import Manifest, Shard, shard_of
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.shards.index.build import index_of
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.random_access.frame_cache import FrameCache
from pilekit.shards.random_access.frame_lru import HeldFrames
from pilekit.shards.random_access.lines_by_number import LinesByNumber, LinesFromTheBeginning, no_such_number
from pilekit.shards.read.damage import BadLine, SkippedLines
from pilekit.shards.read.json_records import BadRecord, LineParser, document_of
from pilekit.shards.read.open import is_parquet
from pilekit.shards.read.reader import record_format

if TYPE_CHECKING:
    from pilekit.shards.random_access.rows_by_number import RowsByNumber


class StoredDocument(NamedTuple):
    """One document.

    text     what its record says
    meta     the record's "meta" object; where it has none, all its fields but the text
    subset   its label, `(none)` where it has none
    number   the number of its line in the shard, from 0
    shard    the shard's name; with the number it is the document's identity
    """

    text: str
    meta: dict[str, Any]
    subset: str
    number: int
    shard: str


def read_documents(
    shard: str | Path | Shard, numbers: Iterable[int], *, manifest: Manifest | None = None
) -> Iterator[StoredDocument]:
    """Yield the documents of these numbers, in the order given; numbers may repeat.

    shard      a path, a URL, or a `Shard` of a `Corpus`
    numbers    line numbers from 0, bad and blank lines included
    manifest   where records keep text and label; the Pile's by default

    Uses the shard's index; where there is none that fits, one is made, for which the shard is read once. `PilekitError`
    for a number whose line is no document, or that the shard does not have, and for damage in a frame that is needed.
    """
    shard = shard if isinstance(shard, Shard) else shard_of(str(shard))
    # Lines that are no documents matter only if they are asked for.
    index = index_of(shard, manifest=manifest, on_error="skip")

    def documents() -> Iterator[StoredDocument]:
        with closing(DocumentReader(shard, index, manifest=manifest)) as reader:
            yield from reader.read(numbers)

    return documents()


class DocumentReader:
    """Reads documents of one shard; close it when done. One thread at a time may use it.

    index     of the shard; None: each document is looked for from the beginning (but for Parquet, which needs no index)
    held      where decoded frames are held, if several readers share that
    advance   called with each further amount of stored bytes read in going through what cannot be held
    cache     where frames of a remote shard are kept; those of Parquet are not
    """

    def __init__(
        self,
        shard: Shard,
        index: ShardIndex | None,
        *,
        manifest: Manifest | None = None,
        held: HeldFrames[Any] | None = None,
        advance: Callable[[int], None] | None = None,
        cache: FrameCache | None = None,
    ):
        self.shard, self.format = shard, record_format(manifest)
        self._path = shard.path if shard.path != "-" else shard.name
        self._records: LinesByNumber | RowsByNumber | LinesFromTheBeginning
        held = HeldFrames() if held is None else held
        if is_parquet(shard.path):
            from pilekit.shards.random_access.rows_by_number import RowsByNumber

            self._records = rows = RowsByNumber(shard.path, self.format, held)
            self.format = rows.format
        elif index is not None:
            self._records = LinesByNumber(shard.path, index, held, advance, cache)
        else:
            self._records = LinesFromTheBeginning(shard.path, self._path, advance)

    def close(self) -> None:
        """Close the shard's file."""
        self._records.close()

    def document(self, number: int) -> StoredDocument:
        """The document of this number; `PilekitError` if it is none."""
        number = self._known(number)
        try:
            record = self._records.record(number)
            text, subset = document_of(record, self.format)
        except BadRecord as bad:
            raise PilekitError(
                f"{visible(self._path)}: number {number:,} is no document: line {number + 1:,} {bad}"
            ) from None
        assert isinstance(record, dict)
        meta = record.get("meta")
        if not isinstance(meta, dict):
            meta = {key: value for key, value in record.items() if key != self.format.text_field}
        return StoredDocument(text, meta, subset, number, self.shard.name)

    def batch(self, numbers: npt.NDArray[np.int64], labels: Collection[str] | None = None) -> DocumentBatch:
        """The documents of these numbers, int64 and increasing, of a shard with an index; each frame is decoded once.

        labels   only those with these labels; lines that end in another are not parsed

        PilekitError if a number is no document's: the index tells which are.
        """
        assert not isinstance(self._records, LinesFromTheBeginning)
        if len(numbers):
            self._known(int(numbers[0]))
            self._known(int(numbers[-1]))
        skipped = SkippedLines()
        parser = LineParser(self._path, self.shard.name, self.format, None, skipped)
        if isinstance(self._records, LinesByNumber):
            lines = self._records.lines_of(numbers)
            if labels is not None:
                chosen = parser.may_be_of(lines, labels)
                lines, numbers = [lines[i] for i in chosen], numbers[chosen]
            batch = parser.parse(lines, numbers)
        else:
            batch = self._records.batch(numbers, parser)
        if len(batch) < len(numbers):
            blank = BadLine(self._path, int(np.setdiff1d(numbers, batch.numbers)[0]) + 1, "is blank")
            bad = min([*skipped.examples[:1], blank], key=lambda bad: bad.line)
            raise PilekitError(f"{bad}; its index has a document there: make it anew with `pilekit index`")
        return batch if labels is None else batch.where([label in labels for label in batch.subsets])

    def read(self, numbers: Iterable[int]) -> Iterator[StoredDocument]:
        """Yield the documents of these numbers, in their order."""
        asked = map(self._known, numbers)
        for number in asked:
            if not self._records.is_near(number):
                yield from self._in_turn([number, *asked])
            else:
                yield self.document(number)

    def _in_turn(self, numbers: list[int]) -> Iterator[StoredDocument]:
        """The same, where some lie in frames that are gone through: in increasing order, which need not be theirs."""
        times = Counter(number for number in numbers if not self._records.is_near(number))
        ahead = iter(sorted(times))
        waiting: dict[int, StoredDocument] = {}
        for number in numbers:
            if number not in times:
                yield self.document(number)
                continue
            while number not in waiting:
                following = next(ahead)
                waiting[following] = self.document(following)
            yield waiting[number]
            times[number] -= 1
            if not times[number]:
                del waiting[number]

    def _known(self, number: int) -> int:
        try:
            number = operator.index(number)
        except TypeError:
            raise PilekitError(f"a document's number is an integer, not {visible(repr(number), 80)}") from None
        lines = self._records.lines
        if number < 0:
            raise PilekitError(f"{visible(self._path)}: has no document {number:,}: numbers begin at 0")
        if lines is not None and number >= lines:
            raise no_such_number(self._path, number, lines)
        return number
