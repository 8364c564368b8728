"""`TokenFile`: a checked view of a `.bin` and its `.idx`, whoever wrote them.

Files are mapped, so they take no memory, and ids are views of the mapped `.bin`. Opening compares the fields of the
index with each other and with the size of the `.bin`, in pieces. No id is read. A `.bin` in parts
(`X-00000-of-00082.bin` beside `X.idx`, as Pythia publishes) is read as one file.
"""

from __future__ import annotations

import bisect
import functools
import glob
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pilekit.artifacts.header import Header, read_header
from pilekit.corpus import UNLABELLED
from pilekit.corpus.sidecar_files import DOCUMENTS_SUFFIX
from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError, counted, shortened
from pilekit.tokenize.files.formats import IDX_HEAD, ITEMS, MAGIC, VERSION
from pilekit.tokenize.files.token_documents import ROWS, SCHEMA, read_documents, token_rows

KIND = "token file"
"""The kind in the header that `tokenize_corpus` writes."""

MADE_BY = ("tokenizer", "special_tokens", "eod")
"""Settings in the header that decide how a stream uses the ids."""

_DTYPES = {code: name for name, code in ITEMS.items()}
_ENDS = ("_text_document", "")
"""Suffixes of a prefix before `.idx`."""


Mapped = tuple[str, int]
"""The path of a mapped file, and its size when it was mapped."""


class TokenFile(NearestNames):
    """The documents of a Megatron token file: `len(file)`, and the ids of document i as `file[i]`.

    prefix                    `tokens/pile`, `tokens/pile_text_document`, or the path of an `.idx`
    sequences_are_documents   ignore doc_idx, and count each sequence as a document

    `tokens` is the number of all ids, `dtype` their numpy dtype, `sequences` the number of sequences (a document may
    have several). `sizes` (int32), `pointers` and `doc_idx` (int64) are the fields of the index.

    Raises PilekitError for a file that is not there, and for an index that contradicts itself or the `.bin`; the
    message names the field.
    """

    def __init__(self, prefix: str | Path, *, sequences_are_documents: bool = False) -> None:
        self.path = _index_path(Path(prefix))
        self._stem = str(self.path).removesuffix(".idx")
        self._flat = sequences_are_documents
        try:
            str(self.path).encode()  # no header can hold another path
            self._open()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise PilekitError(f"{self.path}: cannot be read: {why}") from error

    def __len__(self) -> int:
        return self.sequences if self._flat else len(self.doc_idx) - 1

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        """The ids of a document: a view, or a copy if it spans several parts of the `.bin`."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path} has {len(self):,} documents, and no number {index:,}")
        self.check_sizes()
        begin, end = self._starts(np.arange(2) + index % len(self)).tolist()
        return self.ids(begin, end)

    def ids(self, begin: int, end: int) -> npt.NDArray[Any]:
        """The ids `begin` to `end` - 1 of the file: a view, or a copy if they span several parts of the `.bin`."""
        parts, firsts = self._parts
        first, last = begin * self.dtype.itemsize, end * self.dtype.itemsize
        part = bisect.bisect(firsts, first) - 1
        data = parts[part][first - firsts[part] : last - firsts[part]]
        while len(data) < last - first:  # The next part continues it.
            part += 1
            data = np.concatenate([data, parts[part][: last - first - len(data)]])
        ids: npt.NDArray[Any] = data.view(self.dtype)
        return ids if len(parts) == 1 or ids.flags.aligned else ids.copy()

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r}, {len(self):,} documents, {self.tokens:,} tokens, {self.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Otherwise all ids would be copied.
        return functools.partial(TokenFile, self.path, sequences_are_documents=self._flat), ()

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each document, int64 [documents]."""
        return self.lengths_of(0, len(self))

    def lengths_of(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Tokens of the documents `first` to `last` - 1, or to the end."""
        self.check_sizes()
        lengths: npt.NDArray[np.int64] = np.diff(self._starts(np.arange(first, min(last, len(self)) + 1)))
        return lengths

    def first_sequences(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The first sequence of each of these documents; for `len(file)`, the end."""
        return documents if self._flat else self.doc_idx[documents]

    @property
    def documents(self) -> pa.Table | None:
        """A row for each document: shard, number, subset, tokens, file. None if no such table is beside the file."""
        return None if self.table() is None else pa.Table.from_batches(self.rows(""), SCHEMA)

    def table(self) -> tuple[Path, int | None] | None:
        """The table of documents beside the file, if any, and the file's number in it."""
        tables = ((Path(f"{stem}{DOCUMENTS_SUFFIX}"), number) for stem, number in self._stems())
        return next((table for table in tables if table[0].exists()), None)

    def rows(self, name: str, *, by_table: bool = True) -> Iterator[pa.RecordBatch]:
        """The rows of `documents` in pieces; without a table, or not `by_table`, all are of the shard `name`.

        Raises PilekitError for a table that does not fit its file.
        """
        checked_rows, table = 0, self.table() if by_table else None
        try:
            for first in range(0, len(self), ROWS) if table is None else ():
                lengths = self.lengths_of(first, first + ROWS)
                numbers = np.arange(first, first + len(lengths))
                yield token_rows(name, numbers, np.zeros(len(lengths), np.int32), [UNLABELLED], lengths)
            for rows in () if table is None else read_documents(*table):
                if not rows.schema.equals(SCHEMA):
                    raise ValueError(f"its columns are not {', '.join(SCHEMA.names)} of the usual types")
                if not np.array_equal(rows["tokens"], self.lengths_of(checked_rows, checked_rows + len(rows))):
                    place = f"in the {counted(len(rows), 'row')} from {checked_rows:,}"
                    raise ValueError(f"its tokens are not those of the index, {place}")
                checked_rows += len(rows)
                yield rows
            if table is not None and checked_rows != len(self):
                raise ValueError(f"it has {counted(checked_rows)}, not {len(self):,}")
        except (ValueError, OSError, pa.ArrowException) as error:
            why = shortened(str(error).split("\n", 1)[0], 200)
            self._fail(f"its table of documents does not fit: {why}")

    @property
    def tokenizer(self) -> str | None:
        """The SHA-256 of the tokenizer.json that made the ids; None if it is not known."""
        return self.made_by.get("tokenizer")

    @property
    def made_by(self) -> dict[str, Any]:
        """The settings that made the ids (`MADE_BY`); empty if they are not known."""
        parameters = {} if (header := self.header) is None else header.parameters
        return {name: parameters.get(name) for name in MADE_BY} if "tokenizer" in parameters else {}

    @property
    def shards(self) -> dict[str, Any]:
        """The shards that were tokenized, with their fingerprints; empty without pilekit's header."""
        header = self.header
        return {} if header is None else header.results.get("shards", header.inputs)

    @property
    def header(self) -> Header | None:
        """The header that pilekit wrote beside the file, or None."""
        path = next((path for stem, _ in self._stems() if (path := Path(f"{stem}.json")).exists()), None)
        return None if path is None else read_header(path.parent, KIND, path.name)

    def bins(self) -> list[Path]:
        """The `.bin`, or its parts."""
        whole = Path(f"{self._stem}.bin")
        if whole.exists():
            return [whole]
        name = re.compile(re.escape(Path(self._stem).name) + r"-(\d{5})-of-(\d{5})\.bin")
        matches = [match for match in map(name.fullmatch, sorted(os.listdir(self.path.parent))) if match]  # noqa: PTH208
        if not matches:
            self._fail(f"{whole} is not there", "put it beside the index")
        last = int(matches[-1][2])  # 83 parts end with 00082-of-00082.
        if [int(match[1]) for match in matches] != list(range(last + 1)):
            self._fail(f"its .bin has {last + 1} parts, but {len(matches)} are there", "put the others beside them")
        return [self.path.with_name(match.string) for match in matches]

    def check_ids(self, vocabulary: int, advance: Callable[[int], None] = lambda size: None) -> None:
        """Raise PilekitError for an id outside a vocabulary of this size; `advance` receives the bytes done."""
        for begin in range(0, self.tokens, ROWS):
            self.check_sizes()
            ids = self.ids(begin, min(begin + ROWS, self.tokens))
            wrong = np.flatnonzero((ids < 0) | (ids >= vocabulary))
            if len(wrong):
                place = f"token {begin + int(wrong[0]):,}"
                self._fail(f"has the id {ids[wrong[0]]:,} at {place}, but the vocabulary has {vocabulary:,}")
            advance(ids.nbytes)

    def _open(self) -> None:
        """Map the index and check it."""
        with self.path.open("rb") as file:
            head = file.read(IDX_HEAD.size)
        self._check("magic", head[: len(MAGIC)], MAGIC)
        if len(head) < IDX_HEAD.size:
            self._fail(f"is cut off: it has {len(head)} bytes")
        _, version, code, self.sequences, length = IDX_HEAD.unpack(head)
        self._check("version", version, VERSION)
        if code not in _DTYPES:
            self._fail(f"dtype has the code {code}; ids are 8 (uint16) or 4 (int32)")
        self.dtype = np.dtype(_DTYPES[code]).newbyteorder("<")
        counts = f"its size with {self.sequences:,} sequences and {length:,} entries of doc_idx"
        self._check(counts, self.path.stat().st_size, IDX_HEAD.size + 12 * self.sequences + 8 * length)
        self.mapped: list[Mapped] = []
        fields = self._map(self.path)[IDX_HEAD.size :]
        sizes, pointers, doc_idx = np.split(fields, [4 * self.sequences, 12 * self.sequences])
        self.sizes, self.pointers, self.doc_idx = sizes.view("<i4"), pointers.view("<i8"), doc_idx.view("<i8")
        self.tokens = 0
        for begin in range(0, self.sequences, ROWS):
            sizes, pointers = self.sizes[begin : begin + ROWS], self.pointers[begin : begin + ROWS]
            if sizes.min() < 0:
                self._fail(f"sizes has {sizes.min()} at {begin + int(sizes.argmin()):,}")
            ends = self.tokens + np.cumsum(sizes, dtype=np.int64)
            expected = (ends - sizes) * self.dtype.itemsize
            for wrong in np.flatnonzero(pointers != expected)[:1].tolist():
                self._check(f"pointers at {begin + wrong:,}", pointers[wrong], expected[wrong])
            self.tokens = int(ends[-1])
        if not self._flat:
            remedy = "if each sequence is a document, `pilekit merge --sequences-are-documents` mends it"
            edges = self.doc_idx[[0, -1]].tolist() if length else []
            self._check("doc_idx from and to", edges, [0, self.sequences], remedy)
            for begin in range(0, length, ROWS):
                falls = np.flatnonzero(np.diff(self.doc_idx[begin : begin + ROWS + 1]) < 0)
                if len(falls):
                    self._fail(f"doc_idx falls behind {begin + int(falls[0]):,}")
        size = sum(path.stat().st_size for path in self.bins())
        self._check("the size of its .bin", size, self.tokens * self.dtype.itemsize)

    def _check(self, field: str, value: object, expected: object, remedy: str = "write it again") -> None:
        if value != expected:
            self._fail(f"{field} is {value}, not {expected}", remedy)

    @functools.cached_property
    def _parts(self) -> tuple[list[npt.NDArray[np.uint8]], list[int]]:
        """The bytes of each part of the `.bin`, and their number before it. A part may end inside an id."""
        parts = [self._map(path) for path in self.bins() if path.stat().st_size] or [np.zeros(0, np.uint8)]
        self._check("the size of its .bin", sum(map(len, parts)), self.tokens * self.dtype.itemsize)
        return parts, [0, *itertools.accumulate(map(len, parts[:-1]))]

    @functools.cached_property
    def part_ids(self) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.int64]]:
        """The whole ids in each part of the `.bin`, as views, and the number in the file of the first of each."""
        views: list[npt.NDArray[Any]] = []
        firsts, size = [], self.dtype.itemsize
        for data, before in zip(*self._parts, strict=True):
            begin = min(-before % size, len(data))  # An id that the part before it begins ends there.
            views.append(data[begin : begin + (len(data) - begin) // size * size].view(self.dtype))
            firsts.append(-(-before // size))
        return views, np.array(firsts)

    def _map(self, path: Path) -> npt.NDArray[np.uint8]:
        # Neither `mmap`, which holds a descriptor for each file, nor a memmap, whose slicing takes ten times as long.
        with pa.memory_map(os.fsencode(path)) as file:
            self.mapped.append((str(path), file.size()))
            return np.frombuffer(file.read_buffer(), np.uint8)

    def check_sizes(self) -> None:
        """Raise PilekitError if a mapped file became shorter."""
        check_sizes(self.mapped)

    def _starts(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The first token of each of these documents; for the number of all documents, the end."""
        sequences = self.first_sequences(documents)
        starts = np.full(len(sequences), self.tokens, np.int64)
        inside = np.flatnonzero(sequences < self.sequences)
        starts[inside] = self.pointers[sequences[inside]] // self.dtype.itemsize
        return starts

    def _stems(self) -> Iterator[tuple[str, int | None]]:
        """The possible beginnings of the names of header and table, each with the number of this file in the table."""
        yield self._stem, None
        # `X-00003_text_document`: one of several files of an output
        if match := re.fullmatch(r"(.*)-(\d{5})(_text_document)", self._stem, re.DOTALL):
            yield match[1] + match[3], int(match[2])

    def _fail(self, problem: str, remedy: str = "write it again") -> NoReturn:
        raise PilekitError(f"{self.path}: {problem}; {remedy}")


def check_sizes(mapped: Iterable[Mapped]) -> None:
    """Raise PilekitError if a mapped file became shorter: reading past its end would end this process (SIGBUS)."""
    for path, size in mapped:
        try:
            now = os.stat(path).st_size  # noqa: PTH116 (quicker, for each unit)
        except FileNotFoundError:  # A file that was removed stays mapped.
            continue
        if now < size:
            raise PilekitError(f"{path}: was changed while it was read; run again")


def index_paths(prefix: str | Path) -> list[Path]:
    """The indexes of all files of the output at `prefix`, in their order, if any. PilekitError if some are missing."""
    path = Path(prefix)
    if path.suffix == ".idx":
        return [path]
    whole = next((index for end in _ENDS if (index := Path(f"{path}{end}.idx")).exists()), None)
    if whole is not None:
        return [whole]
    for stem in (path.name, path.name.removesuffix("_text_document")):
        if paths := sorted(path.parent.glob(f"{glob.escape(stem)}-{'[0-9]' * 5}_text_document.idx")):
            break
    header = f"{stem}_text_document.json"
    names = [f"{stem}-{number:05}_text_document.idx" for number in range(len(paths))]
    if paths and (path.parent / header).exists():
        names = [*read_header(path.parent, KIND, header).results.get("files", names)]
    for missing in (path.parent / name for name in names if name.endswith(".idx")):
        if not missing.exists():
            raise PilekitError(f"{missing}: is not there; put it beside the other files, or name each .idx")
    return paths


def _index_path(prefix: Path) -> Path:
    paths = index_paths(prefix)
    if len(paths) > 1:
        raise PilekitError(f"{prefix}: has {len(paths)} token files; name one, such as {paths[0]}")
    if not paths:
        shown = " or ".join(f"{prefix}{end}.idx" for end in _ENDS)
        raise PilekitError(f"{prefix}: there is no token file {shown}")
    return paths[0]
