"""The second pass: lines of all sources, spilled in the order of their places, and the shards merged from them.

A source becomes one file of lines. They are collected until memory is full, sorted by place and appended as a run; a
second file holds the place of each line and the byte at which it begins. A shard is a range of places. It takes its
part of each run, in buckets that fit in memory. Places are uniform hashes, so buckets have about the same size.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output
from pilekit.assemble.corpus_plan import LEFT_OUT, REMOVED, CorpusPlan
from pilekit.assemble.find_sources import Source
from pilekit.assemble.read_source import COUNTED, Job, SourceReader, scratch_path
from pilekit.corpus import Shard
from pilekit.corpus.sidecar_files import INDEX_SUFFIX
from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError, shortened
from pilekit.shards.corpus_job import Share, await_files
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import await_notes
from pilekit.shards.index.build import build_index
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.write.shard_writer import ShardWriter
from pilekit.workers import Advance

LINES, PLACES, SPILLED = "spilled/lines", "spilled/places", "/spilled/"
"""The files of a source, and the beginning of the name of its note, which depends on all inputs."""
LINE_BYTES = 200
"""The bytes that a line in memory takes in addition to its text."""

_Lines = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Lines in memory: place, first byte, byte behind the last, [lines]."""


def outputs(shards: int) -> list[str]:
    """The names of all output files: train shards, val, test."""
    digits = max(2, len(str(shards - 1)))
    return [*(f"train/{shard:0{digits}}.jsonl" for shard in range(shards)), "val.jsonl", "test.jsonl"]


def spill_source(source: Source, advance: Advance, *, job: Job, output: Output, inputs: Inputs, share: Share) -> None:
    """Write the lines of a source, each as often as it is used, and note the runs. Half of the memory holds lines."""
    record, subset = RecordFormat.from_manifest(job.manifest).record, job.manifest.subsets[source.subset]
    paths = [scratch_path(output, kind, source.name) for kind in (COUNTED, LINES, PLACES)]
    await_files([paths[0], job.plan])
    reader, plan = SourceReader(source, job, share.ahead, keeping=True), CorpusPlan.load(job.plan, job.manifest)
    runs: list[int] = []
    text, unwritten, size = bytearray(), list[_Lines](), 0
    with paths[0].open("rb") as rows_file, write_atomically(paths[1]) as lines, write_atomically(paths[2]) as places:
        for documents in reader.documents(advance):
            rows = np.fromfile(rows_file, np.uint64, 4 * len(documents.texts)).reshape(-1, 4)
            fates = plan.fates(source.subset, rows)
            used = np.flatnonzero((fates != LEFT_OUT) & (fates != REMOVED))
            ends = [len(text)]
            for index in used.tolist():
                new_record: dict[str, Any] = record(documents.texts[index], subset.name)
                if subset.keep:
                    new_record["meta"] = {**new_record.get("meta", {}), **documents.kept_fields[index]}
                text += _encoded(new_record, source)
                ends.append(len(text))
            borders = np.array(ends)
            for indices, copy_places in plan.places(source.subset, documents.identities[used], fates[used]):
                unwritten.append((copy_places, borders[indices], borders[indices + 1]))
                size += LINE_BYTES * len(copy_places)
                if len(text) + size >= share.memory // 2:
                    runs.append(_write_run(text, unwritten, lines, places))
                    unwritten, size = [], 0
            if not unwritten:
                text = bytearray()
        if unwritten:
            runs.append(_write_run(text, unwritten, lines, places))
        source.check(inputs)
    output.note(SPILLED + source.name, {"runs": runs}, *paths[1:])


def _write_run(text: bytearray, unwritten: list[_Lines], lines_file: BinaryIO, places_file: BinaryIO) -> int:
    """Append lines, sorted, to one file and rows (place, first byte) to the other; returns the number of lines.

    One more row has only the end of the run.
    """
    place, first, last = (np.concatenate(column) for column in zip(*unwritten, strict=True))
    order = np.argsort(place, kind="stable")
    place, first, last = place[order], first[order], last[order]
    begins = lines_file.tell() + np.append(0, np.cumsum(last - first)).astype(np.uint64)
    lines_file.writelines(map(memoryview(text).__getitem__, map(slice, first.tolist(), last.tolist())))
    places_file.write(np.stack([np.append(place, np.uint64(0)), begins], axis=1).tobytes())
    return len(place)


def _encoded(record: dict[str, Any], source: Source) -> bytes:
    try:
        return orjson.dumps(record)
    except TypeError as error:  # a Parquet column may hold anything
        raise PilekitError(
            f"{source.path}: a kept field cannot be written as JSON ({shortened(error, 80)}); leave it out of `keep`"
        ) from error


class _Part(NamedTuple):
    """The lines of one run that go into one shard: their file, and the rows of `_write_run`, stored in `mapped`."""

    lines: Path
    rows: npt.NDArray[np.uint64]
    mapped: mmap.mmap

    def between(self, begin: int, end: int) -> _Part:
        """The lines with places from `begin` to before `end`."""
        low, high = np.searchsorted(self.rows[:-1, 0], np.array([begin, end], np.uint64))
        return self._replace(rows=self.rows[low : high + 1])


def write_output(shard: Shard, advance: Advance, *, job: Job, output: Output, inputs: Inputs, share: Share) -> None:
    """Merge one shard from all sources, index it, and note its number of documents.

    A sixth of the memory holds lines of a bucket.
    """
    name = shard.name
    await_files([job.plan])
    await_notes(output, [SPILLED + source for source in inputs.fingerprints])
    number = outputs(job.manifest.assemble.shards).index(name)
    first, last = CorpusPlan.load(job.plan, job.manifest).borders[number : number + 2].tolist()
    parts = [part.between(first, last) for part in _parts(output, inputs.fingerprints)]
    size = sum(int(part.rows[-1, 1]) - int(part.rows[0, 1]) + LINE_BYTES * len(part.rows) for part in parts)
    buckets = max(1, math.ceil(size / (share.memory // 6)))
    path = output.path(name, ".zst")
    with ShardWriter(path, follow_links=False) as writer:
        for begin, end in pairwise(first + (last - first) * bucket // buckets for bucket in range(buckets + 1)):
            before = writer.text_bytes
            writer.write_lines(_sorted_lines([part.between(begin, end) for part in parts]))
            advance(writer.text_bytes - before)
    index = Path(f"{path}{INDEX_SUFFIX}")
    written = Shard(name, str(path), path.stat().st_size)
    built = build_index(
        written, str(index), ReadOptions(ahead=share.ahead, stored=written.size or 0), manifest=job.manifest
    )
    output.note(name, {"documents": built.header.documents}, path, index)


def _parts(output: Output, sources: Iterable[str]) -> Iterator[_Part]:
    """All runs of all sources."""
    for source in sources:
        note = output.result(SPILLED + source)
        assert note is not None
        if not note["runs"]:
            continue
        with scratch_path(output, PLACES, source).open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        rows = np.frombuffer(mapped, np.uint64).reshape(-1, 2)
        for lines in note["runs"]:
            yield _Part(scratch_path(output, LINES, source), rows[: lines + 1], mapped)
            rows = rows[lines + 1 :]


def _sorted_lines(parts: list[_Part]) -> Iterator[memoryview]:
    """The lines of all parts, sorted; equal places in the order of the sources."""
    texts: list[memoryview] = []
    columns: list[tuple[npt.NDArray[np.integer], ...]] = []
    for lines, rows, mapped in parts:
        if len(rows) > 1:
            places, begins = rows.T.copy()
            with lines.open("rb") as file:
                file.seek(int(begins[0]))
                texts.append(memoryview(file.read(int(begins[-1] - begins[0]))))
            begins -= begins[0]
            columns.append((places[:-1], np.full(len(rows) - 1, len(texts) - 1), begins[:-1], begins[1:]))
        mapped.madvise(mmap.MADV_DONTNEED)  # Pages that were read count as memory of the process.
    if columns:
        places, *where = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(places, kind="stable")
        for text, first, last in zip(*(column[order].tolist() for column in where), strict=True):
            yield texts[text][first:last]
