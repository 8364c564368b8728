"""The shingle sets of the candidates: written in a second pass over the shards, mapped into memory, and found by id.

Only candidates are compared, so only their sets are stored: about 1.4 bytes for each byte of their text. Only their
lines are parsed. Other lines are passed over at the speed of decompression, and nothing is read after the last
candidate. Each shard has two files of 64-bit words, which get their names when they are complete. A resumed run writes
the missing ones.

    <place>.sets    the sets in the order of their documents, each ascending
    <place>.ends    0, then the end of each document's set; without a set, the end of the document before
"""

from __future__ import annotations

import functools
import mmap
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.sort.scratch_files import read_flags, write_flags
from pilekit.corpus import Shard
from pilekit.dedup.document_table import DocumentTable, Flags
from pilekit.dedup.sketch.shingles import Int64, Sets, UInt64, shingle_sets
from pilekit.dedup.sketch.sketch_format import ShardSketch, check_unchanged, shard_changed
from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError
from pilekit.shards.corpus_job import CorpusJob, Share, await_files
from pilekit.shards.read.blocks import shard_blocks
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import RowBlock, numbered_parts
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.workers import Advance
from pilekit.workers.in_threads import map_in_threads
from pilekit.workers.kernels import compiled

WORD = 8


class MappedSets(NamedTuple):
    """The sets as kernels see them.

    base             the id of each shard's first document, then the number of all documents; int64 [shards + 1]
    sets_at, ends_at the addresses of each shard's files in memory; uint64 [shards]
    """

    base: Int64
    sets_at: UInt64
    ends_at: UInt64


class ShingleStore:
    """The shingle sets in a folder that `store_shingles` has written.

    base      that of the document table
    memory    bytes of the sets that may be mapped when `release_if_full` is called
    """

    def __init__(self, folder: Path, base: Int64, memory: int = sys.maxsize):
        self._maps: list[mmap.mmap] = []
        self._memory, self._other_bytes = memory, _mapped_bytes()
        addresses = np.zeros((2, len(base) - 1), dtype=np.uint64)
        for place, documents in enumerate(np.diff(base).tolist()):
            ends = self._map(ends_file(folder, place), documents + 1)
            values = self._map(sets_file(folder, place), int(ends[-1]))
            addresses[:, place] = values.ctypes.data, ends.ctypes.data
        self.mapped = MappedSets(base, addresses[0], addresses[1])

    def _map(self, path: Path, words: int) -> UInt64:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size != words * WORD:
                    raise PilekitError(f"{path}: is damaged (it has another size); remove it, run again")
                if not size:
                    return np.empty(0, dtype=np.uint64)
                self._maps.append(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise PilekitError(f"{path}: cannot be read: {error.strerror}; run again") from error
        return np.frombuffer(self._maps[-1], dtype=np.uint64)

    def release_if_full(self) -> None:
        """Release the pages read if they exceed the memory; the system's page cache may keep them."""
        if _mapped_bytes() - self._other_bytes > self._memory:
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)
            self._other_bytes = _mapped_bytes()


def _mapped_bytes() -> int:
    """Bytes of mapped files in this process's memory."""
    return mmap.PAGESIZE * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[2])


def sets_file(folder: Path, place: int) -> Path:
    """The file with the sets of the shard at this place of the document table."""
    return folder / f"{place}.sets"


def ends_file(folder: Path, place: int) -> Path:
    """The file with the ends of the sets."""
    return folder / f"{place}.ends"


def _pointer_code(typing_context: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.uint64)(types.uint64), code  # type: ignore[no-untyped-call]


_pointer = cast(Callable[[np.uint64], Any], intrinsic(_pointer_code))


@compiled()
def _words_at(address: np.uint64, count: int) -> UInt64:
    return carray(_pointer(address), count)


@compiled()
def find_set(mapped: MappedSets, id: int) -> UInt64:
    """The set of a candidate; for kernels."""
    place, end_place = 0, len(mapped.base) - 1
    while end_place - place > 1:  # by hand: loading a kernel with np.searchsorted in it imports SciPy
        middle = (place + end_place) // 2
        if mapped.base[middle] <= id:
            place = middle
        else:
            end_place = middle
    ends = _words_at(mapped.ends_at[place] + np.uint64(WORD) * np.uint64(id - mapped.base[place]), 2)
    return _words_at(mapped.sets_at[place] + np.uint64(WORD) * ends[0], int(ends[1] - ends[0]))


_WRITTEN = 1 << 13
"""Values written at once. The system caches one write as one piece, and maps the whole piece."""


def store_shingles(
    job: CorpusJob,
    document_table: DocumentTable,
    shards: Sequence[Shard],
    flagged: Flags,
    folder: Path,
    *,
    list_bytes: int = 4 << 20,
) -> ShingleStore:
    """Read the shards again and write the shingle sets of the flagged documents.

    job          how the work on the shards runs
    shards       the shards of `document_table.sketches`, in the same order
    flagged      a flag for each id
    folder       the folder of the files; complete files of the same run are reused
    list_bytes   UTF-8 bytes of the texts that are turned into sets together

    `PilekitError` for a shard that differs from the sketched shard.
    """
    ids = pairwise(document_table.base.tolist())
    items = list(zip(shards, document_table.sketches, range(len(shards)), ids, strict=True))
    store = functools.partial(_store_shard, folder=folder, flags=write_flags(folder, flagged), list_bytes=list_bytes)
    list(job.each(store, items))
    await_files(file(folder, place) for place in range(len(shards)) for file in (sets_file, ends_file))
    return ShingleStore(folder, document_table.base)


def _store_shard(
    item: tuple[Shard, ShardSketch, int, tuple[int, int]],
    advance: Advance,
    *,
    folder: Path,
    flags: Path,
    list_bytes: int,
    share: Share,
) -> None:
    (shard, sketch, place, ids), threads = item, share.threads
    if ends_file(folder, place).exists():
        advance(sketch.header.size)
        return
    check_unchanged(shard, sketch)
    flagged = read_flags(flags, *ids)
    numbers = np.concatenate([np.zeros(0, np.uint32), *(chunk["number"] for chunk in sketch.chunks(["number"]))])

    def sets(texts: list[bytes]) -> Sets:
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        data = [np.frombuffer(b"".join(texts), dtype=np.uint8)]
        texts.clear()  # A large text must not be held twice.
        return shingle_sets(data.pop(), offsets, sketch.header.ngram)

    # The ends are written last: if they exist, so do the sets.
    with write_atomically(ends_file(folder, place)) as ends_out, write_atomically(sets_file(folder, place)) as sets_out:
        sizes = np.zeros(sketch.documents, dtype=np.int64)
        flagged_sizes = [np.zeros(0, np.int64)]
        texts = _candidate_texts(shard, sketch, numbers[flagged].astype(np.int64), advance, ahead=threads > 1)
        lists = _lists_of(texts, list_bytes)
        for _, listed in map_in_threads(sets, lists, threads - 1, size_of=lambda texts: sum(map(len, texts))):
            for begin in range(0, len(listed.values), _WRITTEN):
                sets_out.write(listed.values[begin : begin + _WRITTEN].data)
            flagged_sizes.append(listed.sizes)
            del listed
        sizes[flagged] = np.concatenate(flagged_sizes)
        ends_out.write(np.cumsum(np.append(0, sizes)).data)
        check_unchanged(shard, sketch)


def _candidate_texts(
    shard: Shard, sketch: ShardSketch, numbers: Int64, advance: Advance, *, ahead: bool
) -> Iterator[bytes]:
    """The texts of the documents with these ascending numbers, in UTF-8."""
    reported = 0

    def report(amount: int) -> None:
        nonlocal reported
        reported += amount
        advance(amount)

    header = sketch.header
    format = RecordFormat(header.text_field, tuple(header.label_path.split(".")))
    parser = LineParser(shard.path, shard.name, format, None, SkippedLines())
    count = 0
    with closing(_texts(shard, parser, numbers, ReadOptions(report, ahead))) as lists:
        while count < len(numbers):
            texts = next(lists, None)
            if texts is None:
                raise shard_changed(shard)
            count += len(texts)
            while texts:  # Popped, because a long text must not be held twice.
                yield texts.pop().encode()
    advance(header.size - reported)


def _lists_of(texts: Iterable[bytes], list_bytes: int) -> Iterator[list[bytes]]:
    """The texts in lists of about this many bytes."""
    gathered: list[bytes] = []
    size = 0
    for text in texts:
        gathered.append(text)
        size += len(text)
        del text  # A long text must not be held while its set is made.
        if size >= list_bytes:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def _texts(shard: Shard, parser: LineParser, numbers: Int64, options: ReadOptions) -> Generator[list[str], None, None]:
    """Lists of texts, each in reverse order, so that the caller can pop and free each text."""
    with shard_blocks(shard.path, options, columns=parser.format) as blocks:
        for part in numbered_parts(blocks):
            chosen_numbers, chosen, _ = np.intersect1d(part.numbers, numbers, assume_unique=True, return_indices=True)
            if isinstance(part, RowBlock):
                records = [part.records[i] for i in chosen.tolist()]
                texts = parser.parse_records(records, chosen_numbers, part.format).texts
            else:
                texts = parser.parse([part.lines[i] for i in chosen.tolist()], chosen_numbers).texts
            del part  # A long line must not be held while the next is read.
            if len(texts) != len(chosen_numbers):
                raise shard_changed(shard)
            texts.reverse()
            yield texts
