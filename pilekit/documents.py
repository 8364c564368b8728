"""`DocumentBatch`: the unit that flows through pilekit.

A batch holds parallel columns for about 1-4 MB of text from one shard. Batches keep Python fast: each document costs a
list append, and everything heavier (hashing, tokenizing, counting) is one call for the whole batch.

(shard name, document number) identifies a document. The number is its line number from 0, counting bad and blank lines,
so neither recompressing nor filtering changes it. `texts` are the decoded texts. `raw_lines()` are the bytes of the
shard, so that a kept line is written byte for byte. In an edited line the new text stands in the place of the old one,
and every other byte stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, overload

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from pilekit.corpus.manifest import Described, load_manifest
from pilekit.corpus.names import MAX_SUBSETS, UNLABELLED, SubsetNames, subset_names
from pilekit.display.wrong_names import NearestNames, nearest, wrong_attribute
from pilekit.errors import PilekitError, counted, shortened

if TYPE_CHECKING:
    import pyarrow as pa

SeeTexts = Callable[[npt.NDArray[np.uint8], npt.NDArray[np.int64]], None]
"""Receives the UTF-8 of some texts end to end, uint8, and the bytes of each, int64 [texts]; valid until it returns."""


def check_labels(labels: Sized, listed: int = 0, path: str | None = None) -> None:
    """Raise `PilekitError` for more than `MAX_SUBSETS` labels in addition to the `listed` ones.

    path   the shard's, for the message

    Whatever lists or counts subsets has this limit. Indexes have it too, so that none is made that a reader refuses.
    """
    if len(labels) > listed + MAX_SUBSETS:
        raise PilekitError(
            f"{'' if path is None else f'{path}: '}more than {MAX_SUBSETS:,} different subset labels; set "
            "label_path in a manifest to the field of the subset, and give that manifest, or name the field by --label"
        )


def add_counts(counts: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The sums of the counts of the same names, in nested mappings too."""
    sums = dict(counts)
    for name, value in more.items():
        sums[name] = add_counts(sums.get(name, {}), value) if isinstance(value, Mapping) else sums.get(name, 0) + value
    return sums


def check_none_lost(counts: Mapping[str, Mapping[str, int]], parts: Sequence[str]) -> None:
    """Raise `PilekitError` if a subset's (or the total's) count `read` is not the sum of its counts of the `parts`."""
    for name, count in counts.items():
        if count["read"] != sum(count[part] for part in parts):
            shown = ", ".join(f"{count[part]:,} {part}" for part in ("read", *parts))
            raise PilekitError(f"documents got lost ({name}): {shown}; please report this")


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def raw_fields(record: bytes | memoryview | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, each as the bytes that spell its value: a view of `record`, not a copy.

    Of a repeated key the last counts, as in decoding. Raises `RecursionError` where some 900 values lie in each other.
    """
    return _FIELDS.decode(record)


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """Where a JSON record keeps its text and its subset label, and which subset a label means; set by a manifest.

    names   the subset of each label; None: labels stay as they are
    """

    text_field: str = "text"
    label_path: tuple[str, ...] = ("meta", "pile_set_name")
    names: SubsetNames | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_manifest(cls, manifest: Described = None) -> RecordFormat:
        """The format of a corpus with this manifest, and its subsets' names; by default as in the Pile."""
        manifest = load_manifest(manifest)
        return cls(manifest.text_field, tuple(manifest.label_path.split(".")), subset_names(manifest))

    def record(self, text: str, subset: str) -> dict[str, Any]:
        """A new record in this format."""
        record: dict[str, Any] = {self.text_field: text}
        if subset != UNLABELLED:
            value: Any = subset
            for key in reversed(self.label_path):
                value = {key: value}
            record.update(value)
        return record

    def text_span(self, line: bytes | memoryview) -> tuple[int, int]:
        """Where the text begins and ends in a line, with its quotes."""
        import pyarrow as pa

        text = pa.py_buffer(raw_fields(line)[self.text_field])
        begin = text.address - pa.py_buffer(line).address
        return begin, begin + text.size


class Document(NamedTuple):
    """One document.

    text     its text
    meta     the record's "meta" object; if the record has none, all its fields but the text
    subset   its label, `(none)` if it has none
    number   the number of its line in the shard, from 0
    shard    the shard's name; with the number it is the document's identity
    """

    text: str
    meta: dict[str, Any]
    subset: str
    number: int
    shard: str

    def __repr__(self) -> str:
        return f"Document({self.shard!r}, {self.number}, {self.subset!r}, {counted(len(self.text), 'character')})"


def _wrong_attribute(document: Document, word: str) -> NoReturn:
    raise wrong_attribute(document, word)


Document.__getattr__ = _wrong_attribute  # type: ignore[attr-defined]  # a NamedTuple has no other base


def meta_of(record: dict[str, Any], text_field: str) -> dict[str, Any]:
    """`Document.meta` of a decoded record."""
    meta = record.get("meta")
    return meta if isinstance(meta, dict) else {key: value for key, value in record.items() if key != text_field}


@dataclass(frozen=True)
class DocumentBatch(NearestNames):
    """Documents of one shard, as parallel columns. `batch[i]` is a `Document`, and iterating gives all of them.

    texts     list of str, [documents]
    subsets   list of str, [documents]; `(none)` for a document without label
    shard     the shard's name, e.g. `train/00.jsonl`
    numbers   int64 [documents], increasing; the line number of each document from 0
    lines     the raw lines without their newline, [documents]; None for documents that do not come from a shard
    edited    indices of the documents whose text differs from their line
    """

    texts: list[str]
    subsets: list[str]
    shard: str
    numbers: npt.NDArray[np.int64]
    lines: Sequence[bytes | memoryview] | None = field(default=None, repr=False)
    edited: frozenset[int] = field(default=frozenset(), repr=False)
    format: RecordFormat = field(default=RecordFormat(), repr=False)

    def __post_init__(self) -> None:
        counts = {len(self.texts), len(self.subsets), len(self.numbers)}
        if self.lines is not None:
            counts.add(len(self.lines))
        if len(counts) != 1:
            raise PilekitError(f"a DocumentBatch of {self.shard} has columns of different lengths: {sorted(counts)}")

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[Document]:
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...
    def __getitem__(self, index: Any) -> Document | list[Document]:
        if isinstance(index, str):
            raise TypeError(f"batch[{index!r}]: a batch of documents has attributes{nearest(index, dir(self))}")
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        text, subset, number = self.texts[index], self.subsets[index], int(self.numbers[index])
        record = self.format.record(text, subset) if self.lines is None else orjson.loads(self.lines[index])
        return Document(text, meta_of(record, self.format.text_field), subset, number, self.shard)

    def __getstate__(self) -> dict[str, Any]:
        """The fields, for another process: its lines are bytes, because a view of memory cannot be sent."""
        lines = None if self.lines is None else list(map(bytes, self.lines))
        return {column.name: getattr(self, column.name) for column in fields(self)} | {"lines": lines}

    def __repr__(self) -> str:
        span = f"{self.numbers[0]}-{self.numbers[-1]} of " if len(self) else ""
        subsets, size = counted(len(set(self.subsets)), "subset"), counted(int(self.text_bytes().sum()), "byte")
        return f"DocumentBatch({counted(len(self))}, {span}{self.shard!r}, {subsets}, {size} of text)"

    def _repr_html_(self) -> str:
        from pilekit.display.fitted_table import Column, FittedTable

        columns = [Column[Document]("Number", lambda row: f"{row.number:,}"), Column("Subset", lambda row: row.subset)]
        columns.append(Column("Text", lambda row: shortened(row.text, 80), justify="left"))
        return FittedTable(self[:20], columns, notes=[repr(self)])._repr_html_()

    @cached_property
    def text_column(self) -> pa.LargeStringArray:
        """The texts as one Arrow `large_string` array: contiguous UTF-8 plus int64 offsets."""
        import pyarrow as pa  # 45 ms and 25 MB, which counting does not need

        return pa.array(self.texts, type=pa.large_string())

    def utf8(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """(bytes uint8 [total bytes], offsets int64 [documents + 1]): views of `text_column` without a copy."""
        _, offsets, values = self.text_column.buffers()
        ends = np.frombuffer(offsets, dtype=np.int64, count=len(self) + 1)
        if values is None:
            return np.zeros(0, dtype=np.uint8), ends
        return np.frombuffer(values, dtype=np.uint8, count=int(ends[-1])), ends

    def text_bytes(self) -> npt.NDArray[np.int64]:
        """UTF-8 bytes of each text, int64 [documents]."""
        return np.fromiter(
            (len(text) if text.isascii() else len(text.encode()) for text in self.texts), np.int64, len(self.texts)
        )

    def text_hashes(self, see_texts: SeeTexts | None = None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """(UTF-8 bytes of each text, int64; xxh3_64 of those, uint64), [documents]; `see_texts` receives the texts."""
        encoded = [text.encode() for text in self.texts]
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        if see_texts is not None:
            see_texts(np.frombuffer(b"".join(encoded), np.uint8), sizes)
        return sizes, np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, len(encoded))

    def raw_lines(self) -> list[bytes | memoryview]:
        """Each document as a JSON line without newline: the original bytes, but for the text if it was edited."""
        if self.lines is None:
            return [
                orjson.dumps(self.format.record(text, subset))
                for text, subset in zip(self.texts, self.subsets, strict=True)
            ]
        lines, line, begin, end = list(self.lines), None, 0, 0
        for index in sorted(self.edited):
            if lines[index] is not line:  # The pieces of a document follow each other and share its line.
                line = lines[index]
                try:
                    begin, end = self.format.text_span(line)
                except RecursionError:
                    place = f"{self.shard}, line {self.numbers[index] + 1:,}"
                    raise PilekitError(f"{place}: has too many fields in each other; remove the line") from None
            lines[index] = b"".join((line[:begin], orjson.dumps(self.texts[index]), line[end:]))
        return lines

    def take(self, indices: Iterable[int]) -> DocumentBatch:
        """The documents at `indices`, which must increase: stages drop documents but never reorder them."""
        chosen = list(indices)
        return self._at(chosen, [self.texts[i] for i in chosen], self.edited)

    def _at(self, chosen: list[int], texts: list[str], edited: frozenset[int]) -> DocumentBatch:
        """The documents at `chosen` with these texts; `edited`: indices of this batch that are edited then."""
        return replace(
            self,
            texts=texts,
            subsets=[self.subsets[i] for i in chosen],
            numbers=self.numbers[chosen] if chosen else self.numbers[:0],
            lines=None if self.lines is None else [self.lines[i] for i in chosen],
            edited=frozenset(new for new, old in enumerate(chosen) if old in edited) if edited else frozenset(),
        )

    def where(self, keep: Sequence[bool] | npt.NDArray[np.bool_]) -> DocumentBatch:
        """The documents whose entry in `keep` (bool, [documents]) is true; the same batch if all are."""
        chosen = np.flatnonzero(np.asarray(keep, dtype=bool)).tolist()
        return self if len(chosen) == len(self) else self.take(chosen)

    def with_texts(self, texts: list[str]) -> DocumentBatch:
        """The same documents with other texts; `raw_lines()` changes nothing but these texts."""
        changed = {
            i for i, (new, old) in enumerate(zip(texts, self.texts, strict=True)) if new is not old and new != old
        }
        return replace(self, texts=texts, edited=self.edited | changed) if changed else self

    def with_pieces(self, pieces: Mapping[int, Sequence[str]]) -> DocumentBatch:
        """Replace each document at an index of `pieces` by documents with those texts and its other fields.

        They share its number, so use this only for batches that will be written.
        """
        if not pieces:
            return self
        parts = [(i, text) for i, old in enumerate(self.texts) for text in pieces.get(i, [old])]
        return self._at([place for place, _ in parts], [text for _, text in parts], self.edited.union(pieces))
