"""The index of a shard: a Parquet file beside it, with a row for each document and the places to begin reading at.

The rows are `number`, `subset`, `text_bytes` and `text_hash` (xxh3_64 of the text in UTF-8), in the shard's order, so
polars and duckdb read an index as the table of documents it is. What concerns the whole shard lies in the file's
key-value metadata, which is read without touching the rows:

    pilekit          the `IndexHeader`, JSON
    pilekit.frames   `Frames`: four rows of little-endian int64, each as its differences, zstd, base64
    pilekit.sum      xxh3_64 of the two values above

An index is taken only where it fits: the shard's fingerprint and where its records keep text and label must be those
it was made from. The metadata has a sum, pages have checksums, and numbers that contradict each other are refused, so
that a damaged or made-up index is an error and never a wrong answer or a large allocation.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

from pilekit import __version__
from pilekit.corpus import Manifest, Shard
from pilekit.corpus.shard import STANDARD_INPUT, is_url, without_query
from pilekit.errors import PilekitError, visible
from pilekit.shards.cache_folder import cache_folder
from pilekit.shards.damage import LISTED_BAD_LINES, BadLine, SkippedLines
from pilekit.shards.fingerprint import Fingerprint, fingerprint
from pilekit.shards.opening import Storage, open_stored
from pilekit.shards.reading import record_format

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

logger = logging.getLogger(__name__)

INDEX_SUFFIX = ".index.parquet"
FORMAT = 1
MOST_FRAMES = 1 << 23
"""An index of more would take more memory than it saves; the whole Pile has 1.3 million frames of 1 MiB."""

HEADER_KEY, FRAMES_KEY, SUM_KEY = b"pilekit", b"pilekit.frames", b"pilekit.sum"
ROWS_PER_GROUP = 100_000

Int64 = npt.NDArray[np.int64]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


@dataclass(frozen=True, eq=False)
class Frames:
    """Where one may begin to read; int64 arrays, [frames].

    For zstd these are its frames; for a plain file marks about every MiB, at a line's beginning; for gzip the one
    beginning there is; for Parquet its row groups.

    offset        the stored byte where the frame begins; for Parquet the number of the row group
    text_offset   decompressed bytes before it; for Parquet as its metadata tells them
    line          number of the first line that begins in it or, if none does, of the next one that begins at all
    line_at       decompressed bytes of the frame before that line begins; the frame's size, if none does
    """

    offset: Int64
    text_offset: Int64
    line: Int64
    line_at: Int64

    def __len__(self) -> int:
        return len(self.offset)


class IndexHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What an index says of the whole shard; unknown fields, of a later pilekit of this format, are passed over."""

    format: int
    """Version of the index's own layout."""
    pilekit: str
    """Version of pilekit that made it."""
    storage: Storage
    text_field: str
    label_path: str
    size: Count
    """With `sample`, the fingerprint of the shard."""
    sample: str
    lines: Count
    """Bad and blank ones included; document numbers are below."""
    documents: Count
    text_bytes: Count
    """UTF-8 bytes of all texts."""
    content_bytes: Count
    """Decompressed bytes; for Parquet as its metadata tells them."""
    content_hash: str
    """xxh3_128 of the decompressed bytes in hexadecimal; "" for Parquet."""
    skipped: Count
    """Bad lines passed over."""
    examples: list[tuple[Count, str]]
    """The first of them: (line counted from 1, reason)."""


@dataclass(frozen=True)
class ShardIndex:
    """An index that was loaded: header and frames are in memory, rows are read when asked for.

    path    of the index itself
    built   whether it was made just now, by the call that gave it
    """

    path: str
    header: IndexHeader
    frames: Frames
    built: bool = field(default=False, compare=False)

    def columns(self, names: Sequence[str] | None = None) -> pa.Table:
        """The rows, or these columns of them; `PilekitError` if they are damaged."""
        import pyarrow as pa

        return pa.concat_tables([index_schema(names).empty_table(), *self.row_groups(names)])

    def row_groups(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The same in parts of at most 100,000 rows, so that memory stays bounded; each column is one chunk."""
        first = 0
        with _opened(self.path) as file:
            for group in range(file.metadata.num_row_groups):
                try:
                    table = file.read_row_group(group, columns=None if names is None else list(names))
                    table = table.unify_dictionaries().combine_chunks()
                    first = _check_rows(table, first, self.header.lines)
                except Exception as error:
                    raise _damaged(self.path, error) from error
                yield table


def load_index(path: str | Path) -> ShardIndex:
    """Load the index at a path or URL; `PilekitError` if it is not one, is damaged, or of a later format."""
    path = str(path)
    with _opened(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
        values = metadata.metadata or {}
        groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if not schema.equals(index_schema(), check_metadata=False):
        raise _no_index(path, "its columns are others")
    try:
        header_json, frames_text, told = (values[key] for key in (HEADER_KEY, FRAMES_KEY, SUM_KEY))
    except KeyError as error:
        raise _no_index(path, f'it has no "{error.args[0].decode()}" metadata') from None
    try:
        version = msgspec.json.decode(header_json, type=_Version).format
        if version != FORMAT:
            raise PilekitError(
                f"{visible(path)}: is an index of format {version}, this pilekit {__version__} reads format {FORMAT}; "
                "index the shard anew"
            )
        if told != checksum(header_json, frames_text):
            raise ValueError("its metadata does not match its sum")
        header = msgspec.json.decode(header_json, type=IndexHeader)
        frames = _decode_frames(frames_text)
        _check(header, frames, groups)
    except (msgspec.DecodeError, binascii.Error, zstandard.ZstdError, ValueError) as error:
        raise _damaged(path, error) from error
    return ShardIndex(path, header, frames)


class _Version(msgspec.Struct):
    format: int


def index_places(shard: Shard) -> list[str]:
    """Where the shard's index may lie: beside it, then in the cache folder; nowhere for standard input."""
    if shard.path == STANDARD_INPUT:
        return []
    remote = is_url(shard.path)
    plain = not remote or (without_query(shard.path) == shard.path and "::" not in shard.path)
    beside = [shard.path + INDEX_SUFFIX] if plain else []
    whole = shard.path if remote else os.path.abspath(shard.path)  # noqa: PTH100 (not resolved: as it was named)
    name = without_query(shard.path.partition("::")[0]).rpartition("/")[2]
    name = name if name not in ("", ".", "..") else "shard"
    folder = cache_folder() / "index" / xxhash.xxh3_128_hexdigest(whole.encode(errors="surrogateescape"))
    return [*beside, str(folder / (name + INDEX_SUFFIX))]


def find_index(shard: Shard, manifest: Manifest | None = None, *, tell: bool = True) -> ShardIndex | None:
    """The shard's index, if there is one that fits; if there are only others, warnings `tell` why each does not."""
    now: Fingerprint | None = None
    passed_over = []
    for place in index_places(shard):
        if not _exists(place):
            continue
        try:
            index = load_index(place)
        except PilekitError as error:
            passed_over.append(str(error))
            continue
        now = now or fingerprint(shard.path)
        why = misfit(index.header, now, manifest)
        if why is None:
            return index
        passed_over.append(f"{visible(place)}: {why}; make it anew with `pilekit index {visible(shard.path)}`")
    for why in passed_over if tell else ():
        logger.warning("index not used: %s", why)
    return None


def misfit(header: IndexHeader, now: Fingerprint, manifest: Manifest | None = None) -> str | None:
    """Why an index with this header must not be used for a shard of this fingerprint; None if it may."""
    format = record_format(manifest)
    label_path = ".".join(format.label_path)
    if header.size != now.size:
        return f"was made of a shard of {header.size:,} bytes, it has {now.size:,} now"
    if header.sample != now.sample:
        return "was made of a shard of the same size but other bytes"
    if header.text_field != format.text_field:
        return f'has text_field "{visible(header.text_field, 60)}", the manifest "{visible(format.text_field, 60)}"'
    if header.label_path != label_path:
        return f'has label_path "{visible(header.label_path, 60)}", the manifest "{visible(label_path, 60)}"'
    return None


def bad_lines(shard: Shard, index: ShardIndex) -> SkippedLines:
    """The bad lines that the shard's index left out, as reading with `on_error="skip"` tells of them."""
    listed = [BadLine(shard.path, line, visible(reason)) for line, reason in index.header.examples]
    return SkippedLines(index.header.skipped, listed)


def checksum(header: bytes, frames: bytes) -> bytes:
    """The value of `pilekit.sum`."""
    return xxhash.xxh3_64_hexdigest(header + b"\n" + frames).encode()


def index_metadata(header: IndexHeader, frames: Frames) -> dict[bytes, bytes]:
    """The key-value metadata of an index."""
    rows = np.stack([getattr(frames, column.name) for column in fields(Frames)])
    packed = zstandard.ZstdCompressor(level=9).compress(np.diff(rows, prepend=0).astype("<i8").tobytes())
    header_json, frames_text = msgspec.json.encode(header), base64.b64encode(packed)
    return {HEADER_KEY: header_json, FRAMES_KEY: frames_text, SUM_KEY: checksum(header_json, frames_text)}


def _decode_frames(text: bytes) -> Frames:
    packed = base64.b64decode(text, validate=True)
    # A kilobyte may unpack to gigabytes: what it says of its size is what zstd holds it to.
    size = zstandard.frame_content_size(packed)
    if size % 32 or not 0 <= size <= 32 * MOST_FRAMES:
        raise ValueError("the size of its frames is impossible")
    data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
    with np.errstate(over="ignore"):
        rows = np.cumsum(np.frombuffer(data, dtype="<i8").reshape(4, -1), axis=1, dtype=np.int64)
    return Frames(*rows)


def _check(header: IndexHeader, frames: Frames, groups: list[int]) -> None:
    """Raise `ValueError` for numbers that no shard can have; `groups` are the rows of each row group."""
    if any(not 0 < rows <= ROWS_PER_GROUP for rows in groups):
        raise ValueError("its row groups have impossible sizes")
    if sum(groups) != header.documents or header.documents + header.skipped > header.lines:
        raise ValueError("it has another number of documents than it says")
    if len(header.examples) != min(header.skipped, LISTED_BAD_LINES):
        raise ValueError("it lists more or fewer bad lines than there are")
    if not len(frames):
        if header.storage == "parquet":  # It may have no row group.
            return
        raise ValueError("it has no frames")
    # Compared and not subtracted: made-up numbers may be so far apart that their difference overflows.
    if not _within(frames.offset, max(header.size - 1, 0)) or bool(np.any(frames.offset[1:] == frames.offset[:-1])):
        raise ValueError("its frames do not lie one behind the other")
    if not _within(frames.text_offset, header.content_bytes) or frames.text_offset[0] != 0:
        raise ValueError("its frames have impossible sizes")
    sizes = np.diff(frames.text_offset, append=header.content_bytes)
    if bool(np.any((frames.line_at < 0) | (frames.line_at > sizes))):
        raise ValueError("its frames have impossible beginnings")
    if not _within(frames.line, header.lines) or frames.line[0] != 0:
        raise ValueError("its frames have impossible lines")


def _within(values: Int64, highest: int) -> bool:
    """Whether the values, int64 [frames], never fall and are between 0 and `highest`."""
    return bool(values[0] >= 0 and np.all(values[1:] >= values[:-1]) and values[-1] <= highest)


def _check_rows(table: pa.Table, first: int, lines: int) -> int:
    """Raise `ValueError` for columns that no shard can have; returns the least number that may follow."""
    if "text_bytes" in table.column_names and bool(np.any(table["text_bytes"].to_numpy() < 0)):
        raise ValueError("it has texts of impossible sizes")
    if "number" in table.column_names and len(numbers := table["number"].to_numpy()):
        if numbers[0] < first or numbers[-1] >= lines or bool(np.any(np.diff(numbers) <= 0)):
            raise ValueError("its document numbers do not increase")
        first = int(numbers[-1]) + 1
    return first


def index_schema(names: Sequence[str] | None = None) -> pa.Schema:
    """The columns of an index, or these of them."""
    import pyarrow as pa

    types = {
        "number": pa.int64(),
        "subset": pa.dictionary(pa.int32(), pa.string()),
        "text_bytes": pa.int64(),
        "text_hash": pa.uint64(),
    }
    return pa.schema([pa.field(name, types[name], nullable=False) for name in (types if names is None else names)])


@contextmanager
def _opened(path: str) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    with closing(open_stored(path, scattered=True)[0]) as file:
        try:
            table = pq.ParquetFile(file, page_checksum_verification=True, thrift_string_size_limit=1 << 30)
        except Exception as error:
            raise _no_index(path, visible(str(error).split("\n", 1)[0], 200)) from error
        yield table


def _exists(path: str) -> bool:
    if not is_url(path):
        return os.path.exists(path)  # noqa: PTH110 (Path.exists raises where a folder on the way may not be read)
    import fsspec

    try:
        store, inner = fsspec.core.url_to_fs(path)
        return bool(store.exists(inner))
    except Exception:
        return False  # Stores raise errors of their own making; the shard itself will tell what is wrong.


def _no_index(path: str, why: str) -> PilekitError:
    return PilekitError(f"{visible(path)}: is not an index ({why}); remove it, and make it anew with `pilekit index`")


def _damaged(path: str, error: Exception) -> PilekitError:
    why = visible(str(error).split("\n", 1)[0], 200)
    return PilekitError(f"{visible(path)}: is damaged ({why}); remove it, and make it anew with `pilekit index`")
