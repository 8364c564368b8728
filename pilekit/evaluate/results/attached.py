"""Numbers that belong to a document, beside its record: the losses of its tokens, or its vector.

    records/KEY/records.RANK.jsonl   a line per document
                attached.RANK.bin    the items of the same documents, in the order of the lines, and nothing else

A document's items are appended before its line. So each line has its items, which begin after those of all lines above
it. After a kill there may be items without a line: they are cut off when the file is opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pilekit.errors import PilekitError, visible
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result_folder import appended, documents_in, record_files, writing
from pilekit.evaluate.results.write_items import Items
from pilekit.evaluate.score.batching import Float64, Keep, TokenizedDocument


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


def _beside(records: Path) -> Path:
    """The file of items of a rank's records: attached.RANK.bin beside records.RANK.jsonl."""
    return records.with_name(f"attached.{records.name.split('.')[1]}.bin")


def _damaged(path: Path) -> PilekitError:
    return PilekitError(
        f"{visible(path)}: is shorter than its records say, so it is damaged; remove its folder, and the same "
        "command scores its documents again"
    )
