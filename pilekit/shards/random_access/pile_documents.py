"""`PileDocuments`: a corpus as a list of its documents, for whatever wants to fetch any of them at any time.

    documents = PileDocuments("data/", subsets=["ArXiv", "GitHub"])
    sampler = DistributedSampler(documents)
    loader = DataLoader(documents, batch_size=8, sampler=sampler, num_workers=2, collate_fn=...)

In memory are the shards' frame tables (32 bytes per MiB of text), how many documents each shard has, and 64 MiB of
decoded frames. Where documents are left out, by subset or because their lines are bad, there is also a bit for each
line of shards that have been used.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

import numpy as np

from pilekit.corpus import Corpus, Manifest, resolve_subsets
from pilekit.errors import PilekitError, visible
from pilekit.shards.index.build import index_corpus
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.random_access.document_reader import StoredDocument
from pilekit.shards.random_access.frame_lru import HELD_BYTES, frames_fit
from pilekit.shards.random_access.open_readers import OpenReaders
from pilekit.shards.random_access.selected_lines import SelectedLines, lines_of_subsets

logger = logging.getLogger(__name__)


class PileDocuments:
    """The documents of a corpus, by position: in the order of shards by name, and of lines in a shard.

    data       a path, a glob, a URL, a list of them, or a `Corpus`, which is taken as it is; val and test shards are
               not left out: `Corpus(path).without_held_out()` does that
    subsets    only documents of these subsets, by any of their names; None: all
    manifest   what the corpus is, as `Corpus` takes it; the Pile's by default. A `Corpus` has its own

    `documents[i]` is a `StoredDocument`, `documents[i:j]` a list of them. Uses the shards' indexes; missing ones are
    made, for which those shards are read once. Bad lines are left out, which is told in a warning; damage in a frame is
    a `PilekitError` when a document in it is asked for.

    A stock `DataLoader` takes it, however it starts its workers: it can be pickled, and each process opens its own
    files. `default_collate` joins documents whose `meta` have the same fields; others need a `collate_fn`. Threads must
    not share it.
    """

    def __init__(
        self,
        data: str | Path | Sequence[str | Path] | Corpus,
        *,
        subsets: Sequence[str] | None = None,
        manifest: Manifest | str | Path | None = None,
    ):
        if isinstance(data, Corpus) and manifest is not None:
            raise PilekitError("a Corpus has its own manifest; give manifest= to Corpus()")
        self.corpus = data if isinstance(data, Corpus) else Corpus(data, manifest)
        self.subsets = None
        if subsets is not None:
            names = [subsets] if isinstance(subsets, str) else subsets
            self.subsets = resolve_subsets(*names, manifest=self.corpus.manifest)
            if not self.subsets:
                raise PilekitError("subsets is empty, so no document is selected; name some, or give None for all")
        self._indexes = index_corpus(self.corpus, on_error="skip")
        for shard, index in zip(self.corpus.shards, self._indexes, strict=True):
            if not frames_fit(index):
                remedy = "reframe it first (`pilekit reframe`)"
                if index.header.storage == "parquet":
                    remedy = "write it anew first, in smaller row groups (`pilekit select --format parquet`)"
                raise PilekitError(
                    f"{visible(shard.path)}: its frames are longer than {HELD_BYTES >> 20} MiB, too long to reach "
                    f"single documents; {remedy}, or go through it in order with read()"
                )
            if index.header.skipped:
                line, reason = index.header.examples[0]
                logger.warning(
                    "%s: %d bad lines are left out, the first is line %d: %s",
                    *(visible(shard.path), index.header.skipped, line, visible(reason, 200)),
                )
        self._counts = [self._count(index) for index in self._indexes]
        self._ends = np.cumsum(self._counts, dtype=np.int64)
        self._lines: dict[int, SelectedLines] = {}
        self._readers = OpenReaders(self.corpus, self._indexes)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, position: int) -> StoredDocument: ...
    @overload
    def __getitem__(self, position: slice) -> list[StoredDocument]: ...
    def __getitem__(self, position: int | slice) -> StoredDocument | list[StoredDocument]:
        if isinstance(position, slice):
            return self.__getitems__(range(*position.indices(len(self))))
        place = self._place(position)
        shard = int(np.searchsorted(self._ends, place, side="right"))
        rank = place - (int(self._ends[shard]) - self._counts[shard])
        return self._readers.of(shard).document(int(self._lines_of(shard).numbers(rank, rank + 1)[0]))

    def __getitems__(self, positions: Sequence[int]) -> list[StoredDocument]:
        """The documents at these positions, in their order; torch fetches whole batches by this name.

        Read in the corpus's order, so that each frame is decoded once.
        """
        places = [self._place(position) for position in positions]
        found = {place: self[place] for place in sorted(set(places))}
        return [found[place] for place in places]

    def __iter__(self) -> Iterator[StoredDocument]:
        return (self[place] for place in range(len(self)))

    def close(self) -> None:
        """Close all files and let go of what is held; what is used again is opened again."""
        self._readers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PileDocuments({self.corpus!r}, {len(self)} documents)"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lines": {}}

    def _place(self, position: int) -> int:
        place = operator.index(position)
        place += len(self) if place < 0 else 0
        if not 0 <= place < len(self):
            raise IndexError(f"there is no document {position}, there are {len(self)}")
        return place

    def _count(self, index: ShardIndex) -> int:
        if self.subsets is None:
            return index.header.documents
        chosen, count = set(self.subsets), 0
        for rows in index.row_groups(["subset"]):
            for chunk in rows["subset"].chunks:
                wanted = np.array([label in chosen for label in chunk.dictionary.to_pylist()], dtype=bool)
                count += int(wanted[chunk.indices.to_numpy()].sum())
        return count

    def _lines_of(self, shard: int) -> SelectedLines:
        if shard not in self._lines:
            index = self._indexes[shard]
            lines = lines_of_subsets(index, None if self.subsets is None else set(self.subsets).__contains__)
            if len(lines) != self._counts[shard]:
                raise PilekitError(f"{visible(index.path)}: was changed meanwhile; open the corpus again")
            self._lines[shard] = lines
        return self._lines[shard]
