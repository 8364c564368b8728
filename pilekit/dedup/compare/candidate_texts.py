"""The texts of flagged documents: those that a second reading of a shard is for.

Only lines of flagged documents are decoded, the others are passed over at the speed of decompression, and behind the
last flagged one nothing is read at all. Where few are flagged and an index of the shard fits, only the frames are
decoded in which they lie.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pilekit.corpus import Shard
from pilekit.dedup.bits import Bits, count_bits
from pilekit.dedup.sketch.sketch_format import ShardSketch
from pilekit.documents import RecordFormat
from pilekit.engine import Advance
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import fingerprint
from pilekit.shards.index.format import ShardIndex, find_index
from pilekit.shards.random_access.document_reader import DocumentReader
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.open import is_parquet
from pilekit.shards.read.parquet import parquet_batches
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES, line_blocks, located_errors
from pilekit.shards.read.unchanged import open_unchanged

Int64 = npt.NDArray[np.int64]

LIST_BYTES = 4 << 20

SPARSE = 64
"""Documents are read by number if they are no more than one line in so many, in no more than a quarter of the text."""


@dataclass(frozen=True)
class FlaggedDocuments:
    """Some documents of a shard; `flagged` has a bit for each row of its sketch, first bit lowest."""

    shard: Shard
    sketch: ShardSketch
    flagged: Bits

    @property
    def name(self) -> str:
        """The shard's."""
        return self.shard.name

    def __len__(self) -> int:
        return count_bits(self.flagged)

    def check_unchanged(self) -> None:
        """Raise `PilekitError` if the shard is not the one that was sketched."""
        now = fingerprint(self.shard.path)
        if (now.size, now.sample) != (self.sketch.header.size, self.sketch.header.sample):
            raise self.changed()

    def changed(self) -> PilekitError:
        """The error to raise for a shard that is not the one that was sketched."""
        return PilekitError(
            f"{visible(self.shard.path)}: is not the shard any more that was sketched as {visible(self.shard.name)}; "
            "bring that one back, or begin anew in another folder"
        )


def flagged_texts(documents: FlaggedDocuments, advance: Advance, *, ahead: bool) -> Iterator[list[bytes]]:
    """The texts of the flagged documents as UTF-8, in their order, as lists of about 4 MB."""
    told = 0

    def tell(amount: int) -> None:
        nonlocal told
        told += amount
        advance(amount)

    held: list[bytes] = []
    size = 0
    with closing(_texts(documents, tell, ahead)) as texts:
        for text in texts:
            held.append(text)
            size += len(text)
            del text
            if size >= LIST_BYTES:
                yield held
                held, size = [], 0
    if held:
        yield held
    advance(documents.sketch.header.size - told)


def _texts(documents: FlaggedDocuments, advance: Advance, ahead: bool) -> Generator[bytes, None, None]:
    header = documents.sketch.header
    format = RecordFormat(header.text_field, tuple(header.label_path.split(".")))
    if len(documents) * SPARSE <= header.lines and format == RecordFormat() and (index := find_index(documents.shard)):
        numbers = _Numbers(documents).below(math.inf)
        if _frames_share(index, numbers) <= 0.25:
            with closing(DocumentReader(documents.shard, index)) as reader:
                for document in reader.read(numbers):
                    yield document.text.encode()
            return
    parser = LineParser(documents.shard.path, documents.shard.name, format, None, SkippedLines())
    wanted = _Numbers(documents)
    read = _from_rows if is_parquet(documents.shard.path) else _from_lines
    with closing(read(documents, parser, wanted, advance, ahead)) as lists:
        while wanted.left:
            try:
                texts = next(lists)
            except StopIteration:
                raise documents.changed() from None
            while texts:  # A long text is not to be held twice.
                yield texts.pop().encode()


def _from_lines(
    documents: FlaggedDocuments, parser: LineParser, wanted: _Numbers, advance: Advance, ahead: bool
) -> Generator[list[str], None, None]:
    """The texts wanted, in lists of which each is the wrong way round, so that one after the other can be popped."""
    path, lines_read = documents.shard.path, 0
    with located_errors(path, lambda: lines_read), line_blocks(path, advance=advance, ahead=ahead) as blocks:
        for block in blocks:
            lines = block.lines()
            numbers = wanted.below(lines_read + len(lines))
            if len(numbers):
                texts = parser.parse([lines[i] for i in (numbers - lines_read).tolist()], numbers).texts
                if len(texts) != len(numbers):
                    raise documents.changed()
                texts.reverse()
                yield texts
            lines_read += len(lines)
            del block, lines  # A long line is not to be held while the next is read.


def _from_rows(
    documents: FlaggedDocuments, parser: LineParser, wanted: _Numbers, advance: Advance, ahead: bool
) -> Generator[list[str], None, None]:
    """The same from a Parquet shard."""
    with open_unchanged(documents.shard.path) as (file, _):
        for batch in parquet_batches(file, parser, 0, MAX_DOCUMENT_BYTES, advance):
            numbers = wanted.below(int(batch.numbers[-1]) + 1)
            chosen = np.searchsorted(batch.numbers, numbers)
            if not np.array_equal(batch.numbers[chosen], numbers):
                raise documents.changed()
            yield [batch.texts[i] for i in chosen.tolist()[::-1]]


def _frames_share(index: ShardIndex, numbers: Int64) -> float:
    """How much of the shard's text the frames are in which these lines begin."""
    frames = index.frames
    touched = np.unique(np.searchsorted(frames.line, numbers, side="right") - 1)
    sizes = np.diff(np.append(frames.text_offset, index.header.content_bytes))
    return float(sizes[touched].sum() / max(1, index.header.content_bytes))


class _Numbers:
    """The numbers of the flagged rows of a sketch, ascending; some thousand are held."""

    def __init__(self, documents: FlaggedDocuments):
        self._chunks = self._read(documents.sketch, documents.flagged)
        self._held = np.zeros(0, dtype=np.int64)
        self.left = len(documents)

    def _read(self, sketch: ShardSketch, flagged: Bits) -> Iterator[Int64]:
        first = 0
        for chunk in sketch.chunks(["number"]):
            numbers = chunk["number"]
            # A chunk begins at a multiple of 8.
            bits = np.unpackbits(flagged[first // 8 :], count=len(numbers), bitorder="little")
            yield numbers[bits.view(np.bool_)].astype(np.int64)
            first += len(numbers)

    def below(self, limit: float) -> Int64:
        """Those that are below the limit and were not given out before."""
        given = []
        while self.left:
            count = int(np.searchsorted(self._held, limit))
            given.append(self._held[:count])
            self._held, self.left = self._held[count:], self.left - count
            if len(self._held) or not self.left:
                break
            self._held = next(self._chunks)
        return np.concatenate(given) if given else np.zeros(0, dtype=np.int64)
