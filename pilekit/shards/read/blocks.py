"""`shard_blocks`: from a shard, in any storage, to blocks of its lines or rows.

    open_unchanged -> zstd frames, gzip members or plain bytes -> pieces of 1-3 MiB, in a thread -> whole_lines
    open_unchanged -> Parquet's row groups -> rows

`ReadOptions` says how a shard is read. An error of any step becomes one line that names file, frame, line and byte.
Memory is a few pieces, whatever the shard's size.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager
from typing import BinaryIO, Protocol

from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError
from pilekit.shards.read.change_check import open_unchanged
from pilekit.shards.read.lines import LineBlock, LineCount, RowBlock, whole_lines
from pilekit.shards.read.open import MAX_DOCUMENT_BYTES, ReadOptions, is_parquet
from pilekit.shards.read.prefetch import run_ahead
from pilekit.shards.read.read_errors import LineTooLong, ShardDamage
from pilekit.shards.read.zstd_frames import PIECE_BYTES, decompress_frames


class ShardWatch(Protocol):
    """Sees all of a shard, in order, and counts its lines.

    It sees bytes in the decoding thread, before the text that belongs to them is yielded.
    """

    count: LineCount

    def see_stored(self, data: bytes) -> None:
        """Receives all stored bytes."""

    def see_frame(self, number: int, offset: int) -> None:
        """Receives the number and the first stored byte of each zstd frame."""

    def see_text(self, piece: bytes) -> None:
        """Receives all decompressed bytes."""

    def see_block(self, block: LineBlock) -> LineBlock:
        """Receives each block, before its first line, and returns it."""


@contextmanager
def shard_blocks(
    path: str,
    options: ReadOptions,
    *,
    shown: str | None = None,
    columns: RecordFormat | Collection[str] = (),
    start: int = 0,
    watch: ShardWatch | None = None,
) -> Iterator[Iterator[LineBlock | RowBlock]]:
    """The blocks of a shard at a path or URL, once and in order.

    shown     the shard's name in messages; None: its path
    columns   the columns of a Parquet shard to read: text and label, or these (all, if it has none of these)
    start     rows of a Parquet shard before this number are passed over
    watch     sees all bytes and all blocks of text

    Damage and too long lines are a `PilekitError` in the `with` block, which names the line.
    """
    count, shown = LineCount() if watch is None else watch.count, shown or path
    if is_parquet(path):
        from pilekit.shards.read.parquet import row_blocks

        with row_blocks(path, options, shown, columns, start, count) as rows:
            yield rows
        return
    with (
        locate_errors(shown, lambda: count.lines, options.max_document_bytes),
        text_pieces(path, options, watch) as pieces,
    ):
        blocks = whole_lines(pieces, options.max_document_bytes, count)
        yield blocks if watch is None else map(watch.see_block, blocks)


@contextmanager
def text_pieces(path: str, options: ReadOptions, watch: ShardWatch | None = None) -> Iterator[Iterator[bytes]]:
    """The decompressed bytes of a shard that is not Parquet, in pieces of 1-3 MiB.

    Errors do not name the line: wrap this in `locate_errors`.
    """
    with open_unchanged(path, options.advance, None if watch is None else watch.see_stored) as (file, storage):
        if storage == "zstd":
            on_frame = None if watch is None else watch.see_frame
            decoded = decompress_frames(file, max_window=options.max_window, on_frame=on_frame)
        else:
            decoded = gunzip(file) if storage == "gzip" else _plain_pieces(file, options.piece_bytes)
        joined = _join_pieces(decoded, options.piece_bytes // 2, None if watch is None else watch.see_text)
        with closing(run_ahead(joined) if options.ahead else joined) as pieces:
            yield pieces


@contextmanager
def locate_errors(path: str, lines: Callable[[], int], max_document_bytes: int = MAX_DOCUMENT_BYTES) -> Iterator[None]:
    """Turn damage and too long lines into a `PilekitError` that names the line; `lines()` is the number of lines read
    before it."""
    try:
        yield
    except ShardDamage as damage:
        raise PilekitError(damage.describe(path, lines() + 1)) from damage
    except LineTooLong as long:
        raise PilekitError(
            f"{path}, line {lines() + long.lines_before + 1:,}: is longer than {max_document_bytes:,} bytes; "
            "split the document or, if you trust the file, raise max_document_bytes of `pilekit.read`"
        ) from long


def _join_pieces(
    pieces: Iterator[bytes], least: int, see_text: Callable[[bytes], None] | None
) -> Generator[bytes, None, None]:
    """Join small pieces (of many tiny frames) into pieces of at least `least` bytes."""
    waiting: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            if see_text is not None:
                see_text(piece)
            size += len(piece)
            waiting.append(piece)
            if size >= least:
                yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
                waiting, size = [], 0
    except ShardDamage:
        # The text before the damage is good, and its lines must be counted to name the damaged line.
        yield b"".join(waiting)
        raise
    if waiting:
        yield b"".join(waiting)


def gunzip(file: BinaryIO) -> Iterator[bytes]:
    """Decompress all members of a gzip file; yields pieces of at most 256 KiB."""
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as text:
            # read() would throw away up to a whole piece of good text when it meets damage.
            while piece := text.read1(PIECE_BYTES // 8):
                yield piece
    except EOFError:
        reason = "is cut off: its gzip member has no end; fetch it again"
        raise ShardDamage(reason, frame=None, byte=file.tell()) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ShardDamage(f"is damaged ({error}); fetch it again", frame=None, byte=file.tell(), since=0) from error
    if file.tell() == 0:
        raise ShardDamage("is empty (0 bytes), not a gzip file; fetch it again", frame=None, byte=0)


def _plain_pieces(file: BinaryIO, piece_bytes: int) -> Iterator[bytes]:
    while piece := file.read(piece_bytes):
        yield piece
    if file.tell() == 0:
        raise ShardDamage("is empty (0 bytes); fetch it again", frame=None, byte=0)
