"""The index of a shard: a Parquet file beside it, with a row for each document and the places where reading can begin.

The rows are `number`, `subset` (the label as the record spells it, so that an index fits any manifest), `text_bytes`
and `text_hash` (xxh3_64 of the text in UTF-8), in the shard's order, so polars and duckdb read an index as a table of
documents. The file's key-value metadata describes the whole shard (metadata.py) and is read without touching the rows.

An index is used only if it fits: the shard's fingerprint and the text and label fields must be the same as when it was
built. The fingerprint samples only a few places. So, as with make, a local shard that is newer than its index does not
fit either. (A copy that lost its times, by `cp` without -p, costs a new index.) Pages have checksums, the metadata has
a sum, and contradicting numbers are refused. So a damaged or forged index is an error, never a wrong answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from pilekit.artifacts.folders import cache_folder
from pilekit.corpus import Corpus, Manifest, Shard, SubsetNames, subset_names
from pilekit.corpus.shard import STANDARD_INPUT, is_url, without_query
from pilekit.corpus.sidecar_files import INDEX_SUFFIX as INDEX_SUFFIX
from pilekit.corpus.sidecar_files import index_name
from pilekit.display.wrong_names import NearestNames
from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError, counted, message_logger, shortened, visible
from pilekit.shards.fingerprint import Fingerprint, changed_at, fingerprint
from pilekit.shards.index.document_rows import DocumentRows
from pilekit.shards.index.metadata import INDEX, read_metadata
from pilekit.shards.index.metadata import Frames as Frames
from pilekit.shards.index.metadata import IndexDamage as IndexDamage
from pilekit.shards.index.metadata import IndexHeader as IndexHeader
from pilekit.shards.read.open import exists, open_file
from pilekit.shards.read.read_errors import BadLine, SkippedLines

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

logger = message_logger(__name__)

REMOTE_AT_ONCE = 32
"""Remote shards whose indexes are looked up at the same time."""

OLDER = "is older than its shard"


@dataclass(frozen=True)
class ShardIndex(NearestNames):
    """A loaded index: header and frames are in memory, rows are read on request.

    path    the path of the index itself
    names   the subset of each label, by the manifest for which the index was found; None: labels as they are stored
    built   whether the call that returned it built it
    """

    path: str
    header: IndexHeader
    frames: Frames
    names: SubsetNames | None = field(default=None, repr=False, compare=False)
    built: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        return f"ShardIndex({self.path!r}, {counted(self.header.documents, 'document')})"

    def to_dict(self) -> dict[str, Any]:
        """The counts of the shard, and where its index is."""
        header = self.header
        return {
            "documents": header.documents,
            "text_bytes": header.text_bytes,
            "frames": len(self.frames),
            "lines": header.lines,
            "skipped": header.skipped,
            "content_bytes": header.content_bytes,
            "content_hash": header.content_hash,
            "index": self.path,
            "built": self.built,
        }

    def columns(self, names: Sequence[str] | None = None) -> pa.Table:
        """All rows, or these columns of them; `PilekitError` if they are damaged."""
        import pyarrow as pa

        return pa.concat_tables([index_schema(names).empty_table(), *self.row_groups(names)])

    def row_groups(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows in tables of at most 100,000, so that memory stays bounded; each column is one chunk."""
        first = 0
        with _open_table(self.path) as file:
            for group in range(file.metadata.num_row_groups):
                try:
                    columns = None if names is None else list(names)
                    table = file.read_row_group(group, columns=columns, use_threads=False)
                    table = table.unify_dictionaries().combine_chunks()
                    first = _check_rows(table, first, self.header.lines)
                except Exception as error:
                    raise INDEX.damaged(self.path, error) from error
                yield table

    def rows(self, *names: str) -> Iterator[DocumentRows]:
        """All rows as `DocumentRows`; with names, the other columns are empty."""
        for table in self.row_groups(names or None):
            column = {name: table[name].to_numpy() for name in table.column_names if name != "subset"}
            labels = table["subset"].chunk(0) if "subset" in table.column_names else None
            yield DocumentRows(
                column.get("number", _EMPTY),
                _EMPTY if labels is None else labels.indices.to_numpy(),
                [] if labels is None else labels.dictionary.to_pylist(),
                column.get("text_bytes", _EMPTY),
                column.get("text_hash", _EMPTY.view(np.uint64)),
            ).named(self.names)

    @property
    def subsets(self) -> set[str]:
        """The subsets of its documents."""
        return {label if self.names is None else self.names[label] for label in self.header.subsets}

    @property
    def joined(self) -> dict[str, str]:
        """The subset of each label of its documents that is spelled otherwise."""
        names = {} if self.names is None else {label: self.names[label] for label in self.header.subsets}
        return {label: name for label, name in names.items() if label != name}


_EMPTY = np.zeros(0, dtype=np.int64)


def load_index(path: str | Path) -> ShardIndex:
    """Load the index at a path or URL; `PilekitError` if it is no index, is damaged, or has a later format."""
    path = str(path)
    with _open_table(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
        values = metadata.metadata or {}
        groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if not schema.equals(index_schema(), check_metadata=False):
        raise INDEX.wrong_kind(path, "its columns are others")
    header, frames = read_metadata(path, values, groups)
    return ShardIndex(path, header, frames)


def index_places(shard: Shard) -> list[str]:
    """The places of the shard's index: beside it, then in the cache folder; none for standard input."""
    if shard.path == STANDARD_INPUT:
        return []
    remote = is_url(shard.path)
    plain = not remote or (without_query(shard.path) == shard.path and "::" not in shard.path)
    folder, slash, name = shard.path.rpartition("/")
    beside = [folder + slash + index_name(name)] if plain else []
    whole = shard.path if remote else os.path.abspath(shard.path)  # noqa: PTH100 (links are not followed)
    name = without_query(shard.path.partition("::")[0]).rpartition("/")[2]
    name = name if name not in ("", ".", "..") else "shard"
    cache = cache_folder() / "index" / xxhash.xxh3_128_hexdigest(whole.encode(errors="surrogateescape"))
    return [*beside, str(cache / (name + INDEX_SUFFIX))]


def find_index(
    shard: Shard, manifest: Manifest | None = None, *, warn: bool = True, whole: bool = False
) -> ShardIndex | None:
    """The shard's index, if one fits.

    warn    log the reason if indexes exist but none fits
    whole   also reads all rows, and refuses an index with damaged rows
    """
    now: Fingerprint | None = None
    reasons = []
    for place in index_places(shard):
        if not exists(place):
            continue
        try:
            index = load_index(place)
            now = now or fingerprint(shard.path)
            for _ in index.row_groups() if whole else ():
                pass
        except PilekitError as error:
            reasons.append(str(error))
            continue
        why = misfit(index.header, now, manifest)
        if why is None and changed_at(shard.path) > changed_at(place):
            why = OLDER
        if why is None:
            return replace(index, names=subset_names(manifest))
        reasons.append(f"{place}: {why}; make it again with `pilekit index {shard.path}`")
    for why in reasons if warn else ():
        logger.warning("index not used: %s", why)
    return None


def find_indexes(corpus: Corpus, *, whole: bool = False) -> list[ShardIndex | None]:
    """`find_index` of every shard, without warnings; in parallel for remote shards, which take twenty requests each."""
    find = partial(find_index, manifest=corpus.manifest, warn=False, whole=whole)
    if not any(is_url(shard.path) for shard in corpus.shards):
        return list(map(find, corpus.shards))
    with ThreadPoolExecutor(REMOTE_AT_ONCE) as threads:
        return list(threads.map(find, corpus.shards))


def misfit(header: IndexHeader, now: Fingerprint, manifest: Manifest | None = None) -> str | None:
    """Why an index with this header does not fit a shard of this fingerprint; None if it does."""
    format = RecordFormat.from_manifest(manifest)
    label_path = ".".join(format.label_path)
    if (why := _other_bytes(header, now)) is not None:
        return why
    if header.text_field != format.text_field:
        return f'has text_field "{shortened(header.text_field, 60)}", the manifest "{shortened(format.text_field, 60)}"'
    if header.label_path != label_path:
        return f'has label_path "{shortened(header.label_path, 60)}", the manifest "{shortened(label_path, 60)}"'
    return None


def changed_since(index: ShardIndex, path: str) -> str | None:
    """What shows that the shard at `path` changed after this index of it was made; None: nothing shows it."""
    try:
        why = _other_bytes(index.header, fingerprint(path))
    except PilekitError:
        return None
    return OLDER if why is None and changed_at(path) > changed_at(index.path) else why


def _other_bytes(header: IndexHeader, now: Fingerprint) -> str | None:
    if header.size != now.size:
        return f"was made of a shard of {header.size:,} bytes, it has {now.size:,} now"
    return None if header.sample == now.sample else "was made of a shard of the same size but other bytes"


def bad_lines(shard: Shard, index: ShardIndex) -> SkippedLines:
    """The bad lines that the shard's index left out, as reading with `on_error="skip"` gives them."""
    listed = [BadLine(shard.path, line, visible(reason)) for line, reason in index.header.examples]
    return SkippedLines(index.header.skipped, listed)


def warn_of_bad_lines(shard: Shard, index: ShardIndex) -> None:
    """Warn of the bad lines that the shard's index left out, if there are any."""
    if count := index.header.skipped:
        first = str(bad_lines(shard, index).examples[0]).removeprefix(f"{visible(shard.path)}, ")
        logger.warning("%s: %s left out, the first: %s", shard.path, counted(count, "bad line"), first)


def _check_rows(table: pa.Table, first: int, lines: int) -> int:
    """Raise `ValueError` for rows that no shard can have; returns the least number that may follow."""
    if "text_bytes" in table.column_names and bool(np.any(table["text_bytes"].to_numpy() < 0)):
        raise ValueError("it has texts of impossible sizes")
    if "subset" in table.column_names and table.num_rows:
        labels = table["subset"].chunk(0)
        places = labels.indices.to_numpy()
        if places.min() < 0 or places.max() >= len(labels.dictionary):
            raise ValueError("it has labels that its dictionary lacks")
    if "number" in table.column_names and len(numbers := table["number"].to_numpy()):
        if numbers[0] < first or numbers[-1] >= lines or bool(np.any(numbers[1:] <= numbers[:-1])):
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
def _open_table(path: str) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    # Arrow's threads must not read a Python file: one that releases a buffer while Python exits aborts the process
    # (github.com/apache/arrow/issues/34314).
    with closing(open_file(path, scattered=True)) as file:
        try:
            table = pq.ParquetFile(
                file, pre_buffer=False, page_checksum_verification=True, thrift_string_size_limit=1 << 30
            )
        except Exception as error:
            raise INDEX.wrong_kind(path, visible(str(error).split("\n", 1)[0], 200)) from error
        yield table
