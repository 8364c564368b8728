"""Store shards in seekable, checksummed, indexed frames: the same text, 0.4-2.4 % more on disk.

A released shard is one frame of 43 GB without a checksum. Nothing in it can be read without decoding everything before
it, and a flipped bit silently becomes other text. In a reframed shard, a document costs the decoding of one frame, and
damage is detected.

    decompress -> cut at line ends -> compress (several threads) -> write -> read back: same text? -> index -> rename

Every byte stays, also bad and blank lines and a missing last newline, so every document keeps its number. One core
processes 140-146 MB/s of text; `zstd -3`, which only compresses, does 200. Each shard has a process; if there are fewer
shards than CPUs, its threads compress in parallel, because zstd releases the GIL.

No output is published unchecked: the file is flushed to disk, read back and decoded, and the hash of its text must
equal the hash of the input before the file is renamed. The bytes depend only on the text, the level and the frame size,
so a job that was killed and run again ends with the same files.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Unpack

import msgspec
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus, Described, Manifest, Shard, Source
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.display.table_result import Result
from pilekit.errors import PilekitError, visible
from pilekit.shards.corpus_job import CorpusJob, Share
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import corpus_folder
from pilekit.shards.index.build import build_index
from pilekit.shards.index.format import INDEX_SUFFIX
from pilekit.shards.read.blocks import locate_errors, text_pieces
from pilekit.shards.read.open import MAX_DOCUMENT_BYTES, ReadOptions, is_parquet
from pilekit.shards.read.read_errors import LineTooLong, ShardDamage
from pilekit.shards.work import StoredWork, takes
from pilekit.shards.write.seekable_frames import FRAME_BYTES, MAX_FRAME_BYTES, FrameWriter, StoredFrame, read_seek_table
from pilekit.workers import Advance

KIND = "reframed corpus"
"""The kind in the header of the folder that reframed shards are written into."""

FRAME_SIZES = range(4 << 10, MAX_FRAME_BYTES + 1)
LEVELS = range(1, 23)

LEAST_OF_STORED = 0.5
"""Less than frames take of a compressed shard, so that no run that might fit is refused. The mini-Pile, compressed at
level 1, takes 0.78 of that in frames of level 22."""

PIECES_AT_A_TIME = 8
"""Pieces of 1-3 MiB that one thread decompresses before it compresses them. Alternating would be 4 % slower, because
both need the CPU cache for their tables."""

READING = 0.75
"""The share of a shard's time that passes until all of it is read and compressed; reading back takes the rest."""


@dataclass(frozen=True, slots=True)
class ReframeResult(Result):
    """The result for one shard.

    documents      number of documents; `bad_lines` are kept too, but are not documents
    text_bytes     UTF-8 bytes of the texts
    content_bytes  decompressed bytes, before and after; `content_hash` is their xxh3_128 in hexadecimal
    stored_before, stored_bytes   the file's size before and after
    """

    shard: str
    documents: int
    bad_lines: int
    text_bytes: int
    content_bytes: int
    content_hash: str
    stored_before: int
    stored_bytes: int
    frames: int


@takes(StoredWork)
def reframe_corpus(
    corpus: Corpus | Source,
    out: str | Path,
    *,
    frame_bytes: int = FRAME_BYTES,
    level: int = 3,
    manifest: Described = None,
    **work: Unpack[StoredWork],
) -> list[ReframeResult]:
    """Write every shard of `corpus` as `<out>/<shard name>.zst`, in seekable frames, with an index beside it.

    corpus        a `Corpus`, or a path, glob or URL of one, or several
    frame_bytes   the least text in a frame: a frame ends with the line that reaches it
    level         zstd compression level
    manifest      describes the corpus at a path, as for `Corpus`
    work          jobs, advance, cluster, part: see `StoredWork`

    Resumes an earlier run of the same job in `out`. Raises `PilekitError` for input that is damaged, is Parquet or
    standard input, or is inside `out`, and for output that cannot be written or does not read back.
    """
    corpus = Corpus.of(corpus, manifest)
    if frame_bytes not in FRAME_SIZES:
        least, most = FRAME_SIZES[0], FRAME_SIZES[-1]
        raise PilekitError(f"frames hold {least:,} to {most:,} bytes of text, not {frame_bytes:,}")
    if level not in LEVELS:
        raise PilekitError(f"zstd levels go from {LEVELS[0]} to {LEVELS[-1]}, not {level}")
    for shard in corpus.shards:
        if shard.path == STANDARD_INPUT or is_parquet(shard.path):
            shown = "standard input (-)" if shard.path == STANDARD_INPUT else f"{visible(shard.path)}: Parquet"
            raise PilekitError(f"{shown} cannot be reframed; `pilekit select --format zst` writes it as .jsonl.zst")
    parameters = {"frame_bytes": frame_bytes, "level": level}
    reframe = functools.partial(_reframe, frame_bytes=frame_bytes, level=level, manifest=corpus.manifest)
    with corpus_folder(CorpusJob(corpus, **work), out, kind=KIND, parameters=parameters) as job:
        results = job.process_unfinished(reframe, room=("reframing", LEAST_OF_STORED))
    return [msgspec.convert(result, ReframeResult) for result in results.values()]


def _reframe(
    shard: Shard,
    advance: Advance,
    *,
    frame_bytes: int,
    level: int,
    manifest: Manifest,
    share: Share,
    output: Output,
    inputs: Inputs,
) -> None:
    """Reframe one shard, and note it in the output folder."""
    threads = share.threads
    path, size = output.path(shard.name, ".zst"), inputs.fingerprints[shard.name][0]
    index_path = Path(f"{path}{INDEX_SUFFIX}")
    with write_atomically(path) as file:
        frames, content_hash = copy_in_frames(shard, file, frame_bytes, level, threads, _part(advance, READING))
        inputs.check(shard)
        _flush_out_of_memory(file)
        stored = os.fstat(file.fileno()).st_size
        try:
            with Path(file.name).open("rb") as written:
                if read_seek_table(written, stored) != frames:
                    raise ShardDamage("has another seek table", frame=None, byte=stored)
            header = build_index(
                Shard(shard.name, file.name, stored),
                str(index_path),
                ReadOptions(_part(advance, (1 - READING) * size / stored), threads > 1, stored),
                manifest=manifest,
                on_error="skip",
                content_hash=content_hash,
            ).header
        except (PilekitError, ShardDamage) as error:
            if isinstance(error, PilekitError) and visible(file.name) not in str(error):
                raise  # the index cannot be written
            raise PilekitError(
                f"{path}: the written file does not read back as the same text ({error}); check "
                "disk and memory, and try again"
            ) from error
    result = ReframeResult(
        shard=shard.name,
        documents=header.documents,
        bad_lines=header.skipped,
        text_bytes=header.text_bytes,
        content_bytes=header.content_bytes,
        content_hash=content_hash,
        stored_before=size,
        stored_bytes=stored,
        frames=len(frames),
    )
    output.note(shard.name, asdict(result), path, index_path)


def _flush_out_of_memory(file: BinaryIO) -> None:
    """Flush the file to disk and drop it from the page cache, so that reading it back shows what the disk holds."""
    file.flush()
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _part(advance: Advance, part: float) -> Advance:
    """Report this part of each amount to `advance`."""
    return lambda amount: advance(int(amount * part))


def copy_in_frames(
    shard: Shard,
    file: BinaryIO,
    frame_bytes: int,
    level: int,
    threads: int,
    advance: Advance,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
) -> tuple[list[tuple[int, int]], str]:
    """Write the shard's text in frames; returns (stored bytes, decoded bytes) of each frame, and the text's hash."""
    text_hash = xxhash.xxh3_128()
    newlines = 0

    def checked(pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Hash the text and count its lines; raise `LineTooLong` for a line that no reader would accept."""
        nonlocal newlines
        begun = 0  # bytes of the unfinished line
        batch: list[bytes] = []
        for piece in pieces:
            text_hash.update(piece)
            first = piece.find(b"\n")
            if begun + (len(piece) if first < 0 else first) > max_document_bytes:
                raise LineTooLong(0)
            begun = begun + len(piece) if first < 0 else len(piece) - 1 - piece.rfind(b"\n")
            newlines += piece.count(b"\n")
            batch.append(piece)
            if threads > 1 or len(batch) == PIECES_AT_A_TIME:
                yield from batch
                batch.clear()
        yield from batch

    writer = FrameWriter(file, level)
    with (
        locate_errors(shard.path, lambda: newlines, max_document_bytes),
        text_pieces(shard.path, ReadOptions(advance, ahead=threads > 1)) as pieces,
    ):
        for _ in writer.write_all(cut_at_lines(checked(pieces), frame_bytes), threads):
            pass
    return writer.frames, text_hash.hexdigest()


def cut_at_lines(pieces: Iterator[bytes | StoredFrame], size: int) -> Iterator[bytes | memoryview | StoredFrame]:
    """The same bytes, cut after each newline that completes a piece of at least `size` bytes.

    A `StoredFrame`, which holds whole lines, stays whole, unless that would leave less than half of `size` before it.
    """
    parts: list[memoryview] = []
    held_bytes = 0
    for piece in pieces:
        if isinstance(piece, StoredFrame):
            if not parts or held_bytes >= size // 2:
                if parts:
                    yield b"".join(parts)
                parts, held_bytes = [], 0
                yield piece
                continue
            piece = piece.text
        view, begin = memoryview(piece), 0
        while (newline := piece.find(b"\n", begin + max(0, size - held_bytes - 1))) >= 0:
            parts.append(view[begin : newline + 1])
            yield b"".join(parts) if len(parts) > 1 else parts[0]
            parts, held_bytes, begin = [], 0, newline + 1
        if begin < len(piece):
            parts.append(view[begin:])
            held_bytes += len(piece) - begin
    if parts:
        yield b"".join(parts)
