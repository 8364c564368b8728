"""Read shards: stored bytes -> pieces of text -> lines -> `DocumentBatch`es.

    open_unchanged -> decompress (a thread, ahead) -> whole_lines -> LineParser

Each arrow is a generator; this file only joins them, and turns what goes wrong in any of them into one line that names
file, frame, line and byte. Memory is a few pieces of 2 MiB whatever the shard's size.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self, cast

from pilekit.corpus import Corpus, Manifest, Shard, resolve_subsets, shard_of
from pilekit.documents import DocumentBatch, RecordFormat
from pilekit.errors import PilekitError, visible
from pilekit.shards.read.damage import ShardDamage, SkippedLines
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import Line, LineBlock, LineTooLong, whole_lines
from pilekit.shards.read.open import Storage, is_parquet
from pilekit.shards.read.prefetch import run_ahead
from pilekit.shards.read.unchanged import open_unchanged
from pilekit.shards.read.zstd_frames import MAX_WINDOW, PIECE_BYTES, decompress_frames

MAX_DOCUMENT_BYTES = 1 << 30
OnError = Literal["raise", "skip"]


class ShardReader(Iterator[DocumentBatch]):
    """The batches of one shard or of several, in order; `skipped` tells of the bad lines passed over so far."""

    def __init__(self, batches: Generator[DocumentBatch, None, None], skipped: SkippedLines):
        self._batches = batches
        self.skipped = skipped

    def __next__(self) -> DocumentBatch:
        return next(self._batches)

    def close(self) -> None:
        """Stop reading: the decoding thread ends and the file is closed."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read(
    source: str | Path | Shard,
    subsets: Sequence[str] | None = None,
    on_error: OnError = "raise",
    *,
    manifest: Manifest | None = None,
    start: int = 0,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    max_window: int = MAX_WINDOW,
    advance: Callable[[int], None] | None = None,
    ahead: bool = True,
) -> ShardReader:
    """Read one shard.

    source               a path, a URL, `-` for standard input, or a `Shard` of a `Corpus`
    subsets              only documents of these subsets, in any spelling the manifest knows; None: all
    on_error             "raise": a bad line is a `PilekitError`; "skip": it is counted and listed in `.skipped`
    manifest             where records keep text and label; the Pile's by default
    start                the first document number wanted; lines before it are decompressed but not decoded
    max_document_bytes   a longer line is an error (1 GiB)
    max_window           a zstd frame that needs a larger window is an error (128 MiB)
    advance              called, from the decoding thread, with each further amount of stored bytes read
    ahead                decompress in a thread of its own; False where every CPU has a process already, which is then
                         a few percent faster

    Yields `DocumentBatch`es of about 1-4 MB of text. A truncated or damaged file, and any line too long, is a
    `PilekitError` whatever `on_error` says: what follows is lost, and that must not pass in silence.
    """
    if on_error not in ("raise", "skip"):
        raise PilekitError(f'on_error is "raise" or "skip", not {on_error!r}')
    shard = source if isinstance(source, Shard) else shard_of(str(source))
    if subsets is not None:
        subsets = resolve_subsets(*([subsets] if isinstance(subsets, str) else subsets), manifest=manifest)
        if not subsets:
            raise PilekitError("subsets is empty, so no document is selected; name some, or give None for all")
    skipped = SkippedLines()
    parser = LineParser(
        path=shard.path if shard.path != "-" else shard.name,
        shard=shard.name,
        format=record_format(manifest),
        subsets=None if subsets is None else frozenset(subsets),
        skipped=skipped if on_error == "skip" else None,
    )
    return ShardReader(_batches(shard.path, parser, start, max_document_bytes, max_window, advance, ahead), skipped)


def read_corpus(
    corpus: Corpus,
    subsets: Sequence[str] | None = None,
    on_error: OnError = "raise",
    *,
    advance: Callable[[int], None] | None = None,
) -> ShardReader:
    """Read all shards of a corpus, one after the other; arguments as in `read`."""
    skipped = SkippedLines()

    def batches() -> Generator[DocumentBatch, None, None]:
        for shard in corpus.shards:
            with read(shard, subsets, on_error, manifest=corpus.manifest, advance=advance) as reader:
                try:
                    yield from reader
                finally:
                    skipped.merge(reader.skipped)

    return ShardReader(batches(), skipped)


def record_format(manifest: Manifest | None = None) -> RecordFormat:
    """Where records of this corpus keep their text and label; the Pile's places without a manifest."""
    if manifest is None:
        return RecordFormat()
    return RecordFormat(manifest.text_field, tuple(manifest.label_path.split(".")))


def _batches(
    path: str,
    parser: LineParser,
    start: int,
    max_document_bytes: int,
    max_window: int,
    advance: Callable[[int], None] | None,
    ahead: bool,
) -> Generator[DocumentBatch, None, None]:
    if is_parquet(path):
        from pilekit.shards.read.parquet import parquet_batches

        with open_unchanged(path) as (file, _):
            yield from parquet_batches(file, parser, start, max_document_bytes, advance)
        return
    read_lines = 0

    def lines() -> Iterator[list[Line]]:
        nonlocal read_lines
        for block in blocks:
            lines = [block.lines()]
            del block
            read_lines += len(lines[0])
            yield lines.pop()  # A long line is held by whoever has it now, not here too.

    with (
        located_errors(parser.path, lambda: read_lines, max_document_bytes),
        line_blocks(path, max_document_bytes, max_window, advance, ahead) as blocks,
    ):
        yield from parser.batches(lines(), start)


@contextmanager
def line_blocks(
    path: str,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    max_window: int = MAX_WINDOW,
    advance: Callable[[int], None] | None = None,
    ahead: bool = True,
    on_stored: Callable[[bytes], None] | None = None,
    on_frame: Callable[[int, int], None] | None = None,
    on_text: Callable[[bytes], None] | None = None,
) -> Iterator[Iterator[LineBlock]]:
    """The lines of a shard that is not Parquet, in blocks of about 2 MiB; arguments as in `read` and `text_pieces`."""
    with text_pieces(path, max_window, advance, ahead, on_stored, on_frame, on_text) as pieces:
        yield whole_lines(pieces, max_document_bytes)


@contextmanager
def text_pieces(
    path: str,
    max_window: int = MAX_WINDOW,
    advance: Callable[[int], None] | None = None,
    ahead: bool = True,
    on_stored: Callable[[bytes], None] | None = None,
    on_frame: Callable[[int, int], None] | None = None,
    on_text: Callable[[bytes], None] | None = None,
    decompress: Callable[[BinaryIO, int], Iterator[bytes]] | None = None,
) -> Iterator[Iterator[bytes]]:
    """The decompressed bytes of a shard that is not Parquet, in pieces of 1-3 MiB; arguments as in `read`, and these.

    on_stored   is given all stored bytes, in order
    on_frame    is told of each zstd frame, as in `decompress_frames`
    on_text     is given all decompressed bytes, in order
    decompress  decompresses zstd, from a file and with `max_window`, in the place of `decompress_frames`

    Listeners are called from the decoding thread, each before anything that follows from what it is told. What is wrong
    with the shard is raised without the line's number: wrap this into `located_errors`.
    """
    with open_unchanged(path) as (file, storage):
        decoded = _decoded(CountedFile(file, advance, on_stored), storage, max_window, on_frame, on_text, decompress)
        with closing(run_ahead(decoded) if ahead else decoded) as pieces:
            yield pieces


@contextmanager
def located_errors(path: str, lines: Callable[[], int], max_document_bytes: int = MAX_DOCUMENT_BYTES) -> Iterator[None]:
    """Turn damage and too long lines into a `PilekitError` that names the line; `lines()` tells how many were whole."""
    try:
        yield
    except ShardDamage as damage:
        raise PilekitError(damage.describe(path, lines() + 1)) from damage
    except LineTooLong as long:
        raise PilekitError(
            f"{visible(path)}, line {lines() + long.behind + 1:,}: is longer than {max_document_bytes:,} bytes; split "
            "the document or, if you trust the file, pass a larger max_document_bytes= to read()"
        ) from long


def _decoded(
    file: CountedFile,
    storage: Storage,
    max_window: int,
    on_frame: Callable[[int, int], None] | None,
    on_text: Callable[[bytes], None] | None,
    decompress: Callable[[BinaryIO, int], Iterator[bytes]] | None,
) -> Generator[bytes, None, None]:
    if storage == "zstd" and decompress is not None:
        pieces = decompress(cast(BinaryIO, file), max_window)
    elif storage == "zstd":
        pieces = decompress_frames(cast(BinaryIO, file), max_window=max_window, on_frame=on_frame)
    elif storage == "gzip":
        pieces = gunzipped(file)
    else:
        pieces = _plain(file)
    return _gathered(pieces if on_text is None else _heard(pieces, on_text))


def _heard(pieces: Iterator[bytes], on_text: Callable[[bytes], None]) -> Iterator[bytes]:
    for piece in pieces:
        on_text(piece)
        yield piece


class CountedFile:
    """A file for reading that tells how much is read, and what, and remembers how much."""

    def __init__(
        self,
        file: BinaryIO,
        advance: Callable[[int], None] | None = None,
        on_stored: Callable[[bytes], None] | None = None,
    ):
        self.file, self.advance, self.on_stored, self.position = file, advance, on_stored, 0

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        data = self.file.read(size)
        self.position += len(data)
        if self.advance is not None:
            self.advance(len(data))
        if self.on_stored is not None:
            self.on_stored(data)
        return data


def _gathered(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Join small pieces (files of many tiny frames) until they are worth a batch."""
    held: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            held.append(piece)
            if size >= PIECE_BYTES // 2:
                yield held[0] if len(held) == 1 else b"".join(held)
                held, size = [], 0
    except ShardDamage:
        # What came before the damage is good, and its lines must be counted to name the damaged one.
        yield b"".join(held)
        raise
    if held:
        yield b"".join(held)


def gunzipped(file: CountedFile) -> Iterator[bytes]:
    """Decompress all members of a gzip file; yields pieces of at most 256 KiB."""
    try:
        with gzip.GzipFile(fileobj=cast(BinaryIO, file), mode="rb") as text:
            # Not read(): it would throw away up to a whole piece of good text when it meets damage.
            while piece := text.read1(PIECE_BYTES // 8):
                yield piece
    except EOFError:
        reason = "is cut off: its gzip member has no end; fetch it again"
        raise ShardDamage(reason, frame=None, byte=file.position) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ShardDamage(f"is damaged ({error}); fetch it again", frame=None, byte=file.position, since=0) from error
    if file.position == 0:
        raise ShardDamage("is empty (0 bytes), not a gzip file; fetch it again", frame=None, byte=0)


def _plain(file: CountedFile) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece
    if file.position == 0:
        raise ShardDamage("is empty (0 bytes); fetch it again", frame=None, byte=0)
