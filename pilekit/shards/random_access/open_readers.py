"""`OpenReaders`: documents of any shard of a corpus, with few open files and bounded memory.

All shards together hold 64 MiB of decoded frames. A corpus of up to 128 MiB is held whole, because a stream reads each
document many times. Files and frames are not pickled. After a fork each process opens its own files, because parent and
child would share one file position.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from pilekit.corpus import Corpus
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.random_access.document_reader import DocumentReader
from pilekit.shards.random_access.frame_cache import FrameCache
from pilekit.shards.random_access.frame_lru import WHOLE_BYTES, FrameLRU

OPEN_SHARDS = 32
"""The most recently used files stay open: the Pile has 30 shards, and opening one in a store costs a request."""


class OpenReaders:
    """The readers of a corpus's shards; `indexes` has one index per shard, in order. Threads must not share it.

    cache   keeps frames of remote shards on disk
    """

    def __init__(self, corpus: Corpus, indexes: Sequence[ShardIndex], cache: FrameCache | None = None):
        self.corpus, self.indexes, self.cache = corpus, indexes, cache
        self._start()

    def of(self, shard: int) -> DocumentReader:
        """The reader of a shard, by its place in the corpus; valid until the next call."""
        if self._process != os.getpid():
            self._start()
        reader = self._readers.get(shard)
        if reader is None:
            reader = self._readers[shard] = DocumentReader(
                self.corpus.shards[shard],
                self.indexes[shard],
                manifest=self.corpus.manifest,
                held=self._held,
                cache=self.cache,
            )
            if len(self._readers) > OPEN_SHARDS:
                self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(shard)
        return reader

    def close(self) -> None:
        """Close all files and drop all frames; they are opened again when they are needed."""
        for reader in self._readers.values():
            reader.close()
        self._start()

    def __getstate__(self) -> dict[str, Any]:
        return {"corpus": self.corpus, "indexes": self.indexes, "cache": self.cache}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _start(self) -> None:
        self._process = os.getpid()
        self._readers: OrderedDict[int, DocumentReader] = OrderedDict()
        size = sum(index.header.content_bytes for index in self.indexes)
        self._held: FrameLRU = FrameLRU(whole=size <= WHOLE_BYTES)
