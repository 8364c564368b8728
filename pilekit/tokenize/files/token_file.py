"""`TokenFile`: a checked view of a `.bin` and its `.idx`, whoever wrote them.

Opening reads the index once, in pieces, and compares its fields with each other and with the size of the `.bin`. No id
is read. Files are mapped when a document is asked for, and ids are views of the mapped `.bin`. A `.bin` in parts
(`X-00000-of-00082.bin` beside `X.idx`, as Pythia publishes) is read as one file.
"""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.header import Header, read_header
from pilekit.corpus.sidecar_files import DOCUMENTS_SUFFIX
from pilekit.errors import PilekitError, visible
from pilekit.tokenize.files.formats import IDX_HEAD, ITEMS, MAGIC, VERSION

if TYPE_CHECKING:
    import pyarrow as pa

KIND = "token file"
"""The kind in the header that `tokenize_corpus` writes."""

_DTYPES = {code: name for name, code in ITEMS.items()}
_FIELDS = {"sizes": "<i4", "pointers": "<i8", "doc_idx": "<i8"}
"""The fields after the head of an index, in this order."""
_PIECE = 1 << 20
_ENDS = ("_text_document", "")
"""Suffixes of a prefix before `.idx`."""


class TokenFile:
    """The documents of a Megatron token file: `len(file)`, and the ids of document i as `file[i]`.

    prefix                    `tokens/pile`, `tokens/pile_text_document`, or the path of an `.idx`
    sequences_are_documents   ignore doc_idx, and count each sequence as a document

    `tokens` is the number of all ids, `dtype` their numpy dtype, `sequences` the number of sequences (a document may
    have several). Raises PilekitError for a file that is not there, and for an index that contradicts itself or the
    `.bin`; the message names the field.
    """

    dtype: np.dtype[Any]
    tokens: int
    sequences: int

    def __init__(self, prefix: str | Path, *, sequences_are_documents: bool = False) -> None:
        self.path = _index_path(Path(prefix))
        self._flat = sequences_are_documents
        try:
            self._open()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise PilekitError(f"{visible(str(self.path))}: cannot be read: {why}") from error

    def __len__(self) -> int:
        return self.sequences if self._flat else self._counts["doc_idx"] - 1

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        """The ids of a document: a view, or a copy if it spans several parts of the `.bin`."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path} has {len(self):,} documents, and no number {index:,}")
        return self.take(np.array([index % len(self)]))[0]

    def take(self, documents: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
        """The ids of these documents, each as `file[i]` gives it."""
        begins, ends = self._starts(documents), self._starts(documents + 1)
        parts, firsts = self._parts
        part_of = np.minimum(np.searchsorted(firsts, begins, side="right"), len(parts)) - 1
        begins, ends = begins - firsts[part_of], ends - firsts[part_of]
        found = []
        for begin, end, part in zip(begins.tolist(), ends.tolist(), part_of.tolist(), strict=True):
            ids, following = parts[part][begin:end], part + 1
            while len(ids) < end - begin:  # The document continues in the next part.
                ids = np.concatenate([ids, parts[following][: end - begin - len(ids)]])
                following += 1
            found.append(ids)
        return found

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
        sequences = self.first_sequences(first, min(last, len(self)) + 1)
        if len(sequences) < 2:
            return np.zeros(0, np.int64)
        ends = np.cumsum(self.sizes(sequences[0], sequences[-1]), dtype=np.int64)
        lengths: npt.NDArray[np.int64] = np.diff(np.append(0, ends)[sequences - sequences[0]])
        return lengths

    def first_sequences(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """doc_idx: the first sequence of each of the documents `first` to `last` - 1; for `len(file)`, the end."""
        return np.arange(first, last) if self._flat else self._read("doc_idx", first, last)

    def sizes(self, first: int, last: int) -> npt.NDArray[np.int32]:
        """Tokens of the sequences `first` to `last` - 1."""
        sizes: npt.NDArray[np.int32] = self._read("sizes", first, last)
        return sizes

    @property
    def documents(self) -> pa.Table | None:
        """A row for each document: shard, number, subset, tokens, file. None if no such table is beside the file."""
        import pyarrow as pa

        batches = self.document_batches()
        return None if batches is None else pa.Table.from_batches(batches)

    def document_batches(self) -> Iterator[pa.RecordBatch] | None:
        """The rows of `documents` in pieces, so that they need little memory."""
        import pyarrow.dataset as ds

        path, numbered = Path(f"{self._stem}{DOCUMENTS_SUFFIX}"), self._numbered()
        rows_of_file = None
        if numbered is not None and not path.exists():  # One table for all files of the output.
            rows_of_file = ds.field("file") == numbered[1]
            path = Path(f"{numbered[0]}{DOCUMENTS_SUFFIX}")
        if not path.exists():
            return None
        checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        table = ds.dataset(path, format=ds.ParquetFileFormat(default_fragment_scan_options=checked))
        batches: Iterator[pa.RecordBatch] = table.to_batches(filter=rows_of_file, use_threads=False)
        return batches

    @property
    def tokenizer(self) -> str | None:
        """The SHA-256 of the tokenizer.json that made the ids; None without pilekit's header."""
        header = self.header
        return None if header is None else header.parameters.get("tokenizer")

    @property
    def shards(self) -> dict[str, Any]:
        """The shards that were tokenized, with their fingerprints; empty without pilekit's header."""
        header = self.header
        return {} if header is None else header.results.get("shards", header.inputs)

    @property
    def header(self) -> Header | None:
        """The header that pilekit wrote beside the file, or None."""
        numbered = self._numbered()
        for stem in (self._stem, *([] if numbered is None else [numbered[0]])):
            if Path(f"{stem}.json").exists():
                path = Path(f"{stem}.json")
                return read_header(path.parent, KIND, path.name)
        return None

    def bins(self) -> list[Path]:
        """The `.bin`, or its parts."""
        whole = Path(f"{self._stem}.bin")
        if whole.exists():
            return [whole]
        name = re.compile(re.escape(Path(self._stem).name) + r"-(\d{5})-of-(\d{5})\.bin")
        matches = [match for match in map(name.fullmatch, sorted(os.listdir(self.path.parent))) if match]  # noqa: PTH208
        if not matches:
            self._fail(f"{visible(str(whole))} is not there", "put it beside the index")
        last = int(matches[-1][2])  # 83 parts end with 00082-of-00082.
        if [int(match[1]) for match in matches] != list(range(last + 1)):
            self._fail(f"its .bin has {last + 1} parts, but {len(matches)} are there", "put the others beside them")
        return [self.path.with_name(match.string) for match in matches]

    def check_ids(self, vocabulary: int, advance: Callable[[int], None] = lambda size: None) -> None:
        """Raise PilekitError for an id outside a vocabulary of this size; `advance` receives the bytes done."""
        done = 0
        for part in self._parts[0]:
            for begin in range(0, len(part), _PIECE):
                ids = part[begin : begin + _PIECE]
                wrong = np.flatnonzero((ids < 0) | (ids >= vocabulary))
                if len(wrong):
                    place = f"token {done + begin + int(wrong[0]):,}"
                    self._fail(f"has the id {ids[wrong[0]]:,} at {place}, but the vocabulary has {vocabulary:,}")
                advance(ids.nbytes)
            done += len(part)

    def _open(self) -> None:
        """Read and check the head of the index, then the rest."""
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            head = file.read(IDX_HEAD.size)
        if not head.startswith(MAGIC):
            self._fail(f"magic is {head[:9]!r}, not {MAGIC!r}")
        if len(head) < IDX_HEAD.size:
            self._fail(f"is cut off: it has {size:,} bytes")
        _, version, code, self.sequences, length = IDX_HEAD.unpack(head)
        if version != VERSION:
            self._fail(f"version is {version}, not {VERSION}")
        if code not in _DTYPES:
            self._fail(
                f"dtype has the code {code}; ids are {' or '.join(f'{one} ({_DTYPES[one]})' for one in _DTYPES)}"
            )
        self.dtype = np.dtype(_DTYPES[code]).newbyteorder("<")
        wanted = IDX_HEAD.size + 12 * self.sequences + 8 * length
        if size != wanted:
            why = f"{self.sequences:,} sequences and {length:,} entries of doc_idx take {wanted:,} bytes"
            self._fail(f"has {size:,} bytes, but {why}")
        self._counts = {"sizes": self.sequences, "pointers": self.sequences, "doc_idx": length}
        pointers = IDX_HEAD.size + 4 * self.sequences
        self._begins = {"sizes": IDX_HEAD.size, "pointers": pointers, "doc_idx": pointers + 8 * self.sequences}
        self._check()

    def _check(self) -> None:
        """Compare sizes, pointers, doc_idx and the `.bin` with each other."""
        self.tokens = 0
        for begin in range(0, self.sequences, _PIECE):
            sizes, pointers = (self._read(name, begin, begin + _PIECE) for name in ("sizes", "pointers"))
            if sizes.min() < 0:
                self._fail(f"sizes has {sizes.min()} at {begin + int(sizes.argmin()):,}")
            ends = self.tokens + np.cumsum(sizes, dtype=np.int64)
            expected = (ends - sizes) * self.dtype.itemsize
            wrong = np.flatnonzero(pointers != expected)
            if len(wrong):
                first = int(wrong[0])
                there = f"pointers has {pointers[first]:,} at {begin + first:,}"
                self._fail(f"{there}, but the sizes before come to {expected[first]:,}")
            self.tokens = int(ends[-1])
        if not self._flat:
            self._check_doc_idx()
        bins = self.bins()
        size = sum(path.stat().st_size for path in bins)
        if size != self.tokens * self.dtype.itemsize:
            self._fail(f"sizes come to {self.tokens * self.dtype.itemsize:,} bytes, but {_shown(bins)} has {size:,}")

    def _check_doc_idx(self) -> None:
        """Check that it goes from 0 to the number of sequences, and never falls."""
        length, last = self._counts["doc_idx"], -1
        edges = [int(self._read("doc_idx", at, at + 1)[0]) for at in (0, length - 1) if length]
        if edges != [0, self.sequences]:
            span = f"{edges[0]:,} to {edges[1]:,}" if edges else "nothing"
            why = f"doc_idx goes from {span}, not from 0 to the number of sequences, {self.sequences:,}"
            self._fail(why, "if each sequence is a document, `pilekit merge --sequences-are-documents` mends it")
        for begin in range(0, length, _PIECE):
            piece = np.append(last, self._read("doc_idx", begin, begin + _PIECE))
            falls = np.flatnonzero(np.diff(piece) < 0)
            if len(falls):
                self._fail(f"doc_idx falls behind {begin + int(falls[0]) - 1:,}")
            last = int(piece[-1])

    def _read(self, name: str, first: int, last: int) -> npt.NDArray[Any]:
        """The entries `first` to `last` - 1 of a field of the index, or to its end."""
        dtype = np.dtype(_FIELDS[name])
        count = max(0, min(last, self._counts[name]) - first)
        return np.fromfile(self.path, dtype, count, offset=self._begins[name] + first * dtype.itemsize)

    @functools.cached_property
    def _mapped(self) -> dict[str, npt.NDArray[Any]]:
        """The fields of the index, as plain arrays on the mapped file: slicing a memmap takes ten times as long."""
        mapped = np.memmap(self.path, np.uint8, "r").view(np.ndarray)
        fields = {}
        for name, dtype in _FIELDS.items():
            size = self._counts[name] * np.dtype(dtype).itemsize
            fields[name] = mapped[self._begins[name] :][:size].view(dtype)
        return fields

    @functools.cached_property
    def _parts(self) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.int64]]:
        """The ids in each part of the `.bin`, and the number of tokens before each."""
        parts = [np.memmap(path, self.dtype, "r").view(np.ndarray) for path in self.bins() if path.stat().st_size]
        parts = parts or [np.zeros(0, self.dtype)]
        return parts, np.cumsum([0, *map(len, parts)], dtype=np.int64)

    def _starts(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The first token of each of these documents; for the number of all documents, the end."""
        sequences = documents if self._flat else self._mapped["doc_idx"][documents]
        starts = np.full(len(sequences), self.tokens, np.int64)
        inside = np.flatnonzero(sequences < self.sequences)
        starts[inside] = self._mapped["pointers"][sequences[inside]] // self.dtype.itemsize
        return starts

    @property
    def _stem(self) -> str:
        return str(self.path).removesuffix(".idx")

    def _numbered(self) -> tuple[str, int] | None:
        """For `X-00003_text_document`, one of several files of an output: (`X_text_document`, 3)."""
        match = re.fullmatch(r"(.*)-(\d{5})(_text_document)", self._stem, re.DOTALL)
        return None if match is None else (match[1] + match[3], int(match[2]))

    def _fail(self, what: str, remedy: str = "write it again") -> NoReturn:
        raise PilekitError(f"{visible(str(self.path))}: {what}; {remedy}")


def index_paths(prefix: str | Path) -> list[Path]:
    """The indexes of all files of the output at `prefix`, in their order; empty if there is none."""
    path = Path(prefix)
    if path.suffix == ".idx":
        return [path]
    whole = next((one for end in _ENDS if (one := Path(f"{path}{end}.idx")).exists()), None)
    numbered = f"{glob.escape(path.name)}-{'[0-9]' * 5}_text_document.idx"
    return [whole] if whole is not None else sorted(path.parent.glob(numbered))


def _index_path(prefix: Path) -> Path:
    found = index_paths(prefix)
    if len(found) > 1:
        raise PilekitError(
            f"{visible(str(prefix))}: has {len(found)} token files; name one, such as {visible(str(found[0]))}"
        )
    if not found:
        shown = " or ".join(visible(f"{prefix}{end}.idx") for end in _ENDS)
        raise PilekitError(f"{visible(str(prefix))}: there is no token file {shown}")
    return found[0]


def _shown(paths: list[Path]) -> str:
    return visible(paths[0].name) + (f" with its {len(paths)} parts" if len(paths) > 1 else "")
