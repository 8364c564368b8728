r"""Lines to documents: JSON decoding, labels, and the reason why a line is bad.

The fast path decodes a whole block with a few list comprehensions. If a block holds anything unexpected (a blank line,
a missing label, a bad line), that block goes through the careful path.

When subsets are selected, most lines need no decoding. A line that ends in `, "meta": {"pile_set_name": "X"}}` is
provably a document of subset X, if it is a valid JSON object. The last `}` closes the record. The one before it closes
an object that was opened right before `"pile_set_name"`, because there is no brace between, and the label holds neither
quote nor backslash. None of these quotes can lie inside a string, because each is preceded by a character that is not a
backslash, so the string state, followed backwards from the end of the line, is known. Of repeated keys the last one
counts, which is this one. So a line whose ending names another subset is skipped without decoding, and its other bytes
are not checked. Lines with another ending (other spellings, a key after `meta`) are decoded.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

from pilekit.corpus import UNLABELLED, Described, Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.documents import DocumentBatch, RecordFormat
from pilekit.errors import PilekitError, visible
from pilekit.shards.read.lines import Line, NumberedLines, RowBlock
from pilekit.shards.read.read_errors import BadLine, BadRecord, SkippedLines

OnError = Literal["raise", "skip"]

ENDING_BYTES = 256
"""How many bytes at a line's end are searched for the label."""

_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


def kind_of(value: object) -> str:
    """The JSON name of a decoded value's type, with its article; Python's name for types that only Parquet has."""
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)


class BadLineError(PilekitError):
    """A bad line that is not skipped; `line` is its number, from 1."""

    line = 0


@dataclass(slots=True)
class LineParser:
    """Makes a `DocumentBatch` of the lines of one block.

    path              the shard's name in messages
    shard             the shard's name
    subsets           only documents with these exact labels; None: all
    skipped           counts the bad lines; None: a bad line raises `PilekitError`
    other_documents   the number of documents of other subsets so far
    """

    path: str
    shard: str
    format: RecordFormat
    subsets: Collection[str] | None
    skipped: SkippedLines | None
    other_documents: int = 0

    @classmethod
    def for_shard(
        cls,
        shard: Shard,
        manifest: Described = None,
        subsets: Sequence[str] | None = None,
        on_error: OnError = "raise",
        skipped: SkippedLines | None = None,
    ) -> LineParser:
        """The parser of a shard, with the fields and the names of subsets that a manifest gives.

        skipped   counts the bad lines if `on_error` is "skip"
        """
        if on_error not in ("raise", "skip"):
            raise PilekitError(f'on_error is "raise" or "skip", not {on_error!r}')
        format, exact = RecordFormat.from_manifest(manifest), None if subsets is None else frozenset(subsets)
        shown = shard.name if shard.path == STANDARD_INPUT else shard.path
        return cls(shown, shard.name, format, exact, skipped if on_error == "skip" else None)

    def batches(self, parts: Iterable[NumberedLines | RowBlock], start: int = 0) -> Iterator[DocumentBatch]:
        """Parse the parts of blocks, lines from document `start` on; yields no empty batch.

        The documents before a bad line are yielded before its error. A reader that needs no more never meets it.
        """
        for part in parts:
            if isinstance(part, RowBlock):
                if len(batch := self.parse_records(part.records, part.numbers, part.format)):
                    yield batch
                continue
            numbers, lines, _ = part
            del part
            if len(numbers) and numbers[0] < start:
                before = int(np.searchsorted(numbers, start))
                numbers, lines = numbers[before:], lines[before:]
            if lines:
                if self.subsets is not None:
                    chosen = self.may_be_of(lines, self.subsets)
                    if len(chosen) < len(lines):
                        self.other_documents += len(lines) - len(chosen)
                        numbers, lines = numbers[chosen], [lines[i] for i in chosen]
                other_documents, failure = self.other_documents, None
                try:
                    batches = [self.parse(lines, numbers)] if lines else []
                except BadLineError as error:
                    self.other_documents, failure = other_documents, error
                    before = int(np.searchsorted(numbers, error.line - 1))
                    batches = [self.parse(lines[:before], numbers[:before])] if before else []
                del lines
                if batches and len(batches[0]):
                    yield batches.pop()  # Drop this reference: the consumer alone holds a long text.
                if failure is not None:
                    raise failure

    def may_be_of(self, lines: list[Line], labels: Collection[str]) -> list[int]:
        """The indices of the lines that may have one of these labels: their ending does not prove another label."""
        names, ending = self.format.names, re.compile(_ending_pattern(self.format.label_path))

        @functools.cache
        def is_chosen(label: bytes) -> bool:
            try:
                text = label.decode()
            except UnicodeDecodeError:
                return False
            return (text if names is None else names[text]) in labels

        chosen = []
        for index, line in enumerate(lines):
            match = ending.search(line, max(0, len(line) - ENDING_BYTES))
            if match is None or is_chosen(match[1]):
                chosen.append(index)
        return chosen

    def parse(self, lines: list[Line], numbers: npt.NDArray[np.int64]) -> DocumentBatch:
        """Decode lines; `numbers` are their document numbers, int64 [lines]."""
        text_field, label_path = self.format.text_field, self.format.label_path
        try:
            # Each record is dropped at once: the garbage collector visits again and again what a block keeps. (And a
            # loop in C, such as map(), never releases the GIL, and the decoding thread would wait for a whole block.)
            loads, texts, labels = orjson.loads, [], []
            for line in lines:
                label = record = loads(line)
                texts.append(record[text_field])
                for key in label_path:
                    label = label[key]
                labels.append(label)
            if set(map(type, texts)) != {str} or set(map(type, labels)) != {str}:
                return self.parse_records(map(record_of, lines), numbers, self.format, lines)
        except (orjson.JSONDecodeError, LookupError, TypeError):
            return self.parse_records(map(record_of, lines), numbers, self.format, lines)
        if (names := self.format.names) is not None:
            labels = [names[label] for label in labels]
        if self.subsets is not None and not set(labels) <= set(self.subsets):
            chosen = [i for i, label in enumerate(labels) if label in self.subsets]
            self.other_documents += len(labels) - len(chosen)
            texts, labels = [texts[i] for i in chosen], [labels[i] for i in chosen]
            lines, numbers = [lines[i] for i in chosen], numbers[chosen]
        return DocumentBatch(texts, labels, self.shard, numbers, lines, format=self.format)

    def parse_records(
        self,
        records: Iterable[object],
        numbers: npt.NDArray[np.int64],
        format: RecordFormat,
        lines: list[Line] | None = None,
    ) -> DocumentBatch:
        """Check decoded records one by one; a `BadRecord` among them says why a line could not be decoded.

        numbers   their document numbers, int64 [records]
        format    where these records keep text and label
        lines     the lines of the records, blank ones are skipped; None: the records come from a table
        """
        texts, labels, places = [], [], []
        for index, record in enumerate(records):
            try:
                text, label = document_of(record, format)
            except BadRecord as bad:
                if lines is None or bytes(lines[index]).strip():
                    self.bad(int(numbers[index]), str(bad))
                continue
            if self.subsets is None or label in self.subsets:
                texts.append(text)
                labels.append(label)
                places.append(index)
            else:
                self.other_documents += 1
        raw = None if lines is None else [lines[i] for i in places]
        return DocumentBatch(
            texts, labels, self.shard, numbers[places] if places else numbers[:0], raw, format=self.format
        )

    def bad(self, number: int, reason: str) -> None:
        """Skip and count the bad line with document number `number`, or raise."""
        bad = BadLine(self.path, number + 1, reason)
        if self.skipped is None:
            raise bad_line_error(bad)
        self.skipped.add(bad)


def bad_line_error(bad: BadLine) -> BadLineError:
    """The error for a bad line that is not skipped."""
    error = BadLineError(f"{bad}; mend the line, or read with --on-error skip")
    error.line = bad.line
    return error


def _ending_pattern(label_path: tuple[str, ...]) -> bytes:
    """A pattern for the end of a line whose last key holds the label; group 1 is the label."""
    space = rb"[ \t\r]*"
    opening = (space + rb":" + space + rb"\{" + space).join(re.escape(orjson.dumps(key)) for key in label_path)
    closing = (space + rb"\}") * len(label_path)
    return rb"," + space + opening + space + rb":" + space + rb'"([^"\\]*)"' + closing + space + rb"\Z"


def record_of(line: Line) -> object:
    """The decoded line; the `BadRecord` with the reason if it is not JSON."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("Not enough memory"):  # The line may be right, and must not be skipped as bad.
            raise MemoryError from error
        return BadRecord(_why_not_json(line, error))


def records_of(part: NumberedLines | RowBlock) -> list[object]:
    """The decoded records of a part of a block; a `BadRecord` stands for a line or row that cannot be decoded."""
    return part.records if isinstance(part, RowBlock) else [record_of(line) for line in part.lines]


def document_of(record: object, format: RecordFormat) -> tuple[str, str]:
    """(text, subset) of one decoded record; raises `BadRecord` with the reason; if `record` is one, raises it."""
    record, text = text_of(record, format.text_field)
    label = label_of(record, format.label_path)
    return text, label if format.names is None else format.names[label]


def text_of(record: object, field: str) -> tuple[dict[str, Any], str]:
    """The record, which is an object, and its text; raises `BadRecord` like `document_of`."""
    if isinstance(record, BadRecord):
        raise record
    if type(record) is not dict:
        raise BadRecord(f"is {kind_of(record)}, not a JSON object")
    text = record.get(field, BadRecord)
    if text is BadRecord:
        there = visible(", ".join(map(str, record)), 80) or "none"
        remedy = "name another with --text-field, or text_field in a manifest"
        raise BadRecord(f'has no "{visible(field)}" field (its fields: {there}; {remedy})')
    if type(text) is not str:
        raise BadRecord(f'field "{visible(field)}" is {kind_of(text)}, not a string')
    return record, text


def label_of(record: dict[str, Any], path: tuple[str, ...]) -> str:
    """The label at `path`; `(none)` where a step of the path is missing or null."""
    value: Any = record
    for depth, key in enumerate(path):
        if type(value) is not dict:
            raise BadRecord(f'field "{visible(".".join(path[:depth]))}" is {kind_of(value)}, not an object')
        value = value.get(key)
        if value is None:
            return UNLABELLED
    if type(value) is not str:
        raise BadRecord(f'field "{visible(".".join(path))}" is {kind_of(value)}, not a string')
    return value


def _why_not_json(line: Line, error: orjson.JSONDecodeError) -> str:
    """The reason a line did not decode, with the byte in the line, counted from 0."""
    if not error.doc:  # orjson decoded none of it; a line that it decoded is not copied again, as it may have a GiB
        try:
            codecs.utf_8_decode(line, "strict", True)
        except UnicodeDecodeError as bad:
            return f"is not valid UTF-8 (byte {bad.start:,} of the line)"
    if "surrogate" in error.msg:
        reason = "holds a lone surrogate, which no UTF-8 text can"
    else:
        reason = f"is not JSON: {error.msg}"
    return f"{reason} (byte {len(error.doc[: error.pos].encode()):,} of the line)"
