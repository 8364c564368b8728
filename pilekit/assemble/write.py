"""The second pass: lines of all sources, spilled in the order of their places, and the shards merged from them.

A source becomes one file of lines. They are collected until memory is full, sorted by (shard, place) and appended as a
run; the places and the bytes at which lines begin go into a second file. A shard takes its part of each run, in buckets
of places that fit in memory. Places are uniform hashes, so buckets are of about one size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output
from pilekit.assemble.count import rows_path
from pilekit.assemble.find_sources import Source
from pilekit.assemble.plan import NOT_HELD_OUT, Plan
from pilekit.assemble.read_source import Job, SourceReader
from pilekit.corpus import Shard
from pilekit.corpus.sidecar_files import INDEX_SUFFIX
from pilekit.engine import Advance
from pilekit.errors import PilekitError, visible
from pilekit.shards.index.build import build_index
from pilekit.shards.read.reader import record_format
from pilekit.shards.write.shard_writer import ShardWriter

UInt64 = npt.NDArray[np.uint64]

SPILLED = "scratch/spilled"
LINE_BYTES = 200
"""What a line in memory takes beside its text."""


def outputs(shards: int) -> list[str]:
    """The names of all output files: train shards, val, test."""
    digits = max(2, len(str(shards - 1)))
    return [*(f"train/{shard:0{digits}}.jsonl" for shard in range(shards)), "val.jsonl", "test.jsonl"]


def plan_path(output: Output) -> Path:
    """The file of the plan."""
    return output.folder / "scratch" / "plan.npz"


def spill_paths(output: Output, source: str) -> tuple[Path, Path]:
    """The files of a source's lines, and of their places and beginnings."""
    name = xxhash.xxh3_128_hexdigest(source.encode())
    return output.folder / SPILLED / f"{name}.lines", output.folder / SPILLED / f"{name}.places"


def spill_name(source: str) -> str:
    """The note of a spilled source; it depends on all inputs, as no input has this name."""
    return f"/spilled/{source}"


class _Run:
    """Lines in memory, and where they go: (index of the line, output, place) in parallel arrays."""

    def __init__(self) -> None:
        self.text = bytearray()  # orjson's lines one by one would take ten times their size
        self.ends = [0]
        self.parts: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], UInt64]] = []

    def add(self, line: bytes) -> None:
        self.text += line
        self.ends.append(len(self.text))

    @property
    def size(self) -> int:
        return len(self.text) + LINE_BYTES * len(self.ends)

    def write(self, lines_file: BinaryIO, places_file: BinaryIO, files: int) -> list[int]:
        """Append the sorted run to both files; where each output begins in the run, and its length."""
        line, output, place = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        order = np.lexsort((place, output))
        ends = np.array(self.ends)
        first, last = ends[line[order]], ends[line[order] + 1]
        begins = lines_file.tell() + np.append(0, np.cumsum(last - first)).astype(np.uint64)
        text = memoryview(self.text)
        lines_file.writelines(map(text.__getitem__, map(slice, first.tolist(), last.tolist())))
        places_file.write(place[order].tobytes())
        places_file.write(begins.tobytes())
        return [int(begin) for begin in np.searchsorted(output[order], np.arange(files + 1))]


def spill_source(source: Source, advance: Advance, *, job: Job) -> None:
    """Write the lines of a source, each as often as it is used, and note the runs."""
    reader, plan, shards = SourceReader(source, job), Plan.load(plan_path(job.output)), job.manifest.assemble.shards
    record, label = record_format(job.manifest).record, job.manifest.subsets[source.subset].name
    lines_path, places_path = spill_paths(job.output, source.name)
    runs, run = [], _Run()
    with (
        rows_path(job.output, source).open("rb") as rows_file,
        write_atomically(lines_path) as lines_file,
        write_atomically(places_path) as places_file,
    ):
        for documents in reader.documents(advance):
            rows = np.fromfile(rows_file, np.uint64, 4 * len(documents.texts)).reshape(-1, 4)
            split, _, copies = plan.fates(source.subset, rows)
            used = np.flatnonzero((copies > 0) | (split > NOT_HELD_OUT))
            first = len(run.ends) - 1
            for index in used.tolist():
                made: dict[str, Any] = record(documents.texts[index], label)
                if documents.kept:
                    made["meta"] = {**made.get("meta", {}), **documents.kept[index]}
                run.add(_encoded(made, source))
            line_of = np.zeros(len(rows), np.int64)
            line_of[used] = np.arange(first, len(run.ends) - 1)
            for indices, places in plan.places(source.subset, documents.identities, np.maximum(copies, split > 0)):
                in_train = np.searchsorted(plan.borders, places, side="right")
                to = np.where(split[indices] > 0, shards - 1 + split[indices], in_train)
                run.parts.append((line_of[indices], to, places))
            if run.size >= job.memory:
                runs.append(run.write(lines_file, places_file, shards + 2))
                run = _Run()
        if run.parts:
            runs.append(run.write(lines_file, places_file, shards + 2))
        source.check(job.inputs)
    job.output.note(spill_name(source.name), {"runs": runs}, lines_path, places_path)


def _encoded(record: dict[str, Any], source: Source) -> bytes:
    try:
        return orjson.dumps(record)
    except TypeError as error:  # a Parquet column may hold anything
        raise PilekitError(
            f"{visible(source.files[0][1])}: a kept field cannot be written as JSON ({visible(str(error), 80)}); "
            "leave it out of `keep`"
        ) from error


@dataclass(frozen=True)
class _Part:
    """The lines of one run that go into one shard."""

    path: Path
    places: UInt64
    begins: UInt64

    def between(self, first: int, last: int) -> tuple[int, int]:
        """The lines with places from `first` to before `last`."""
        low, high = (
            len(self.places) if place >> 64 else int(np.searchsorted(self.places, np.uint64(place)))
            for place in (first, last)
        )
        return low, high

    def read(self, low: int, high: int) -> memoryview:
        with self.path.open("rb") as file:
            file.seek(int(self.begins[low]))
            return memoryview(file.read(int(self.begins[high]) - int(self.begins[low])))


def write_output(number: int, advance: Advance, *, job: Job, sources: list[str]) -> None:
    """Merge one shard from all sources, which are given by name; index it, and note how many documents it has."""
    parts = list(_parts_of(number, job.output, sources))
    size = sum(int(part.begins[-1]) - int(part.begins[0]) for part in parts)
    size += LINE_BYTES * sum(len(part.places) for part in parts)
    first, last = _range_of(number, Plan.load(plan_path(job.output)), job.manifest.assemble.shards)
    buckets = max(1, math.ceil(size / job.memory))
    borders = [first + (last - first) * bucket // buckets for bucket in range(buckets + 1)]
    name = outputs(job.manifest.assemble.shards)[number]
    path = job.output.path(name, ".zst")
    with ShardWriter(path, follow_links=False) as writer:
        for begin, end in pairwise(borders):
            before = writer.text_bytes
            writer.write_lines(_bucket(parts, begin, end))
            advance(writer.text_bytes - before)
    index = Path(f"{path}{INDEX_SUFFIX}")
    shard = Shard(name, str(path), path.stat().st_size)
    built = build_index(shard, manifest=job.manifest, ahead=job.ahead, place=str(index))
    job.output.note(name, {"documents": built.header.documents}, path, index)


def _range_of(number: int, plan: Plan, shards: int) -> tuple[int, int]:
    """The places of an output, from the first to before the last."""
    borders = [0, *plan.borders.tolist(), 1 << 64]
    return (0, 1 << 64) if number >= shards else (borders[number], borders[number + 1])


def _parts_of(number: int, output: Output, sources: list[str]) -> Iterator[_Part]:
    for source in sources:
        note = output.result(spill_name(source))
        assert note is not None
        lines, places = spill_paths(output, source)
        numbers = np.memmap(places, np.uint64, "r") if note["runs"] else np.zeros(0, np.uint64)
        begin = 0
        for cuts in note["runs"]:
            low, high, rows = cuts[number], cuts[number + 1], cuts[-1]
            if low < high:
                first = begin + rows
                yield _Part(lines, numbers[begin + low : begin + high], numbers[first + low : first + high + 1])
            begin += 2 * rows + 1


def _bucket(parts: list[_Part], begin: int, end: int) -> Iterator[memoryview]:
    """The lines with places from `begin` to before `end`, sorted; equal places in the order of the sources."""
    texts: list[memoryview] = []
    places, owners, begins, ends = [], [], [], []
    for part in parts:
        low, high = part.between(begin, end)
        if low < high:
            owners.append(np.full(high - low, len(texts)))
            texts.append(part.read(low, high))
            places.append(part.places[low:high])
            bytes_ = part.begins[low : high + 1] - part.begins[low]
            begins.append(bytes_[:-1])
            ends.append(bytes_[1:])
    if texts:
        order = np.argsort(np.concatenate(places), kind="stable")
        columns = (np.concatenate(column)[order].tolist() for column in (owners, begins, ends))
        for owner, first, last in zip(*columns, strict=True):
            yield texts[owner][first:last]
