"""Numbers that belong to a document, beside its record: the losses of its tokens, or its vector.

    records/KEY/records.RANK.jsonl   a line per document
                attached.RANK.bin    the items of the same documents, in the order of the lines, and nothing else

A document's items are appended before its line. So each line has its items, which begin after those of all lines above
it. After a kill there may be items without a line: they are cut off when the file is opened again.

At the end, `write_items` writes them into a Parquet file. Memory holds the items of a row group, or of a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result_folder import appended, documents_in, record_files, writing
from pilekit.evaluate.score.batching import Float64, Keep, TokenizedDocument

Items = npt.NDArray[Any]
_NAMES = pa.dictionary(pa.int32(), pa.string())
PLACE = {"shard": _NAMES, "number": pa.int64(), "subset": _NAMES}
"""The columns that begin each file of items."""


@dataclass(frozen=True)
class Attached:
    """The numbers attached to a document.

    item     the type of an item
    count    the number of a document's items, from its record
    made     a document's items, from its tokens and the numbers that scoring made
    """

    item: np.dtype[Any]
    count: Callable[[ScoredDocument], int]
    made: Callable[[TokenizedDocument, Float64], Items]


@contextmanager
def attached_file(records: Path, kind: Attached) -> Iterator[Keep]:
    """Yield a function that appends a document's items to the file beside `records`, which this process has locked.

    PilekitError if the file cannot be written, or lacks items.
    """
    path = _beside(records)
    whole = kind.item.itemsize * sum(map(kind.count, documents_in(records)))
    with appended(path) as (file, write):
        if path.stat().st_size < whole:
            raise _damaged(path)
        with writing(path):
            file.truncate(whole)
        yield lambda document, numbers: write(kind.made(document, numbers).astype(kind.item).tobytes())


def read_attached(folder: Path, kind: Attached, records: Records) -> Iterator[tuple[ScoredDocument, Items]]:
    """Each document of `records`, in order, with its items; `folder` holds the records.

    PilekitError if a file of items is too short.
    """
    places: dict[tuple[str, int], tuple[Path, int]] = {}
    for path in record_files(folder):
        begin = 0
        for document in documents_in(path):
            places.setdefault((document.shard, document.number), (_beside(path), begin))
            begin += kind.item.itemsize * kind.count(document)
    for document in records.documents():
        path, begin = places[document.shard, document.number]
        count = kind.count(document)
        items = np.fromfile(path, kind.item, count, offset=begin) if count else np.empty(0, kind.item)
        if len(items) < count:
            raise _damaged(path)
        yield document, items


def write_items(
    path: Path,
    schema: pa.Schema,
    documents: Iterable[tuple[ScoredDocument, Items]],
    most: int,
    rows_of: Callable[[list[Items]], tuple[Sequence[int], list[Any]]],
    *,
    follow_links: bool = False,
) -> None:
    """Write documents and their items into a Parquet file, the whole file or none.

    schema         `PLACE`, then other columns
    most           about the items in a row group
    rows_of        the items of some documents -> the number of rows of each, and the other columns
    follow_links   see `write_atomically`
    """
    file = write_atomically(path, follow_links=follow_links)
    with file as opened, pq.ParquetWriter(opened, schema, compression="zstd") as writer:
        for group in _groups(documents, most):
            counts, columns = rows_of([items for _, items in group])
            places = np.repeat(np.arange(len(group)), counts)
            shards, numbers, subsets = zip(*((of.shard, of.number, of.subset) for of, _ in group), strict=True)
            shards, subsets = (
                pa.array(names).dictionary_encode().take(pa.array(places)) for names in (shards, subsets)
            )
            writer.write_table(pa.table([shards, np.array(numbers)[places], subsets, *columns], schema=schema))


def _groups(
    documents: Iterable[tuple[ScoredDocument, Items]], most: int
) -> Iterator[list[tuple[ScoredDocument, Items]]]:
    group: list[tuple[ScoredDocument, Items]] = []
    size = 0
    for document, items in documents:
        group.append((document, items))
        size += len(items)
        if size >= most:
            yield group
            group, size = [], 0
    if group:
        yield group


def _beside(records: Path) -> Path:
    """The file of items of a rank's records: attached.RANK.bin beside records.RANK.jsonl."""
    return records.with_name(f"attached.{records.name.split('.')[1]}.bin")


def _damaged(path: Path) -> PilekitError:
    return PilekitError(
        f"{visible(str(path))}: is shorter than its records say, so it is damaged; remove its folder, and the same "
        "command scores its documents again"
    )
