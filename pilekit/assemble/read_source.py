"""Read a source: its documents with the group and the kept fields that the manifest names, and the first pass.

Shards are read block by block, and their labels are ignored. Documents without text are counted and left out, so both
passes over a source give the same documents.

The first pass writes a row of four numbers for each document into a file that the plan reads several times. A row holds
everything that decides a document's fate: its identity, hashes of its text and of its group, and its size. The plan
needs no text, and the second pass finds the fate of each document in the order of the rows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output
from pilekit.assemble.find_sources import Source
from pilekit.corpus import Manifest
from pilekit.documents import DocumentBatch, RecordFormat, raw_fields
from pilekit.errors import PilekitError
from pilekit.pipeline.stages import document_hashes
from pilekit.shards.corpus_job import Share
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.read.blocks import shard_blocks
from pilekit.shards.read.json_records import LineParser, kind_of, records_of, text_of
from pilekit.shards.read.lines import Line, RowBlock, numbered_parts
from pilekit.shards.read.open import MAX_DOCUMENT_BYTES, ReadOptions
from pilekit.shards.read.read_errors import BadLine, BadRecord, SkippedLines
from pilekit.shards.read.reader import OnError
from pilekit.workers import Advance

Rows = npt.NDArray[np.uint64]
"""uint64 [documents, 4]: IDENTITY, TEXT (xxh3_64), GROUP (xxh3_64; the text's without groups), SIZE (UTF-8 bytes)."""

IDENTITY, TEXT, GROUP, SIZE = range(4)
ROWS_AT_A_TIME = 1 << 16
SCRATCH, COUNTED = "scratch", "counted"

BATCH_BYTES = 4 << 20


class Documents(NamedTuple):
    """Some documents of a source, as parallel columns.

    identities   hash of (path, number) of each document, uint64 [documents]
    groups       "" where the subset has none
    kept_fields  spelt as in their lines; none in the first pass
    """

    identities: npt.NDArray[np.uint64]
    texts: list[str]
    groups: list[str]
    kept_fields: list[dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """The settings for the workers of all steps; `plan` is the plan's file."""

    manifest: Manifest
    plan: Path
    on_error: OnError


class SourceReader:
    """Reads one source. `skipped` and `empty` count bad lines and documents without text so far."""

    def __init__(self, source: Source, job: Job, ahead: bool, *, keeping: bool):
        subset = job.manifest.subsets[source.subset]
        self.source, self.job, self.ahead = source, job, ahead
        self.text_field = subset.text_field or job.manifest.text_field
        self.skipped, self.empty = SkippedLines(), 0
        self._path, format = source.path, RecordFormat(self.text_field, ())
        skipped = self.skipped if job.on_error == "skip" else None
        self._parser = LineParser(self._path, source.name, format, None, skipped)
        self._group = tuple(subset.group.split(".")) if subset.group else ()
        self._keep = [tuple(path.split(".")) for path in subset.keep] if keeping else []

    def documents(self, advance: Advance) -> Iterator[Documents]:
        """All documents in order, in batches of a few megabytes; `advance` receives the stored bytes."""
        if self.source.is_text:
            return self._text_files(advance)
        fields = {self.text_field, *(path[0] for path in (self._group, *self._keep) if path)}
        return self._records(fields, ReadOptions(advance, self.ahead))

    def _records(self, fields: set[str], options: ReadOptions) -> Iterator[Documents]:
        with shard_blocks(self._path, options, columns=fields) as blocks:
            for part in numbered_parts(blocks):
                yield self._documents(
                    part.numbers, records_of(part), None if isinstance(part, RowBlock) else part.lines
                )

    def _documents(
        self, record_numbers: npt.NDArray[np.int64], records: list[object], lines: list[Line] | None
    ) -> Documents:
        """The documents in decoded records with these numbers; `lines` are the records' lines, if they have any."""
        numbers: list[int] = []
        documents = Documents(np.zeros(0, np.uint64), [], [], [])
        for place, (number, decoded) in enumerate(zip(record_numbers.tolist(), records, strict=True)):
            try:
                record, text = text_of(decoded, self.text_field)
                group = self._group_of(record) if self._group else ""
            except BadRecord as bad:
                self._parser.bad(number, str(bad))
                continue
            if not text:
                self.empty += 1
                continue
            numbers.append(number)
            documents.texts.append(text)
            documents.groups.append(group)
            documents.kept_fields.append(self._kept_fields(record, None if lines is None else lines[place], number))
        return documents._replace(identities=document_hashes(self.source.name, np.array(numbers, np.int64), 0))

    def _kept_fields(self, record: dict[str, Any], line: Line | None, number: int) -> dict[str, Any]:
        """The kept fields of a record. Those of a line are its bytes, because decoding loses large numbers."""
        fields = {path: value for path in self._keep if (value := _value(record, path)) is not None}
        if line is not None:
            try:
                fields = {path: orjson.Fragment(bytes(_spelt(line, path))) for path in fields}
            except RecursionError:
                place = f"{self._path}, line {number + 1:,}"
                raise PilekitError(f"{place}: has too many fields in each other; remove the line") from None
        return {path[-1]: value for path, value in fields.items()}

    def _group_of(self, record: dict[str, Any]) -> str:
        value = _value(record, self._group)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
        name = ".".join(self._group)
        if value is None:
            raise BadRecord(f'has no "{name}" field, which says what is held out together')
        raise BadRecord(f'field "{name}" is {kind_of(value)}, not a string or a whole number')

    def _text_files(self, advance: Advance) -> Iterator[Documents]:
        batch: list[tuple[npt.NDArray[np.uint64], str, str, dict[str, Any]]] = []
        held_bytes = 0
        for number, (identity, path) in enumerate(self.source.files, 1):
            text = self._text_of(path)
            advance(len(text or ""))
            self.empty += text == ""
            if text:
                hashes = document_hashes(identity, np.zeros(1, np.int64), 0)
                batch.append((hashes, text, identity.rpartition("/")[0], {}))
                held_bytes += len(text)
            if batch and (held_bytes >= BATCH_BYTES or number == len(self.source.files)):
                identities, *columns = zip(*batch, strict=True)
                yield Documents(np.concatenate(identities), *map(list, columns))
                batch, held_bytes = [], 0

    def _text_of(self, path: str) -> str | None:
        """The text of a file; None if it is skipped."""
        try:
            if Path(path).stat().st_size > MAX_DOCUMENT_BYTES:
                raise PilekitError(f"{path}: is longer than {MAX_DOCUMENT_BYTES:,} bytes; split it")
            return Path(path).read_bytes().decode()
        except OSError as error:
            raise PilekitError(f"{path}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            if self.job.on_error == "raise":
                raise PilekitError(
                    f"{path}: is not valid UTF-8 (byte {error.start:,}); remove it from the sources, or skip such "
                    "files with --on-error skip"
                ) from error
            self.skipped.add(BadLine(path, 1, f"is not valid UTF-8 (byte {error.start:,} of the file)"))
            return None


def _value(record: Any, path: tuple[str, ...]) -> Any:
    """The value at a path; None where a step of it is missing."""
    for key in path:
        if type(record) is not dict:
            return None
        record = record.get(key)
    return record


def _spelt(line: Line, path: tuple[str, ...]) -> Line | msgspec.Raw:
    """The bytes of the value at a path, which leads to a value."""
    return functools.reduce(lambda record, key: raw_fields(record)[key], path, line)


def count_source(source: Source, advance: Advance, *, job: Job, output: Output, inputs: Inputs, share: Share) -> None:
    """Write the rows of a source, and note its counts."""
    reader = SourceReader(source, job, share.ahead, keeping=False)
    path = scratch_path(output, COUNTED, source.name)
    read = size = 0
    with write_atomically(path) as file:
        for documents in reader.documents(advance):
            numbers = np.arange(len(documents.texts))
            sizes, texts = DocumentBatch(documents.texts, documents.texts, source.name, numbers).text_hashes()
            groups = texts
            if job.manifest.subsets[source.subset].group:
                groups = np.array([xxhash.xxh3_64_intdigest(group.encode()) for group in documents.groups], np.uint64)
            columns = documents.identities, texts, groups, sizes.astype(np.uint64)
            file.write(np.stack(columns, axis=1).tobytes())
            read += len(sizes)
            size += int(sizes.sum())
        source.check(inputs)
    skipped = reader.skipped
    counts = {"read": read + reader.empty, "empty": reader.empty, "skipped": skipped.count, "text_bytes": size}
    output.note(source.name, {**counts, "bad_lines": skipped.listed()}, path)


def scratch_path(output: Output, kind: str, source: str) -> Path:
    """A file of the source of this name in a folder for its kind."""
    return output.folder / SCRATCH / kind / xxhash.xxh3_128_hexdigest(source.encode())


def read_rows(output: Output, sources: list[Source], subset: int) -> Iterator[Rows]:
    """The rows of all sources of a subset, in small tables."""
    for source in sources:
        if source.subset == subset:
            with scratch_path(output, COUNTED, source.name).open("rb") as file:
                while len(rows := np.fromfile(file, np.uint64, 4 * ROWS_AT_A_TIME)):
                    yield rows.reshape(-1, 4)
