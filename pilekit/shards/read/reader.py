"""Read shards: stored bytes -> pieces of text -> lines -> `DocumentBatch`es.

    open_unchanged -> decompress (in a thread, ahead) -> whole_lines -> LineParser

Each arrow is a generator. This file joins them, and turns an error of any of them into one line that names file, frame,
line and byte. Memory is a few pieces of 2 MiB, whatever the shard's size. `read` gives documents, `read_lines` gives
lines, `text_pieces` gives text.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any, BinaryIO, Literal

from pilekit.corpus import Corpus as Corpus
from pilekit.corpus import Described, Shard, Source, load_manifest, shard_of, subsets_or_all
from pilekit.corpus.find import names_many
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.documents import DocumentBatch, RecordFormat
from pilekit.errors import PilekitError
from pilekit.shards.read.change_check import open_unchanged
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import LineTooLong, NumberedLines, whole_lines
from pilekit.shards.read.open import Storage, is_parquet
from pilekit.shards.read.prefetch import run_ahead
from pilekit.shards.read.read_errors import ShardDamage, SkippedLines
from pilekit.shards.read.zstd_frames import MAX_WINDOW, PIECE_BYTES, decompress_frames

MAX_DOCUMENT_BYTES = 1 << 30
OnError = Literal["raise", "skip"]


class ShardReader(Iterator[DocumentBatch], AbstractContextManager["ShardReader"]):
    """The batches of one or several shards, in order; `skipped` counts the bad lines that were skipped so far.

    `parser` is the parser of a single shard's lines.
    """

    def __init__(
        self, batches: Generator[DocumentBatch, None, None], skipped: SkippedLines, parser: LineParser | None = None
    ):
        self._batches = batches
        self.parser = parser
        self.skipped = skipped

    def __iter__(self) -> Generator[DocumentBatch, None, None]:
        return self._batches

    def __next__(self) -> DocumentBatch:
        return next(self._batches)

    def skip_counts(self) -> dict[str, Any]:
        """For the note about a single shard: its bad lines and the number of documents of other subsets so far."""
        return {
            "skipped": self.skipped.count,
            "others": self.parser.others if self.parser else 0,
            "bad_lines": [[bad.line, bad.reason] for bad in self.skipped.examples],
        }

    def close(self) -> None:
        """Stop reading: the decoding thread ends and the file is closed."""
        self._batches.close()

    def __exit__(self, *error: object) -> None:
        self.close()


Reading = Callable[..., ShardReader]
"""`read` with the options of a job: a `functools.partial`, which can be sent to other processes."""


def read(
    source: Source | Shard | Corpus,
    subsets: Sequence[str] | None = None,
    on_error: OnError = "raise",
    *,
    manifest: Described = None,
    start: int = 0,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    max_window: int = MAX_WINDOW,
    advance: Callable[[int], None] | None = None,
    ahead: bool = True,
) -> ShardReader:
    """Read one shard, or all shards of a corpus in their order.

    source               a shard: its path or URL, `-` for standard input, or a `Shard`; or a corpus: a folder, a glob,
                         a list of paths, or a `Corpus`
    subsets              only documents of these subsets, in any spelling the manifest knows; None: all
    on_error             "raise": a bad line is a `PilekitError`; "skip": it is counted and listed in `.skipped`
    manifest             where records keep text and label; the Pile's by default
    start                the first document number in a single shard; earlier lines are decompressed but not parsed
    max_document_bytes   a longer line is an error (1 GiB)
    max_window           a zstd frame that needs a larger window is an error (128 MiB)
    advance              called, from the decoding thread, with the number of stored bytes of each read
    ahead                decompress in a thread; False is a few percent faster where every CPU has a process already

    Yields `DocumentBatch`es of about 1-4 MB of text. A truncated or damaged file, or a line that is too long, is a
    `PilekitError` with either `on_error`, because the rest of the shard is lost.
    """
    if on_error not in ("raise", "skip"):
        raise PilekitError(f'on_error is "raise" or "skip", not {on_error!r}')
    if names_many(source):
        assert not isinstance(source, Shard)
        if start:
            raise PilekitError("start= is a document number of one shard; name one shard")
        corpus = Corpus.of(source, manifest)
        read_shard = partial(read, subsets=subsets, on_error=on_error, manifest=corpus.manifest, advance=advance)
        limits = {"max_document_bytes": max_document_bytes, "max_window": max_window}
        return _read_all(corpus, partial(read_shard, **limits, ahead=ahead))
    shard = source if isinstance(source, Shard) else shard_of(str(source))
    manifest = load_manifest(manifest)
    subsets = subsets_or_all(subsets, manifest)
    skipped = SkippedLines()
    parser = LineParser(
        path=shard.path if shard.path != STANDARD_INPUT else shard.name,
        shard=shard.name,
        format=RecordFormat.of(manifest),
        subsets=None if subsets is None else frozenset(subsets),
        skipped=skipped if on_error == "skip" else None,
    )
    batches = _batches(shard.path, parser, start, max_document_bytes, max_window, advance, ahead)
    return ShardReader(batches, skipped, parser)


def read_corpus(
    corpus: Corpus | Source,
    subsets: Sequence[str] | None = None,
    on_error: OnError = "raise",
    *,
    manifest: Described = None,
    advance: Callable[[int], None] | None = None,
) -> ShardReader:
    """Read all shards of a corpus in order; the arguments are those of `read`."""
    corpus = Corpus.of(corpus, manifest)
    return _read_all(
        corpus, partial(read, subsets=subsets, on_error=on_error, manifest=corpus.manifest, advance=advance)
    )


Corpus._read = staticmethod(read)


def _read_all(corpus: Corpus, read_shard: Reading) -> ShardReader:
    skipped = SkippedLines()

    def batches() -> Generator[DocumentBatch, None, None]:
        for shard in corpus.shards:
            with read_shard(shard) as reader:
                try:
                    yield from reader
                finally:
                    skipped.merge(reader.skipped)

    return ShardReader(batches(), skipped)


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
    with closing(read_lines(path, parser.path, max_document_bytes, max_window, advance, ahead)) as lines:
        yield from parser.batches(lines, start)


def read_lines(
    path: str,
    shown: str | None = None,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    max_window: int = MAX_WINDOW,
    advance: Callable[[int], None] | None = None,
    ahead: bool = True,
) -> Generator[NumberedLines, None, None]:
    """Yield the lines of a shard that is not Parquet, in lists with their numbers, without blank lines.

    shown   the shard's name in messages; None: its path
    """
    read = 0
    with (
        located_errors(shown or path, lambda: read, max_document_bytes),
        text_pieces(path, max_window, advance, ahead) as pieces,
    ):
        for block in whole_lines(pieces, max_document_bytes):
            lists = block.lines(read)
            del block
            for lines in lists:
                read, held = lines.end, [lines]
                del lines
                yield held.pop()  # Drop this reference: the consumer alone holds a long line.


@contextmanager
def text_pieces(
    path: str,
    max_window: int = MAX_WINDOW,
    advance: Callable[[int], None] | None = None,
    ahead: bool = True,
    on_stored: Callable[[bytes], None] | None = None,
    on_frame: Callable[[int, int], None] | None = None,
    on_text: Callable[[bytes], None] | None = None,
) -> Iterator[Iterator[bytes]]:
    """The decompressed bytes of a shard that is not Parquet, in pieces of 1-3 MiB; arguments as in `read`, and:

    on_stored   called with all stored bytes, in order
    on_frame    called for each zstd frame, as in `decompress_frames`
    on_text     called with all decompressed bytes, in order

    The callbacks run in the decoding thread, each before the text that belongs to it is yielded. Errors do not name the
    line: wrap this in `located_errors`.
    """

    def on_read(data: bytes) -> None:
        if advance is not None:
            advance(len(data))
        if on_stored is not None:
            on_stored(data)

    with open_unchanged(path, on_read) as (file, storage):
        decoded = _gathered(_decoded(file, storage, max_window, on_frame), on_text)
        with closing(run_ahead(decoded) if ahead else decoded) as pieces:
            yield pieces


@contextmanager
def located_errors(path: str, lines: Callable[[], int], max_document_bytes: int = MAX_DOCUMENT_BYTES) -> Iterator[None]:
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


def _decoded(
    file: BinaryIO, storage: Storage, max_window: int, on_frame: Callable[[int, int], None] | None
) -> Iterator[bytes]:
    if storage == "zstd":
        return decompress_frames(file, max_window=max_window, on_frame=on_frame)
    return gunzipped(file) if storage == "gzip" else _plain(file)


def _gathered(pieces: Iterator[bytes], on_text: Callable[[bytes], None] | None) -> Generator[bytes, None, None]:
    """Join small pieces (of many tiny frames) into pieces of at least 1 MiB."""
    held: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            if on_text is not None:
                on_text(piece)
            size += len(piece)
            held.append(piece)
            if size >= PIECE_BYTES // 2:
                yield held[0] if len(held) == 1 else b"".join(held)
                held, size = [], 0
    except ShardDamage:
        # The text before the damage is good, and its lines must be counted to name the damaged line.
        yield b"".join(held)
        raise
    if held:
        yield b"".join(held)


def gunzipped(file: BinaryIO) -> Iterator[bytes]:
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


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece
    if file.tell() == 0:
        raise ShardDamage("is empty (0 bytes); fetch it again", frame=None, byte=0)
