"""The formats of token files, byte by byte; all little-endian.

Every format has the same ids, raw and one document after another. Only the other files differ:

    megatron   .idx             "MMIDIDX\\0\\0", u64 version 1, u8 code of the item, u64 sequences N, u64 length of
                                doc_idx; int32 sizes [N], int64 byte offsets [N], int64 first sequence of each
                                document and N
    npy        .csv.gz          a line per document: start, end, id, shard, line from 1; places in tokens
    ds         .ds.index        uint64 end of each document, in tokens
               .ds.metadata     tokenizer|item bytes, number of tokens, the same for people
    llmc       in the file      256 int32 in front of the ids: magic, version, number of tokens, zeros
    parquet    instead          `input_ids`, `shard`, `number`, `subset`; row groups of about 4 MiB of ids

Indexes are written in pieces from the table of documents, so memory does not grow with the corpus.
"""

from __future__ import annotations

import csv
import gzip
import io
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.errors import PilekitError, shortened
from pilekit.tokenize.files.token_documents import SCHEMA

Format = Literal["megatron", "npy", "ds", "llmc", "parquet"]
LIMITS: dict[Format, int | None] = {"megatron": None, "npy": 2**29, "ds": 2**29, "llmc": 10**8, "parquet": 2**29}
"""Tokens in a file by default."""

ENDED_BY_EOD = ("npy", "ds", "llmc")
"""Formats whose readers find documents by EOD."""

_ENDS = {
    "megatron": ("_text_document.bin", "_text_document.idx"),
    "npy": (".npy", ".csv.gz"),
    "ds": (".ds", ".ds.index", ".ds.metadata"),
    "llmc": (".bin",),
    "parquet": (".parquet",),
}
"""The ends of the names of an output's files, the ids first."""

MAGIC, VERSION = b"MMIDIDX\0\0", 1
IDX_HEAD = struct.Struct("<9sQBQQ")
ITEMS = {"uint16": 8, "int32": 4}
"""The items of ids and their codes in an `.idx`."""

_LLMC_HEAD = 256 * 4
_LLMC = {"uint16": (20240520, 1), "int32": (20240801, 7)}
_ROW_GROUP_BYTES = 4 << 20
_PIECE = 1 << 18

Lengths = Iterable[npt.NDArray[np.integer]]
"""The tokens of each document, in pieces."""

Rows = Callable[[], Iterator[pa.RecordBatch]]
"""Gives the rows of a file's documents in the table of documents, in pieces."""


@dataclass(frozen=True)
class TokenFiles:
    """The names of one output's files, and their item.

    prefix   the path the user typed
    limit    most tokens in a file; None: there is one file
    dtype    "uint16" or "int32"
    """

    prefix: Path
    format: Format
    limit: int | None
    dtype: str

    @property
    def stem(self) -> str:
        """The beginning of the names of the header and of the table of documents."""
        return self.prefix.name + "_text_document" * (self.format == "megatron")

    @property
    def item(self) -> int:
        """Bytes of an id."""
        return np.dtype(self.dtype).itemsize

    @property
    def reader_dtype(self) -> str:
        """The type readers use for ids."""
        return "uint32" if self.dtype == "int32" and self.format in ENDED_BY_EOD else self.dtype

    @property
    def head(self) -> int:
        """Bytes in front of the ids."""
        return _LLMC_HEAD if self.format == "llmc" else 0

    def names(self, file: int) -> tuple[str, ...]:
        """All files of this number, the ids first."""
        number = f"_{file:06}" if self.format == "llmc" else "" if self.limit is None else f"-{file:05}"
        return tuple(f"{self.prefix.name}{number}{end}" for end in _ENDS[self.format])

    def raw(self, file: int) -> str:
        """The file of raw ids while it grows; a Parquet file is made from it."""
        return f"{self.names(file)[0]}.ids" if self.format == "parquet" else self.names(file)[0]


def token_files(prefix: str | Path, format: Format, limit: int | None, dtype: str) -> TokenFiles:
    """The files at `prefix`; PilekitError for an invalid prefix, and for an impossible format or limit."""
    if format not in LIMITS:
        raise PilekitError(f"format is one of {', '.join(LIMITS)}, not {shortened(repr(format), 80)}")
    path = check_prefix(prefix)
    limit = LIMITS[format] if limit is None else limit
    most = 31 if format == "llmc" else 62
    if limit is not None and not 1 <= limit < 2**most:
        raise PilekitError(f"a {format} file holds at least 1 token and less than 2^{most}, not {limit:,}")
    return TokenFiles(path, format, limit, dtype)


def check_prefix(prefix: str | Path) -> Path:
    """The path of a prefix; PilekitError for a folder, a name that ends in a slash, or one that no header can hold."""
    path = Path(prefix)
    if str(prefix).endswith("/") or path.name in ("", "..") or path.is_dir():
        raise PilekitError(f"{prefix} is a folder; name a prefix in it, such as tokens/pile")
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise PilekitError(f"{prefix}: its name is not valid UTF-8; name another prefix") from None
    return path


def write_idx(
    file: BinaryIO, dtype: str, sizes: Callable[[], Lengths], sequences: int, doc_idx: Lengths, documents: int
) -> None:
    """Write an `.idx` of these numbers of sequences and documents; calls `sizes` twice."""
    item = np.dtype(dtype).itemsize
    file.write(IDX_HEAD.pack(MAGIC, VERSION, ITEMS[dtype], sequences, documents + 1))
    file.writelines(piece.astype("<i4").tobytes() for piece in sizes())
    file.writelines(((ends - piece) * item).astype("<i8").tobytes() for piece, ends in _ends(sizes()))
    file.writelines(piece.astype("<i8").tobytes() for piece in doc_idx)


def finish_file(files: TokenFiles, folder: Path, file: int, rows: Rows, tokenizer: str) -> None:
    """Write the files beside the ids of file number `file` in `folder`, or its Parquet file; all its ids are there.

    rows        gives the rows of its documents
    tokenizer   the name that `.ds.metadata` holds
    """
    raw, paths = folder / files.raw(file), [folder / name for name in files.names(file)]
    tokens = (raw.stat().st_size - files.head) // files.item

    def lengths() -> Lengths:
        return (batch["tokens"].to_numpy() for batch in rows())

    if files.format == "llmc":
        with raw.open("rb+") as file_of_ids:
            file_of_ids.write(np.array([*_LLMC[files.dtype], tokens], "<i4").tobytes())
    elif files.format == "megatron":
        documents = sum(map(len, lengths()))
        firsts = (np.arange(at, min(at + _PIECE, documents + 1)) for at in range(0, documents + 1, _PIECE))
        with write_atomically(paths[1]) as out:
            write_idx(out, files.dtype, lengths, documents, firsts, documents)
    elif files.format == "ds":
        from pilekit.display.fitted_table import rounded_bytes  # here, because it imports rich

        with write_atomically(paths[1]) as out:
            out.writelines(ends.astype("<u8").tobytes() for _, ends in _ends(lengths()))
        with write_atomically(paths[2]) as out:
            out.write(f"{tokenizer}|{files.item}\n{tokens}\n{rounded_bytes(tokens, 'T')}".encode())
    elif files.format == "npy":
        with write_atomically(paths[1]) as out:
            _write_csv(out, rows())
    else:
        with write_atomically(paths[0]) as out, raw.open("rb") as ids:
            _write_parquet(out, ids, files.dtype, rows())


def _ends(lengths: Lengths) -> Iterator[tuple[npt.NDArray[np.integer], npt.NDArray[np.int64]]]:
    """(lengths, ends in tokens) of the documents, in pieces."""
    end = 0
    for piece in lengths:
        ends = end + np.cumsum(piece, dtype=np.int64)
        end = int(ends[-1]) if len(ends) else end
        yield piece, ends


def _write_csv(out: BinaryIO, rows: Iterable[pa.RecordBatch]) -> None:
    # Neither a name nor a time in gzip's header: the same documents give the same bytes.
    with gzip.GzipFile("", "wb", 6, out, 0) as packed, io.TextIOWrapper(packed, "utf-8", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        begin = 0
        for batch in rows:
            columns = (batch[name].to_pylist() for name in ("tokens", "shard", "number"))
            for length, shard, number in zip(*columns, strict=True):
                writer.writerow([begin, begin + length, f"{shard}:{number}", shard, number + 1])
                begin += length


def _write_parquet(out: BinaryIO, ids: BinaryIO, dtype: str, rows: Iterable[pa.RecordBatch]) -> None:
    names, item = ["shard", "number", "subset"], np.dtype(dtype).newbyteorder("<")
    schema = pa.schema([("input_ids", pa.list_(pa.from_numpy_dtype(item))), *map(SCHEMA.field, names)])
    options = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": ["shard", "subset"]}
    with pq.ParquetWriter(out, schema, **options) as writer:
        for batch in rows:
            ends = np.cumsum(batch["tokens"].to_numpy(), dtype=np.int64)
            first = before = 0
            while first < len(ends):
                last = int(np.searchsorted(ends, before + _ROW_GROUP_BYTES // item.itemsize)) + 1
                last = min(last, len(ends))
                offsets = np.append(0, ends[first:last] - before).astype(np.int32)
                values = pa.array(np.fromfile(ids, item, int(offsets[-1])))
                group = [batch[name].slice(first, last - first) for name in names]
                lists = pa.ListArray.from_arrays(pa.array(offsets), values)
                writer.write_batch(pa.RecordBatch.from_arrays([lists, *group], schema=schema))
                first, before = last, int(ends[last - 1])
