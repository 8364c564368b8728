"""`PileDocuments`: a corpus as a list of its documents, for whatever wants to fetch any of them at any time.

    documents = PileDocuments("data/", subsets=["ArXiv", "GitHub"])
    sampler = DistributedSampler(documents)
    loader = DataLoader(documents, batch_size=8, sampler=sampler, num_workers=2, collate_fn=...)

In memory are the shards' frame tables (32 bytes per MiB of text), how many documents each shard has, and 64 MiB of
decoded frames. Where documents are left out, by subset or because their lines are bad, there are also the numbers of
those that are not, 4 bytes each, of shards that have been used.
"""

from __future__ import annotations

import logging
import operator
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import numpy.typing as npt

from pilekit.corpus import Corpus, Manifest, resolve_subsets
from pilekit.errors import PilekitError, visible
from pilekit.shards.held_frames import HeldFrames
from pilekit.shards.index import ShardIndex
from pilekit.shards.indexing import index_corpus
from pilekit.shards.random_access import DocumentReader, StoredDocument

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

OPEN_SHARDS = 16
"""So many files are open at most, those used last."""


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
            if index.header.skipped:
                line, reason = index.header.examples[0]
                logger.warning(
                    "%s: %d bad lines are left out, the first is line %d: %s",
                    *(visible(shard.path), index.header.skipped, line, visible(reason, 200)),
                )
        self._counts = [self._count(index) for index in self._indexes]
        self._ends = np.cumsum(self._counts, dtype=np.int64)
        self._numbers: dict[int, npt.NDArray[np.unsignedinteger[Any]]] = {}
        self._start()

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
        number = place - (int(self._ends[shard]) - self._counts[shard])
        numbers = self._numbers_of(shard)
        return self._reader(shard).document(number if numbers is None else int(numbers[number]))

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
        for reader in self._readers.values():
            reader.close()
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PileDocuments({self.corpus!r}, {len(self)} documents)"

    def __getstate__(self) -> dict[str, Any]:
        own = ("_readers", "_held", "_numbers", "_process")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._numbers = {}
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._readers: OrderedDict[int, DocumentReader] = OrderedDict()
        self._held: HeldFrames[Any] = HeldFrames()

    def _place(self, position: int) -> int:
        place = operator.index(position)
        place += len(self) if place < 0 else 0
        if not 0 <= place < len(self):
            raise IndexError(f"there is no document {position}, there are {len(self)}")
        return place

    def _reader(self, shard: int) -> DocumentReader:
        """The reader of a shard, opened in this process: after a fork, parent and child would move one position."""
        if self._process != os.getpid():
            self._start()
        reader = self._readers.get(shard)
        if reader is None:
            reader = self._readers[shard] = DocumentReader(
                self.corpus.shards[shard], self._indexes[shard], manifest=self.corpus.manifest, held=self._held
            )
            if len(self._readers) > OPEN_SHARDS:
                self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(shard)
        return reader

    def _count(self, index: ShardIndex) -> int:
        if self.subsets is None:
            return index.header.documents
        return sum(int(self._wanted(rows["subset"]).sum()) for rows in index.row_groups(["subset"]))

    def _numbers_of(self, shard: int) -> npt.NDArray[np.unsignedinteger[Any]] | None:
        """The line numbers of the shard's documents; None if all lines are, so that they are their own numbers."""
        index = self._indexes[shard]
        if self._counts[shard] == index.header.lines:
            return None
        if shard not in self._numbers:
            small = np.uint32 if index.header.lines <= 1 << 32 else np.uint64
            parts = [np.zeros(0, dtype=small)]
            for rows in index.row_groups(["number", "subset"]):
                numbers = rows["number"].to_numpy().astype(small)
                parts.append(numbers if self.subsets is None else numbers[self._wanted(rows["subset"])])
            self._numbers[shard] = np.concatenate(parts)
            if len(self._numbers[shard]) != self._counts[shard]:
                raise PilekitError(f"{visible(index.path)}: was changed meanwhile; open the corpus again")
        return self._numbers[shard]

    def _wanted(self, labels: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """Which rows are of the subsets chosen."""
        assert self.subsets is not None
        chosen = set(self.subsets)
        parts = [np.zeros(0, dtype=bool)]
        for chunk in labels.chunks:
            wanted = np.array([label in chosen for label in chunk.dictionary.to_pylist()], dtype=bool)
            parts.append(wanted[chunk.indices.to_numpy()])
        return np.concatenate(parts)
