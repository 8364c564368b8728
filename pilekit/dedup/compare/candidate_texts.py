"""The texts of candidates, from a second reading of their shard.

Only the candidates' lines are parsed. Other lines are passed over at the speed of decompression, and nothing is read
after the last candidate.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

import numpy as np
import numpy.typing as npt

from pilekit.corpus import Shard
from pilekit.dedup.sketch.sketch_format import ShardSketch
from pilekit.documents import RecordFormat
from pilekit.engine import Advance
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import fingerprint
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.open import is_parquet
from pilekit.shards.read.parquet import parquet_batches
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES, line_blocks, located_errors
from pilekit.shards.read.unchanged import open_unchanged

Int64 = npt.NDArray[np.int64]

LIST_BYTES = 4 << 20


def check_unchanged(shard: Shard, sketch: ShardSketch) -> None:
    """Raise `PilekitError` if the shard differs from the sketched shard."""
    now = fingerprint(shard.path)
    if (now.size, now.sample) != (sketch.header.size, sketch.header.sample):
        raise _changed(shard)


def _changed(shard: Shard) -> PilekitError:
    return PilekitError(
        f"{visible(shard.path)}: is not the shard any more that was sketched as {visible(shard.name)}; bring that one "
        "back, or start again in another folder"
    )


def candidate_texts(
    shard: Shard, sketch: ShardSketch, numbers: Int64, advance: Advance, *, ahead: bool
) -> Iterator[list[bytes]]:
    """The texts of the documents with these ascending numbers, as lists of about 4 MB of UTF-8.

    advance   receives further amounts of stored bytes, up to the size of the shard
    ahead     decompress in a thread
    """
    told = 0

    def tell(amount: int) -> None:
        nonlocal told
        told += amount
        advance(amount)

    header = sketch.header
    format = RecordFormat(header.text_field, tuple(header.label_path.split(".")))
    parser = LineParser(shard.path, shard.name, format, None, SkippedLines())
    held: list[bytes] = []
    size = found = 0
    read = _from_rows(shard, parser, numbers, tell) if is_parquet(shard.path) else None
    with closing(read or _from_lines(shard, parser, numbers, tell, ahead)) as lists:
        while found < len(numbers):
            texts = next(lists, None)
            if texts is None:
                raise _changed(shard)
            found += len(texts)
            while texts:  # Popped, because a long text must not be held twice.
                held.append(texts.pop().encode())
                size += len(held[-1])
                if size >= LIST_BYTES:
                    yield held
                    held, size = [], 0
    if held:
        yield held
    advance(header.size - told)


def _from_lines(
    shard: Shard, parser: LineParser, numbers: Int64, advance: Advance, ahead: bool
) -> Generator[list[str], None, None]:
    """Lists of texts, each in reverse order, so that the caller can pop and free each text."""
    lines_read = 0
    with (
        located_errors(shard.path, lambda: lines_read),
        line_blocks(shard.path, advance=advance, ahead=ahead) as blocks,
    ):
        for block in blocks:
            lines = block.lines()
            begin, end = np.searchsorted(numbers, [lines_read, lines_read + len(lines)])
            some = numbers[begin:end]
            texts = parser.parse([lines[i] for i in (some - lines_read).tolist()], some).texts
            lines_read += len(lines)
            del block, lines  # A long line must not be held while the next is read.
            if len(texts) != len(some):
                raise _changed(shard)
            texts.reverse()
            yield texts


def _from_rows(shard: Shard, parser: LineParser, numbers: Int64, advance: Advance) -> Generator[list[str], None, None]:
    """The same from a Parquet shard."""
    with open_unchanged(shard.path) as (file, _):
        for batch in parquet_batches(file, parser, 0, MAX_DOCUMENT_BYTES, advance):
            _, chosen, _ = np.intersect1d(batch.numbers, numbers, assume_unique=True, return_indices=True)
            yield [batch.texts[i] for i in chosen.tolist()[::-1]]
