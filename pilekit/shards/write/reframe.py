"""Store shards anew as frames that can be sought, checksummed and indexed: the same text, 0.4-2.4 % more on disk.

A released shard is one frame of 43 GB without a checksum: nothing in it can be read without decoding all before it, and
a flipped bit is silently other text. Reframed, a document costs the decoding of one frame, and damage is told.

    decompress (several threads, where there are several frames) -> cut at line ends -> compress (several threads)
        -> write -> read back: same text? -> index -> rename

Every byte stays, bad and blank lines and a missing last newline too, so every document keeps its number. All of it
runs at 140-146 MB/s of text on a core on which `zstd -3`, which only compresses, does 200. There is one process for
each shard, and where there are fewer shards than CPUs, threads in it, as zstd releases the GIL.

Nothing is published unseen: the file is on disk, is read from there and decoded, and the hash of its text must be that
of the input's before it gets its name. The bytes depend on the text, the level and the size of frames, and on nothing
else, so a job that was killed and run again ends with the same files.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output, output_folder
from pilekit.corpus import Corpus, Manifest, Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.engine import Advance, map_shards
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import Inputs, inputs_for
from pilekit.shards.index.build import build_index
from pilekit.shards.index.format import INDEX_SUFFIX
from pilekit.shards.processes import processes_for, threads_of
from pilekit.shards.read.damage import ShardDamage
from pilekit.shards.read.lines import LineTooLong
from pilekit.shards.read.malloc_tuning import keep_freed_memory
from pilekit.shards.read.open import is_parquet
from pilekit.shards.read.parallel_frames import decompress_in_threads
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES, located_errors, text_pieces
from pilekit.shards.write.frame_writer import FRAME_BYTES, FrameWriter
from pilekit.shards.write.seek_table import MAX_FRAME_BYTES, read_seek_table

KIND = "reframed corpus"
"""The kind in the header of the folder that reframed shards are written into."""

FRAME_SIZES = range(4 << 10, MAX_FRAME_BYTES + 1)
LEVELS = range(1, 23)

PIECES_AT_A_TIME = 8
"""Pieces of 1-3 MiB that one thread decompresses before it compresses any: taking turns, both find their tables gone
from the cache, and lose 4 %."""

READING = 0.75
"""The part of a shard's time until all of it is read; reading back takes the rest."""


@dataclass(frozen=True, slots=True)
class Reframed:
    """What became of one shard.

    documents      those its index lists; `bad_lines` are kept, but are no documents
    text_bytes     UTF-8 bytes of their texts
    content_bytes  decompressed bytes, the same before and after, and `content_hash`, their xxh3_128 in hexadecimal
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

    def to_dict(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def reframe_corpus(
    corpus: Corpus | str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    frame_bytes: int = FRAME_BYTES,
    level: int = 3,
    jobs: int | None = None,
    advance: Advance | None = None,
) -> list[Reframed]:
    """Write every shard of `corpus` as `<out>/<shard name>.zst`, in frames that can be sought, with an index beside it.

    corpus        a `Corpus`, or what makes one: a path, glob or URL, or several
    frame_bytes   text in a frame, at least: a frame ends with the line that reaches it
    level         zstd compression level
    jobs          how many shards at a time, each in a process of its own; None: the usable CPUs, or fewer for a small
                  corpus
    advance       called with each further amount of the input's stored bytes dealt with

    A folder that an earlier run of the same job left is gone on with. Raises `PilekitError` for input that is damaged,
    is Parquet or standard input or lies in `out`, and for output that cannot be written or does not read back.
    """
    corpus = corpus if isinstance(corpus, Corpus) else Corpus(corpus)
    if frame_bytes not in FRAME_SIZES:
        least, most = FRAME_SIZES[0], FRAME_SIZES[-1]
        raise PilekitError(f"frames hold {least:,} to {most:,} bytes of text, not {frame_bytes:,}")
    if level not in LEVELS:
        raise PilekitError(f"zstd levels go from {LEVELS[0]} to {LEVELS[-1]}, not {level}")
    for shard in corpus.shards:
        if shard.path == STANDARD_INPUT or is_parquet(shard.path):
            what = "standard input (-)" if shard.path == STANDARD_INPUT else f"{visible(shard.path)}: Parquet"
            raise PilekitError(f"{what} cannot be reframed; `pilekit select --format zst` writes it as .jsonl.zst")
    inputs = inputs_for(out, corpus.shards)
    manifest = corpus.manifest  # the index depends on it
    parameters = {
        "frame_bytes": frame_bytes,
        "level": level,
        "text_field": manifest.text_field,
        "label_path": manifest.label_path,
    }
    with output_folder(
        out, kind=KIND, parameters=parameters, inputs=inputs.fingerprints, versions=inputs.versions
    ) as output:
        sizes = {name: size for name, (size, _) in inputs.fingerprints.items()}
        waiting = [shard for shard in corpus.shards if output.result(shard.name) is None]
        if advance is not None:
            advance(sum(sizes.values()) - sum(sizes[shard.name] for shard in waiting))
        processes = processes_for(waiting, jobs)
        work = functools.partial(
            _reframe,
            output=output,
            frame_bytes=frame_bytes,
            level=level,
            threads=threads_of(processes),
            manifest=manifest,
            inputs=inputs,
        )
        map_shards(work, waiting, jobs=processes, on_progress=advance)
        results = output.results()
    return [msgspec.convert(results[shard.name], Reframed) for shard in corpus.shards]


def _reframe(
    shard: Shard,
    advance: Advance,
    *,
    output: Output,
    frame_bytes: int,
    level: int,
    threads: int,
    manifest: Manifest,
    inputs: Inputs,
) -> None:
    """Reframe one shard, and note it in the output folder."""
    keep_freed_memory()
    path, size = output.path(shard.name, ".zst"), inputs.fingerprints[shard.name][0]
    index_path = Path(f"{path}{INDEX_SUFFIX}")
    with write_atomically(path) as file:
        frames, content_hash = _copy(shard, file, frame_bytes, level, threads, _part(advance, READING))
        inputs.check(shard)
        _to_disk(file)
        stored = os.fstat(file.fileno()).st_size
        try:
            if _seek_table_of(file.name, stored) != frames:
                raise ShardDamage("has another seek table", frame=None, byte=stored)
            header = build_index(
                Shard(shard.name, file.name, stored),
                manifest=manifest,
                on_error="skip",
                advance=_part(advance, (1 - READING) * size / stored),
                ahead=threads > 1,
                place=str(index_path),
                content_hash=content_hash,
            ).header
        except (PilekitError, ShardDamage) as error:
            if isinstance(error, PilekitError) and visible(file.name) not in str(error):
                raise  # of the index: it cannot be written
            raise PilekitError(
                f"{visible(str(path))}: what was written does not read back as the text that was read ({error}); check "
                "disk and memory, and try again"
            ) from error
    result = Reframed(
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


def _to_disk(file: BinaryIO) -> None:
    """Write all of it to the disk, and out of memory, so that reading it back shows what the disk has."""
    file.flush()
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _seek_table_of(path: str, size: int) -> list[tuple[int, int]] | None:
    with Path(path).open("rb") as file:
        return read_seek_table(file, size)


def _part(advance: Advance, part: float) -> Advance:
    """Tells `advance` this part of each amount; the amounts come from one thread."""
    amounts = told = 0

    def part_of(amount: int) -> None:
        nonlocal amounts, told
        amounts += amount
        advance(int(amounts * part) - told)
        told = int(amounts * part)

    return part_of


def _copy(
    shard: Shard, file: BinaryIO, frame_bytes: int, level: int, threads: int, advance: Advance
) -> tuple[list[tuple[int, int]], str]:
    """Write the shard's text in frames; returns the (stored bytes, decoded bytes) of each, and the text's hash."""
    text_hash = xxhash.xxh3_128()
    text_bytes = 0
    at_a_time = PIECES_AT_A_TIME if threads == 1 else 1

    def checked(pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Hash the text on the way; a line longer than any reader takes is an error."""
        nonlocal text_bytes
        begun = 0  # bytes of the line that has not ended
        held: list[bytes] = []
        for piece in pieces:
            text_hash.update(piece)
            first = piece.find(b"\n")
            if begun + (len(piece) if first < 0 else first) > MAX_DOCUMENT_BYTES:
                raise LineTooLong(0)
            begun = begun + len(piece) if first < 0 else len(piece) - 1 - piece.rfind(b"\n")
            text_bytes += len(piece)
            held.append(piece)
            if len(held) >= at_a_time:
                yield from held
                held.clear()
        yield from held

    executor = decompress = None
    if threads > 1:
        executor = ThreadPoolExecutor(threads)
        decompress = functools.partial(decompress_in_threads, executor=executor, most=2 * threads)
    reading = text_pieces(shard.path, advance=advance, ahead=threads > 1, decompress=decompress)
    writer = FrameWriter(file, level, executor, most=2 * threads)
    try:
        with located_errors(shard.path, lambda: _newlines(shard.path, text_bytes)), reading as pieces:
            for text in cut_at_lines(checked(pieces), frame_bytes):
                writer.write(text)
            writer.finish()
    finally:
        if executor is not None:
            executor.shutdown(cancel_futures=True)
    return writer.frames, text_hash.hexdigest()


def _newlines(path: str, text_bytes: int) -> int:
    """How many lines end in so many bytes of a shard's text: counted only for those who must be told of damage."""
    newlines = 0
    with suppress(ShardDamage, PilekitError), text_pieces(path) as pieces:
        for piece in pieces:
            newlines += piece.count(b"\n", 0, text_bytes)
            text_bytes = max(0, text_bytes - len(piece))
    return newlines


def cut_at_lines(pieces: Iterator[bytes], size: int) -> Iterator[bytes | memoryview]:
    """The same bytes, cut behind the first newline at which at least `size` of them are together."""
    held: list[memoryview] = []
    held_bytes = 0
    for piece in pieces:
        view, begin = memoryview(piece), 0
        while (newline := piece.find(b"\n", begin + max(0, size - held_bytes - 1))) >= 0:
            held.append(view[begin : newline + 1])
            yield b"".join(held) if len(held) > 1 else held[0]
            held, held_bytes, begin = [], 0, newline + 1
        if begin < len(piece):
            held.append(view[begin:])
            held_bytes += len(piece) - begin
    if held:
        yield b"".join(held)
