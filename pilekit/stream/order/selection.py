"""`Selection`: the documents of a corpus that a stream uses, numbered 0 .. N - 1.

    selection = Selection(corpus, indexes_of(corpus), subsets={"ArXiv"}, dedup=Path("dedup"))
    selection.locate(1000, 1256)        [(shard, line numbers), ...]

The documents are numbered shard by shard, in the order of the shards' names, and in each shard by line. The subset and
a finished dedup's keep masks leave documents out, and the indexes leave out bad lines. Skipping them costs nothing.

If all lines of a shard are selected, a document's place is computed and no row of the shard's index is read. Otherwise
there is one bit for each line of the shard.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import xxhash

from pilekit.corpus import Corpus
from pilekit.dedup.deduplicated import Deduplicated
from pilekit.documents import DocumentBatch
from pilekit.engine import Advance
from pilekit.errors import PilekitError, visible
from pilekit.shards.index.build import index_corpus
from pilekit.shards.index.format import ShardIndex, bad_lines
from pilekit.shards.random_access.open_readers import OpenReaders
from pilekit.shards.random_access.selected_lines import SelectedLines, lines_of_subsets
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.reader import OnError
from pilekit.stream.order.shuffle import Int64

_COMPARED = 32
"""Texts of a shard that are compared with the deduplicated texts."""


def indexes_of(
    corpus: Corpus,
    on_error: OnError = "raise",
    advance: Advance | None = None,
    found: Sequence[ShardIndex | None] | None = None,
) -> list[ShardIndex]:
    """The index of each shard; missing indexes are made. Rows are not read.

    advance   called with each further number of stored bytes done
    found     the result of a `find_indexes` call just before

    `PilekitError` for a bad line, unless `on_error` is "skip": then the indexes only count bad lines.
    """
    indexes = index_corpus(corpus, on_error=on_error, advance=advance, whole=False, found=found)
    if on_error == "raise":
        for shard, index in zip(corpus.shards, indexes, strict=True):
            if index.header.skipped:
                raise bad_line_error(bad_lines(shard, index).examples[0])
    return indexes


class Selection:
    """The selected documents of a corpus; `len()` is their number.

    corpus    the shards
    indexes   of the shards, in their order
    subsets   exact names of the selected subsets; None: all
    dropped   exact names of subsets that are left out
    dedup     folder of a finished dedup

    `PilekitError` if nothing is selected, if an index is damaged, if the dedup is not finished, or if it is of other
    shards, which shows in the first texts of each shard.
    """

    def __init__(
        self,
        corpus: Corpus,
        indexes: Sequence[ShardIndex],
        subsets: Collection[str] | None = None,
        dropped: Collection[str] = (),
        dedup: Path | None = None,
    ) -> None:
        self.corpus, self.indexes, self._subsets, self._dropped = corpus, indexes, subsets, dropped
        masks = None if dedup is None else Deduplicated(dedup)
        wanted = None if subsets is None and not dropped else self.selects
        self._lines: list[SelectedLines] = []
        for shard, index in zip(corpus.shards, indexes, strict=True):
            some = lines_of_subsets(index, wanted)
            if masks is not None:
                mask = masks.mask(shard.name)
                if mask.header.lines != some.lines:
                    raise PilekitError(
                        f"{visible(shard.path)}: has {some.lines:,} lines, but what was deduplicated in "
                        f"{visible(str(dedup))} under its name has {mask.header.lines:,}; run `pilekit dedup` on it"
                    )
                some = some.and_bits(mask.bits)
            self._lines.append(some)
        self._ends: Int64 = np.cumsum([len(some) for some in self._lines], dtype=np.int64)
        if not len(self):
            asked = {"subsets": sorted(subsets or ()), "repeats of 0": sorted(dropped), "dedup": dedup and str(dedup)}
            given = ", ".join(f"{name}={visible(repr(value), 200)}" for name, value in asked.items() if value)
            raise PilekitError(
                f"{visible(repr(corpus))}: no document is selected{f' by {given}' if given else ''}; `pilekit stats` "
                "tells what the shards hold"
            )
        if masks is not None:
            # Compare some texts: another shard of the same name and length would lose the wrong documents.
            deque(masks(self._some_of_each()), maxlen=0)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def locate(self, begin: int, end: int) -> list[tuple[int, Int64]]:
        """The places of documents `begin` to `end` - 1: (index of the shard, line numbers), 0 <= begin <= end <= N."""
        found = []
        shard = int(np.searchsorted(self._ends, begin, side="right"))
        while begin < end:
            last, lines = int(self._ends[shard]), self._lines[shard]
            first, until = last - len(lines), min(end, last)
            if begin < until:
                found.append((shard, lines.numbers(begin - first, until - first)))
            begin, shard = until, shard + 1
        return found

    def selects(self, label: str) -> bool:
        """Whether the subset selection keeps documents with this label."""
        return (self._subsets is None or label in self._subsets) and label not in self._dropped

    @property
    def skipped(self) -> int:
        """Bad lines that the indexes left out."""
        return sum(index.header.skipped for index in self.indexes)

    @property
    def fingerprint(self) -> str:
        """Hash of the shards' names, documents and text, 32 hexadecimal digits; recompressing does not change it.

        A Parquet shard's index has no hash of the text, so its file is hashed instead (size and sample).
        """
        of = [
            [shard.name, index.header.documents, index.header.content_hash or [index.header.size, index.header.sample]]
            for shard, index in zip(self.corpus.shards, self.indexes, strict=True)
        ]
        return xxhash.xxh3_128_hexdigest(json.dumps(of).encode())

    def _some_of_each(self) -> Iterator[DocumentBatch]:
        """The first selected documents of each shard."""
        readers = OpenReaders(self.corpus, self.indexes)
        for shard, lines in enumerate(self._lines):
            if len(lines):
                yield readers.of(shard).batch(lines.numbers(0, min(_COMPARED, len(lines))))
        readers.close()
