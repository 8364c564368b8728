"""`TokenFile`: a checked view of a `.bin` and its `.idx`, whoever wrote them.

Opening reads the index once, in pieces, and the size of the `.bin`, but no id. Ids are views of the mapped file. A
`.bin` in parts (`X-00000-of-00082.bin` beside `X.idx`, as Pythia publishes) is read as one file.
"""

from __future__ import annotations

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
"""The kind in the header of what `tokenize_corpus` writes."""

_DTYPES = {code: name for name, code in ITEMS.items()}
_PIECE = 1 << 20


class TokenFile:
    """The documents of a Megatron token file: `len(file)`, and the ids of document i as `file[i]`.

    prefix   `tokens/pile`, `tokens/pile_text_document`, or the path of an `.idx`

    `tokens` is the number of all ids, `dtype` their numpy dtype, `sequences` the number of sequences (a document may
    have several). PilekitError for a file that is not there, and for an index that contradicts itself or the `.bin`,
    with the field.
    """

    dtype: np.dtype[Any]
    tokens: int
    sequences: int

    def __init__(self, prefix: str | Path) -> None:
        self.path = _index_path(Path(prefix))
        try:
            self._open()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise PilekitError(f"{visible(str(self.path))}: cannot be read: {why}") from error

    def __len__(self) -> int:
        return len(self._doc_idx) - 1

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        """The ids of a document: a view, or a copy where it goes from one part of the `.bin` to the next."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path} has {len(self):,} documents, and no number {index:,}")
        first, last = (int(self._start(int(at))) for at in self._doc_idx[index % len(self) :][:2])
        begins = [0, *np.cumsum([len(part) for part in self._parts]).tolist()]
        pieces = [
            part[max(first - begin, 0) : max(last - begin, 0)]
            for begin, part in zip(begins, self._parts, strict=False)
            if begin < last and begin + len(part) > first
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, self.dtype), *pieces])

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r}, {len(self):,} documents, {self.tokens:,} tokens, {self.dtype})"

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each document, int64 [documents]."""
        ends = np.append(0, np.cumsum(self._sizes, dtype=np.int64))
        lengths: npt.NDArray[np.int64] = ends[self._doc_idx[1:]] - ends[self._doc_idx[:-1]]
        return lengths

    @property
    def documents(self) -> pa.Table | None:
        """A row for each document: shard, number, subset, tokens, file. None if no such table is beside the file."""
        import pyarrow.parquet as pq

        path, numbered = Path(f"{self._stem}{DOCUMENTS_SUFFIX}"), self._numbered()
        if path.exists():
            return pq.read_table(path)
        if numbered is not None and (path := Path(f"{numbered[0]}{DOCUMENTS_SUFFIX}")).exists():
            return pq.read_table(path, filters=[("file", "=", numbered[1])])
        return None

    @property
    def tokenizer(self) -> str | None:
        """The SHA-256 of the tokenizer.json that made the ids; None without pilekit's header."""
        header = self.header
        return None if header is None else str(header.parameters.get("tokenizer"))

    @property
    def header(self) -> Header | None:
        """What pilekit wrote beside the file, or None."""
        numbered = self._numbered()
        for stem in (self._stem, *([] if numbered is None else [numbered[0]])):
            if Path(f"{stem}.json").exists():
                path = Path(f"{stem}.json")
                return read_header(path.parent, KIND, path.name)
        return None

    def check_ids(self, vocabulary: int, advance: Callable[[int], None] = lambda size: None) -> None:
        """Raise PilekitError for an id that a vocabulary of this size has not; `advance` gets the bytes done."""
        done = 0
        for part in self._parts:
            for begin in range(0, len(part), _PIECE):
                ids = part[begin : begin + _PIECE]
                wrong = np.flatnonzero((ids < 0) | (ids >= vocabulary))
                if len(wrong):
                    place = f"token {done + begin + int(wrong[0]):,}"
                    self._fail(f"has the id {ids[wrong[0]]:,} at {place}, but the vocabulary has {vocabulary:,}")
                advance(ids.nbytes)
            done += len(part)

    @property
    def _stem(self) -> str:
        return str(self.path).removesuffix(".idx")

    def _numbered(self) -> tuple[str, int] | None:
        """For `X-00003_text_document`, a file of several: (`X_text_document`, 3)."""
        match = re.fullmatch(r"(.*)-(\d{5})(_text_document)", self._stem, re.DOTALL)
        return None if match is None else (match[1] + match[3], int(match[2]))

    def _open(self) -> None:
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
        mapped = np.memmap(self.path, np.uint8, "r")
        at = IDX_HEAD.size + np.cumsum([0, 4 * self.sequences, 8 * self.sequences, 8 * length])
        self._sizes = mapped[at[0] : at[1]].view("<i4")
        self._pointers = mapped[at[1] : at[2]].view("<i8")
        self._doc_idx = mapped[at[2] : at[3]].view("<i8")
        self._check()
        self._parts = [np.memmap(path, self.dtype, "r") for path in self._bins() if path.stat().st_size]

    def _check(self) -> None:
        """Compare sizes, pointers, doc_idx and the `.bin` with each other."""
        self.tokens = 0
        for begin in range(0, self.sequences, _PIECE):
            sizes = self._sizes[begin : begin + _PIECE]
            if sizes.min() < 0:
                self._fail(f"sizes has {sizes.min()} at {begin + int(sizes.argmin()):,}")
            ends = self.tokens + np.cumsum(sizes, dtype=np.int64)
            wrong = np.flatnonzero(self._pointers[begin : begin + _PIECE] != (ends - sizes) * self.dtype.itemsize)
            if len(wrong):
                there, here = self._pointers[begin + wrong[0]], int((ends - sizes)[wrong[0]]) * self.dtype.itemsize
                self._fail(
                    f"pointers has {there:,} at {begin + int(wrong[0]):,}, but the sizes before come to {here:,}"
                )
            self.tokens = int(ends[-1])
        doc_idx = self._doc_idx
        if not len(doc_idx) or doc_idx[0] != 0 or doc_idx[-1] != self.sequences:
            told = f"{doc_idx[0]:,} to {doc_idx[-1]:,}" if len(doc_idx) else "nothing"
            self._fail(f"doc_idx goes from {told}, not from 0 to the number of sequences, {self.sequences:,}")
        for begin in range(0, len(doc_idx) - 1, _PIECE):
            falls = np.flatnonzero(np.diff(doc_idx[begin : begin + _PIECE + 1]) < 0)
            if len(falls):
                self._fail(f"doc_idx falls behind {begin + int(falls[0]):,}")
        bins = self._bins()
        size = sum(path.stat().st_size for path in bins)
        if size != self.tokens * self.dtype.itemsize:
            self._fail(f"sizes come to {self.tokens * self.dtype.itemsize:,} bytes, but {_shown(bins)} has {size:,}")

    def _bins(self) -> list[Path]:
        whole = Path(f"{self._stem}.bin")
        if whole.exists():
            return [whole]
        name = re.compile(re.escape(Path(self._stem).name) + r"-(\d{5})-of-(\d{5})\.bin")
        found = sorted(match.string for match in map(name.fullmatch, os.listdir(self.path.parent)) if match)  # noqa: PTH208
        if not found:
            self._fail(f"{visible(str(whole))} is not there")
        last = int(found[-1][-9:-4])
        if [int(one[-18:-13]) for one in found] != list(range(last + 1)):
            self._fail(f"its .bin has {last + 1} parts, but {len(found)} are there")
        return [self.path.with_name(one) for one in found]

    def _start(self, sequence: int) -> int:
        """The first token of a sequence, or the end."""
        return self.tokens if sequence == self.sequences else int(self._pointers[sequence]) // self.dtype.itemsize

    def _fail(self, what: str) -> NoReturn:
        raise PilekitError(f"{visible(str(self.path))}: {what}; write it again")


def _index_path(prefix: Path) -> Path:
    if prefix.suffix == ".idx":
        return prefix
    paths = [Path(f"{prefix}{end}.idx") for end in ("_text_document", "")]
    for path in paths:
        if path.exists():
            return path
    raise PilekitError(f"{visible(str(prefix))}: there is no token file {' or '.join(visible(str(p)) for p in paths)}")


def _shown(paths: list[Path]) -> str:
    return visible(paths[0].name) + (f" with its {len(paths)} parts" if len(paths) > 1 else "")
