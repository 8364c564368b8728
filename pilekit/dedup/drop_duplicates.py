"""`DropDuplicates`: a stage that passes the documents that `pilekit dedup` kept, without clean shards.

    pipeline = Pipeline([DropDuplicates("unique"), Tokenize(tokenizer)])

Keep masks find documents by shard name and number. So the texts of each shard's first batch are compared with the
hashes in its sketch, except texts that an earlier stage changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import xxhash

from pilekit.dedup.previous_runs import COMMAND, KIND, MASKS, SKETCHES
from pilekit.dedup.sketch.sketch_format import SUFFIX as SKETCH_SUFFIX
from pilekit.dedup.sketch.sketch_format import load_sketch
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, counted
from pilekit.pipeline.finished_run import FinishedRunStage
from pilekit.shards.keep_mask import SUFFIX as MASK_SUFFIX
from pilekit.shards.keep_mask import KeepMask, read_mask


@dataclass(frozen=True)
class DropDuplicates(FinishedRunStage):
    """Keep the documents that `pilekit dedup --out folder`, or `dedup_corpus`, kept.

    PilekitError for a folder without a finished dedup; while running, for a shard that was not deduplicated there, and
    for a document that differs from the deduplicated document of its number.
    """

    kind, command, verb = KIND, COMMAND, "deduplicated"
    masks_in_memory: ClassVar[int] = 16
    """The most recently used masks stay in memory. A mask of 7 million documents takes 0.9 MB."""

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The kept documents; empty batches are dropped."""
        mask_of = lru_cache(self.masks_in_memory)(self.mask)
        for batch in batches:
            if not len(batch):
                continue
            read = mask_of.cache_info().misses
            mask = mask_of(batch.shard)
            if mask_of.cache_info().misses > read:
                self._compare_texts(batch)
            last = int(batch.numbers[-1])
            if last >= mask.header.lines:
                raise PilekitError(
                    f"{batch.shard}: has a document {last:,}, but {self._shown_mask(batch.shard)} is of a "
                    f"shard with {counted(mask.header.lines, 'line')}; run `pilekit dedup` on this one"
                )
            documents = batch.where(mask.keeps(batch.numbers))
            if len(documents):
                yield documents

    def mask(self, shard: str) -> KeepMask:
        """The keep mask of the shard of this name."""
        self._check_shard(shard)
        mask = read_mask(Path(self.folder) / MASKS / f"{shard}{MASK_SUFFIX}")
        if [mask.header.shard, mask.header.size, mask.header.sample] != [shard, *self._header().inputs[shard]]:
            raise PilekitError(f"{self._shown_mask(shard)}: belongs to another shard; run `pilekit dedup` again")
        return mask

    def _compare_texts(self, batch: DocumentBatch) -> None:
        """Raise PilekitError if a document differs from its sketch. Without a sketch nothing is checked."""
        path = Path(self.folder) / SKETCHES / f"{batch.shard}{SKETCH_SUFFIX}"
        if not path.exists():
            return
        for rows in load_sketch(path).chunks(["number", "hash_high", "hash_low"]):
            _, here, there = np.intersect1d(batch.numbers, rows["number"], assume_unique=True, return_indices=True)
            for index, row in zip(here.tolist(), there.tolist(), strict=True):
                sketched = int(rows["hash_high"][row]) << 64 | int(rows["hash_low"][row])
                if index not in batch.edited and xxhash.xxh3_128_intdigest(batch.texts[index].encode()) != sketched:
                    raise self._another_shard(batch.shard, int(batch.numbers[index]))
            if rows["number"][-1] >= batch.numbers[-1]:
                break

    def _shown_mask(self, shard: str) -> str:
        return str(Path(self.folder) / MASKS / f"{shard}{MASK_SUFFIX}")
