"""`PileDocuments`: a corpus as a list of its documents, for code that fetches any of them at any time.

    documents = PileDocuments("data/", subsets=["ArXiv", "GitHub"])
    sampler = DistributedSampler(documents)
    loader = DataLoader(documents, batch_size=8, sampler=sampler, num_workers=2, collate_fn=...)

Memory holds the shards' frame tables (32 bytes per MiB of text) and 64 MiB of decoded frames. Where documents are left
out, by subset or because their lines are bad, it also holds a bit for each line.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import overload

from pilekit.corpus import Corpus, Described, Shard, Source, subsets_or_all
from pilekit.display.wrong_names import NearestNames
from pilekit.documents import Document, DocumentBatch
from pilekit.errors import PilekitError, counted, shortened
from pilekit.shards.index.build import index_corpus
from pilekit.shards.index.format import ShardIndex, warn_of_bad_lines
from pilekit.shards.random_access.document_reader import OpenReaders
from pilekit.shards.random_access.frame_cache import HELD_BYTES, frames_fit
from pilekit.shards.random_access.selected_lines import CorpusBitmap, lines_of_subsets


class PileDocuments(NearestNames, AbstractContextManager["PileDocuments"]):
    """The documents of a corpus, by position: in the order of shards by name, and of lines in a shard.

    data       a path, a glob, a URL, a list of them, or a `Corpus`, which is used whole, val and test shards included;
               `Corpus(path).without_held_out()` leaves them out
    subsets    only documents of these subsets, in any spelling the manifest knows; None: all
    manifest   the manifest, as for `Corpus`; the Pile's by default. A `Corpus` has its own

    `documents[i]` is a `Document`, `documents[i:j]` a list of them. Uses the shards' indexes; a missing index is
    built, which reads its shard once. Bad lines are left out with a warning. Damage in a frame is a `PilekitError` when
    one of its documents is requested.

    It works with a stock `DataLoader` and any way of starting workers: it can be pickled, and each process opens its
    own files. `default_collate` joins documents whose `meta` have the same fields; others need a `collate_fn`. Threads
    must not share it.
    """

    def __init__(
        self,
        data: Source | Corpus,
        *,
        subsets: Sequence[str] | None = None,
        manifest: Described = None,
    ):
        self.corpus = Corpus.of(data, manifest)
        self.subsets = subsets_or_all(subsets, self.corpus.manifest)
        indexes = index_corpus(self.corpus, on_error="skip")
        for shard, index in zip(self.corpus.shards, indexes, strict=True):
            _check(shard, index)
        is_chosen = None if self.subsets is None else set(self.subsets).__contains__
        self._selected = CorpusBitmap([lines_of_subsets(index, is_chosen) for index in indexes])
        self._readers = OpenReaders(self.corpus, indexes)

    def labelled(self, label: str) -> PileDocuments:
        """The documents with exactly this label, known to the manifest or not; shares the open files.

        Needs all documents: `subsets` must be None.
        """
        part = copy(self)
        part._selected = CorpusBitmap([lines_of_subsets(index, label.__eq__) for index in self._readers.indexes])
        return part

    def document(self, shard: str, number: int) -> Document:
        """The document with that identity; `PilekitError` if there is none."""
        names = [member.name for member in self.corpus.shards]
        if shard not in names:
            raise PilekitError(f"{shortened(shard, 200)}: is no shard of this corpus")
        return self._readers.reader(names.index(shard)).document(number)

    def __len__(self) -> int:
        return len(self._selected)

    @overload
    def __getitem__(self, position: int) -> Document: ...
    @overload
    def __getitem__(self, position: slice) -> list[Document]: ...
    def __getitem__(self, position: int | slice) -> Document | list[Document]:
        if isinstance(position, slice):
            return self.__getitems__(range(*position.indices(len(self))))
        place = self._place(position)
        ((shard, numbers),) = self._selected.locate(place, place + 1)
        return self._readers.reader(shard).document(int(numbers[0]))

    def __getitems__(self, positions: Sequence[int]) -> list[Document]:
        """The documents at these positions, in their order; torch fetches whole batches by this name."""
        places = [self._place(position) for position in positions]
        # In the corpus's order, so that each frame is decoded once.
        documents = {place: self[place] for place in sorted(set(places))}
        return [documents[place] for place in places]

    def batches(self, start: int, size: int) -> Iterator[DocumentBatch]:
        """The documents from position `start` on, up to `size` at a time, each batch of one shard, without metadata.

        Several times faster than one document at a time.
        """
        for begin in range(start, len(self), size):
            for shard, numbers in self._selected.locate(begin, min(begin + size, len(self))):
                yield self._readers.reader(shard).batch(numbers)

    def __iter__(self) -> Iterator[Document]:
        return (self[place] for place in range(len(self)))

    def close(self) -> None:
        """Close all files and drop all frames; they are opened again when they are needed."""
        self._readers.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PileDocuments({self.corpus!r}, {counted(len(self))})"

    def _place(self, position: int) -> int:
        place = operator.index(position)
        place += len(self) if place < 0 else 0
        if not 0 <= place < len(self):
            raise IndexError(f"there is no document {position}, there are {len(self)}")
        return place


def _check(shard: Shard, index: ShardIndex) -> None:
    """Raise `PilekitError` for frames too long for random access; warn of bad lines."""
    if not frames_fit(index):
        remedy = "reframe it first (`pilekit reframe`)"
        if index.header.storage == "parquet":
            remedy = "write it in smaller row groups first (`pilekit select --format parquet`)"
        raise PilekitError(
            f"{shard.path}: its frames are longer than {HELD_BYTES >> 20} MiB, too long to reach "
            f"single documents; {remedy}, or go through it in order with read()"
        )
    warn_of_bad_lines(shard, index)
