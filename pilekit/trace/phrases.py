"""`Phrases`: the phrases to look for, from a file or a list, each checked before anything is read.

A text file has a phrase a line, which ends at a newline, or at a carriage return and a newline. JSON lines and Parquet
have a phrase in a field of each record.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.corpus import shard_of
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.cutting.evaluation_texts import raw_records
from pilekit.cutting.words import compacted_all
from pilekit.errors import PilekitError, shortened
from pilekit.shards.read.blocks import locate_errors
from pilekit.shards.read.open import open_file, open_stored
from pilekit.trace.phrase_kernel import Bytes, Int64
from pilekit.workers.kernels import compiled

MOST_BYTES = 1 << 31
_NEWLINE, _RETURN = np.uint8(10), np.uint8(13)
RECORD_SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet")


@dataclass(frozen=True)
class Phrases:
    """Phrases, of which none is empty. Two may be equal.

    data, ends   UTF-8 of all, one behind the other, and where each ends; uint8, int64 [phrases]
    lines        the line of each, from 1; for a list its place
    path         the file; None: a list
    """

    data: Bytes
    ends: Int64
    lines: Sequence[int] | Int64
    path: str | None

    @classmethod
    def read(cls, source: str | Path | Iterable[str], field: str | None = None) -> Self:
        """The phrases of a file at a path or URL, or the texts of a list.

        field   the field of the phrase in the records of a .jsonl or .parquet file

        PilekitError for an empty phrase, one that is not UTF-8, a source without phrases, and more than 2 GiB.
        """
        if not isinstance(source, str | Path):
            if field is not None:
                raise PilekitError("field is for a file of records; leave it out")
            return cls._of_texts(enumerate(source, 1), None)
        path = str(source)
        if has_records(path):
            return cls._of_texts(record_texts(path, field or "text", "phrase"), path)
        if field is not None:
            raise PilekitError(
                f"{path}: has a phrase a line and no fields; leave out --field, or name a .jsonl or .parquet file"
            )
        return cls._of_lines(path)

    @classmethod
    def _of_lines(cls, path: str) -> Self:
        text = file_bytes(path)
        _check_utf8(text, path)
        lines = text.count(b"\n") + (not text.endswith(b"\n") and len(text) > 0)
        store, ends = np.empty(len(text), np.uint8), np.empty(lines, np.int64)
        _cut_lines(np.frombuffer(text, np.uint8), store, ends)
        del text
        phrases = cls(store[: ends[-1] if lines else 0], ends, range(1, lines + 1), path)
        phrases._check()
        return phrases

    @classmethod
    def _of_texts(cls, texts: Iterable[tuple[int, object]], path: str | None) -> Self:
        data, sizes, lines = bytearray(), list[int](), list[int]()
        for line, text in texts:
            if not isinstance(text, str):
                raise PilekitError(f"{_place(path, line)}: is no text but {shortened(text, 60)}")
            try:
                data += text.encode()
            except UnicodeEncodeError:
                raise PilekitError(f"{_place(path, line)}: holds half of a surrogate pair; remove it") from None
            sizes.append(len(data))
            lines.append(line)
        ends = np.array(sizes, np.int64)
        phrases = cls(np.frombuffer(data, np.uint8), ends, np.array(lines), path)
        phrases._check()
        return phrases

    def _check(self, lacks: str = "is empty") -> None:
        """Raise PilekitError if there is no phrase, a phrase of size 0, or too much text."""
        if not len(self):
            where = "phrases" if self.path is None else self.path
            raise PilekitError(f"{where}: holds no phrase; name at least one")
        is_empty = np.append(self.ends[0] == 0, self.ends[1:] == self.ends[:-1])
        if is_empty.any():
            place = _place(self.path, int(self.lines[int(np.argmax(is_empty))]))
            raise PilekitError(f"{place}: {lacks}; remove it")
        if self.ends[-1] >= MOST_BYTES:
            raise PilekitError("the phrases hold more than 2 GiB of text; take some of them at a time")

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def hash(self) -> str:
        """The hash of all phrases in their order."""
        hash = xxhash.xxh3_128(self.data.data)
        hash.update(self.ends.data)
        return hash.hexdigest()

    def texts(self, numbers: Iterable[int]) -> list[str]:
        """The phrases of these numbers, from 0."""
        view = self.data.data
        return [str(view[self.ends[number - 1] if number else 0 : self.ends[number]], "utf-8") for number in numbers]

    def place(self, number: int) -> str:
        """The file and the line of a phrase, for messages."""
        return _place(self.path, int(self.lines[number]))

    def words(self, at_a_time: int = 1 << 14) -> Self:
        """The words of each phrase, each followed by a space; PilekitError for a phrase without a word."""
        data, ends = bytearray(), np.empty(len(self), np.int64)
        for begin in range(0, len(self), at_a_time):
            part = range(begin, min(begin + at_a_time, len(self)))
            words, offsets = compacted_all(self.texts(part))
            ends[part.start : part.stop] = offsets[1:] - 1 + len(data)
            data += words[1:].data
        of_words = replace(self, data=np.frombuffer(data, np.uint8), ends=ends)
        of_words._check("has no word")
        return of_words

    def saved(self, folder: Path) -> Self:
        """The same phrases in files in this folder, mapped into memory."""
        maps = []
        for name, values in (("data", self.data), ("ends", self.ends)):
            with write_atomically(folder / f"{name}.npy", flushed=False) as file:
                np.save(file, values)
            maps.append(np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray))
        return replace(self, data=maps[0], ends=maps[1])


@compiled()
def _cut_lines(text: Bytes, store: Bytes, ends: Int64) -> None:
    """Write the lines without their ends into `store`, one behind the other, and where each ends there."""
    size, begin, line = 0, 0, 0
    for at in range(len(text) + 1):
        if at < len(text) and text[at] != _NEWLINE:
            store[size] = text[at]
            size += 1
        elif line < len(ends):
            size -= int(size > begin and store[size - 1] == _RETURN)
            ends[line] = begin = size
            line += 1


def _place(path: str | None, line: int) -> str:
    return f"phrase {line:,}" if path is None else f"{path}, line {line:,}"


def _check_utf8(text: bytes, path: str, at_a_time: int = 1 << 20) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for begin in range(0, len(text), at_a_time):
        try:
            decoder.decode(text[begin : begin + at_a_time], begin + at_a_time >= len(text))
        except UnicodeDecodeError:
            break
    else:
        return
    for number, line in enumerate(text.split(b"\n"), 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise PilekitError(f"{_place(path, number)}: is not UTF-8 ({error.reason}); convert the file") from error


def has_records(path: str) -> bool:
    """Whether a file's name says that it holds records."""
    return path.removesuffix(".zst").removesuffix(".gz").endswith(RECORD_SUFFIXES)


def record_texts(path: str, field: str, noun: str) -> Iterable[tuple[int, object]]:
    """The line and the value of a field of each record, which a message calls the field of the `noun`."""
    for line, record in raw_records(shard_of(path), [field]):
        if field not in record:
            place = _place(path, line)
            raise PilekitError(f"{place}: has no field {field}; name the field of the {noun} with --field")
        yield line, record[field]


def file_bytes(path: str) -> bytes:
    """The content of a file of any name, or of standard input, without a byte order mark."""
    is_input = path == STANDARD_INPUT
    with locate_errors(path, lambda: 0), open_stored(path)[0] if is_input else open_file(path) as file:
        return file.read().removeprefix(codecs.BOM_UTF8)
