"""Keep masks, one bit for each line of a shard, and clean shards: the lines that a mask keeps, byte for byte.

A mask is made from the shard's sketch and the removed documents. The shard is read for it only if some subsets were
left out of the comparison and it has lines that are not documents, because the sketch does not list these.

Clean shards are written in checksummed, seekable frames of 1 MiB with an index; frames of the shard that lose no line
are taken as they are. The rows of the index are made while other threads compress: 40 % faster than reading the written
shard again. Compressing takes two thirds of the time. The rest is kept short: long shards are scanned, not decoded, and
lines that follow each other are copied at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.sort.scratch_files import read_flags
from pilekit.corpus import Manifest, Shard
from pilekit.dedup.output.untouched_frames import UntouchedFrames
from pilekit.dedup.sketch.shingles import Int64
from pilekit.dedup.sketch.sketch_format import ShardSketch, check_unchanged, shard_changed
from pilekit.documents import RecordFormat
from pilekit.shards.corpus_job import Share
from pilekit.shards.fingerprint import Fingerprint, Inputs, fingerprint
from pilekit.shards.index.build import write_index
from pilekit.shards.index.document_rows import DocumentRows, DocumentsRead, documents_of
from pilekit.shards.index.format import INDEX_SUFFIX, Frames
from pilekit.shards.keep_mask import KeepMask, read_mask, write_mask
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import read
from pilekit.shards.write.reframe import cut_at_lines
from pilekit.shards.write.seekable_frames import FRAME_BYTES, FrameWriter, StoredFrame
from pilekit.workers import Advance

LEVEL = 3


def clean_shard(
    shard: Shard,
    advance: Advance,
    *,
    path: Path,
    mask: Path,
    inputs: Inputs,
    share: Share,
    manifest: Manifest,
    frame_bytes: int = FRAME_BYTES,
) -> list[Path]:
    """Write the lines that the mask at `mask` keeps as the shard at `path`, with its index; returns both paths.

    If the mask keeps nothing, no shard is written, and that of an earlier mask is removed. The bytes do not depend on
    `share`. A frame has `frame_bytes` of text or more, or half of that before a frame that is taken from the shard.
    """
    keep = read_mask(mask)
    if not keep.fits(fingerprint(shard.path)):
        raise shard_changed(shard)
    index = Path(f"{path}{INDEX_SUFFIX}")
    if not keep.header.kept:
        path.unlink(missing_ok=True)
        index.unlink(missing_ok=True)
        advance(keep.header.size)
        return []
    # An index stores labels as records spell them.
    as_spelled = msgspec.structs.replace(manifest, join_spellings=False)
    parser = LineParser.for_shard(shard, as_spelled, None, "skip", SkippedLines())
    options = replace(share.read_options(advance), piece_bytes=2 * frame_bytes)
    untouched = UntouchedFrames(shard.path, frame_bytes)
    with write_atomically(path) as file, closing(documents_of(shard, parser, options, watch=untouched)) as documents:
        writer = FrameWriter(file, LEVEL)
        kept_lines = _KeptLines(documents, keep, untouched)

        def written() -> Fingerprint:
            if kept_lines.lines != keep.header.kept:
                raise shard_changed(shard)
            inputs.check(shard)
            file.flush()
            return fingerprint(file.name)

        texts = writer.write_all(cut_at_lines(kept_lines.texts(), frame_bytes), share.threads)
        rows = kept_lines.rows(texts, writer.frames)
        write_index(str(index), file.name, kept_lines, rows, written)
    return [path, index]


class _KeptLines:
    """The kept lines of a shard, the rows of their index, and, when both are written, a `Scan`."""

    frames: Frames

    def __init__(self, documents: Iterable[DocumentsRead], keep: KeepMask, untouched: UntouchedFrames):
        self.lines = self.content_bytes = 0
        self.skipped, self.format = SkippedLines(), RecordFormat()
        self._documents, self._keep, self._untouched = documents, keep, untouched
        self._hash = xxhash.xxh3_128()
        self._rows: deque[DocumentRows] = deque()

    @property
    def content_hash(self) -> str:
        """The xxh3_128 of the text written."""
        return self._hash.hexdigest()

    def rows(self, written: Iterable[bytes | memoryview], frames: Sequence[tuple[int, int]]) -> Iterator[DocumentRows]:
        """The rows of the index, as the texts are written; `frames` then lists the (stored, decoded) bytes of each."""
        lines_of_frames = [0]
        for text in written:
            lines = np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))
            lines_of_frames.append(lines_of_frames[-1] + int(lines))
            while self._rows:
                yield self._rows.popleft()
        sizes = np.array(frames, dtype=np.int64)
        ends = np.cumsum(sizes, axis=0)
        offsets = ends - sizes
        first = np.array(lines_of_frames[:-1], dtype=np.int64)
        self.frames = Frames(offsets[:, 0], offsets[:, 1], first, np.zeros_like(first))

    def texts(self) -> Iterator[bytes | StoredFrame]:
        """The kept lines, each with its newline, some MB at a time. Their index rows wait in `_rows`."""
        for documents in self._documents:
            kept = self._keep.keeps(documents.rows.numbers)
            if kept.any():
                rows, text = documents.rows.where(kept), documents.lines(kept)
                self.format = documents.format
                del documents  # A long line must not be held while it is compressed.
                count = len(rows.numbers)
                self._rows.append(rows._replace(numbers=np.arange(self.lines, self.lines + count)))
                self._hash.update(text)
                self.lines += count
                self.content_bytes += len(text)
                frame = self._untouched.stored(text)
                yield text if frame is None else StoredFrame(text, frame)


def mask_shard(
    work: tuple[Shard, ShardSketch, Path, tuple[int, int]],
    advance: Advance,
    *,
    labels: Sequence[str],
    flags: Path,
    only: bool,
    manifest: Manifest,
    share: Share,
) -> Int64:
    """Write the keep mask of a shard; returns (documents, bytes of text) kept of each subset, int64 [2, labels].

    work    the shard, its sketch, the mask's path, and the first id of its documents and the one after its last
    flags   for each id, whether the document is removed
    only    leave out documents that were not sketched, rather than keep them
    """
    shard, sketch, path, (begin, end) = work
    header, code_of = sketch.header, {label: code for code, label in enumerate(labels)}
    passed = {name for name in header.counts if header.subsets is not None and name not in header.subsets}
    counts = np.zeros((2, len(labels)), dtype=np.int64)
    mask = np.zeros(header.lines, dtype=np.bool_)
    if passed and not only:
        for name in passed:
            counts[:, code_of[name]] = header.counts[name]
        if sum(documents for documents, _ in header.counts.values()) == header.lines:
            mask[:] = True
        else:
            with read(shard, None, "skip", manifest=manifest, ahead=share.ahead) as reader:
                for batch in reader:
                    mask[batch.numbers] = True
    stays = ~read_flags(flags, begin, end)
    codes = np.array([code_of[label] for label in sketch.subset_names], dtype=np.int64)
    for rows in sketch.chunks(["number", "text_bytes", "subset"]):
        is_kept, stays = stays[: len(rows["number"])], stays[len(rows["number"]) :]
        mask[rows["number"]] = is_kept
        label_codes = codes[rows["subset"][is_kept]]
        np.add.at(counts[0], label_codes, 1)
        np.add.at(counts[1], label_codes, rows["text_bytes"][is_kept])
    check_unchanged(shard, sketch)
    write_mask(path, shard.name, Fingerprint(header.size, header.sample), mask)
    return counts
