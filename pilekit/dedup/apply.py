"""Apply decisions: a keep mask for every shard, and clean shards with the kept lines, byte for byte.

A mask follows from the shard's sketch and the removed documents; no shard is read for it, but where some subsets were
left out of the comparison and the shard has lines that are no documents, which the sketch does not list one by one.

A clean shard is a copy of the lines that its mask keeps, in checksummed frames of 1 MiB that can be sought, with an
index. It is read back before it gets its name: the hash of its text must be that of the lines that were to be written.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import xxhash

from pilekit.corpus import Manifest, Shard
from pilekit.dedup.bits import Bits, get_bits
from pilekit.dedup.sketch_file import ShardSketch
from pilekit.engine import Advance
from pilekit.errors import PilekitError, visible
from pilekit.shards.atomic import write_atomically
from pilekit.shards.fingerprint import Fingerprint, fingerprint
from pilekit.shards.frame_writing import FRAME_BYTES, FrameWriter
from pilekit.shards.index import INDEX_SUFFIX
from pilekit.shards.indexing import build_index
from pilekit.shards.keep_masks import KeepMask, read_mask, write_mask
from pilekit.shards.opening import is_parquet
from pilekit.shards.reading import line_blocks, located_errors, read
from pilekit.shards.reframing import cut_at_lines

LEVEL = 3


def mask_shard(
    path: Path, shard: Shard, sketch: ShardSketch, first: int, removed: Bits, *, only: bool, manifest: Manifest
) -> dict[str, tuple[int, int]]:
    """Write the keep mask of a shard; returns (documents, bytes of text) kept of each subset.

    first     the id of its first sketched document
    removed   a bit for each id
    only      whether documents that were not sketched are left out, rather than kept
    """
    header = sketch.header
    selected = {name for name in header.counts if header.subsets is None or name in header.subsets}
    kept = np.zeros(header.lines, dtype=np.bool_)
    passed = {} if only else {name: header.counts[name] for name in header.counts if name not in selected}
    if any(documents for documents, _ in passed.values()):
        if sum(documents for documents, _ in header.counts.values()) == header.lines:
            kept[:] = True
        else:
            with read(shard, None, "skip", manifest=manifest) as reader:
                for batch in reader:
                    kept[batch.numbers] = True
    counts = np.zeros((2, len(header.counts)), dtype=np.int64)
    for chunk in sketch.chunks(["number", "subset", "text_bytes"]):
        ids = np.arange(first, first + len(chunk["number"])).astype(np.uint32)
        stays = ~get_bits(removed, ids)
        kept[chunk["number"]] = stays
        np.add.at(counts[0], chunk["subset"], stays)
        np.add.at(counts[1], chunk["subset"], stays * chunk["text_bytes"].astype(np.int64))
        first += len(ids)
    before = Fingerprint(header.size, header.sample)
    if fingerprint(shard.path) != before:
        raise _changed(shard)
    write_mask(path, shard.name, before, kept)
    of_label = zip(sketch.subset_names, counts.T.tolist(), strict=True)
    return {**passed, **{name: (count[0], count[1]) for name, count in of_label if name in selected}}


def clean_shard(
    shard: Shard, advance: Advance, *, path: Path, mask: Path, threads: int, manifest: Manifest
) -> list[Path]:
    """Write the lines that the mask at `mask` keeps as the shard at `path`, with its index; returns both paths.

    Of a shard of which nothing is kept there is no file. The bytes do not depend on `threads`.
    """
    keep = read_mask(mask)
    if not keep.fits(fingerprint(shard.path)):
        raise _changed(shard)
    if not keep.header.kept:
        advance(keep.header.size)
        return []
    index = Path(f"{path}{INDEX_SUFFIX}")
    text_hash = xxhash.xxh3_128()

    def hashed(pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            text_hash.update(piece)
            yield piece

    with write_atomically(path) as file:
        executor = ThreadPoolExecutor(threads) if threads > 1 else None
        try:
            writer = FrameWriter(file, LEVEL, executor, most=2 * threads)
            with closing(_kept_text(shard, keep, advance, threads > 1, manifest)) as pieces:
                for text in cut_at_lines(hashed(pieces), FRAME_BYTES):
                    writer.write(text)
            writer.finish()
        finally:
            if executor is not None:
                executor.shutdown(cancel_futures=True)
        file.flush()
        written = build_index(
            Shard(shard.name, file.name),
            manifest=manifest,
            ahead=threads > 1,
            place=str(index),
            content_hash=text_hash.hexdigest(),
        )
        if written.header.documents != keep.header.kept or not keep.fits(fingerprint(shard.path)):
            raise _changed(shard)
    return [path, index]


def _kept_text(
    shard: Shard, keep: KeepMask, advance: Advance, ahead: bool, manifest: Manifest
) -> Generator[bytes, None, None]:
    """The kept lines, each with its newline, in pieces of some MB."""
    if is_parquet(shard.path):
        with read(shard, None, "skip", manifest=manifest, advance=advance, ahead=ahead) as reader:
            for batch in reader:
                if lines := batch.where(keep.keeps(batch.numbers)).raw_lines():
                    yield b"\n".join([*lines, b""])
        return
    kept, passed = keep.unpacked(), 0
    with located_errors(shard.path, lambda: passed), line_blocks(shard.path, advance=advance, ahead=ahead) as blocks:
        for block in blocks:
            lines = block.lines()
            chosen = np.flatnonzero(kept[passed : passed + len(lines)]).tolist()
            if chosen:
                yield b"\n".join([*(lines[i] for i in chosen), b""])
            passed += len(lines)


def _changed(shard: Shard) -> PilekitError:
    return PilekitError(
        f"{visible(shard.path)}: was changed since it was sketched; bring it back as it was, or begin anew in another "
        "folder"
    )
