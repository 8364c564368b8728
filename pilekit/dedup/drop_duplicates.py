"""`DropDuplicates`: a stage that passes the documents that `pilekit dedup` kept, without clean shards.

    pipeline = Pipeline([DropDuplicates("unique"), Tokenize(tokenizer)])

Keep masks find documents by shard name and number. Another shard of the same name (a selection, whose
documents have other numbers) would lose the wrong documents. So the texts of each shard's first batch are compared with
the hashes in its sketch, except texts that an earlier stage changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import xxhash

from pilekit.dedup.previous_runs import MASKS, SKETCHES, finished_header, identity_of
from pilekit.dedup.sketch.sketch_format import SUFFIX as SKETCH_SUFFIX
from pilekit.dedup.sketch.sketch_format import load_sketch
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, counted, visible
from pilekit.pipeline.pipeline import DocumentStage
from pilekit.shards.keep_mask import SUFFIX as MASK_SUFFIX
from pilekit.shards.keep_mask import KeepMask, read_mask

HELD_MASKS = 16
"""The most recently used masks stay in memory. A mask of 7 million documents takes 0.9 MB."""


@dataclass(frozen=True)
class DropDuplicates(DocumentStage):
    """Keep the documents that `pilekit dedup --out folder`, or `dedup_corpus`, kept.

    PilekitError for a folder without a finished dedup; while running, for a shard that was not deduplicated there, and
    for a document that differs from the deduplicated document of its number.
    """

    folder: str | Path

    def __post_init__(self) -> None:
        finished_header(self.folder)

    @property
    def identity(self) -> str:
        """A hash of the run's parameters and shards."""
        return identity_of(finished_header(self.folder))

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The kept documents; empty batches are dropped."""
        mask_of = lru_cache(HELD_MASKS)(self.mask)
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
            kept = batch.where(mask.keeps(batch.numbers))
            if len(kept):
                yield kept

    def mask(self, shard: str) -> KeepMask:
        """The keep mask of the shard of this name."""
        names = finished_header(self.folder).inputs
        if shard not in names:
            some = ", ".join(visible(name) for name in list(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise PilekitError(
                f"{shard}: was not deduplicated in {self.folder}, which has {some}; names are "
                "relative to the corpus: read it from the same folder, or run `pilekit dedup` on it"
            )
        mask = read_mask(Path(self.folder) / MASKS / f"{shard}{MASK_SUFFIX}")
        if [mask.header.shard, mask.header.size, mask.header.sample] != [shard, *names[shard]]:
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
                known = int(rows["hash_high"][row]) << 64 | int(rows["hash_low"][row])
                if index not in batch.edited and xxhash.xxh3_128_intdigest(batch.texts[index].encode()) != known:
                    raise PilekitError(
                        f"{batch.shard}: document {int(batch.numbers[index]):,} is not the one that was "
                        f"deduplicated in {self.folder}: this is another shard of the same name; run "
                        "`pilekit dedup` on it"
                    )
            if rows["number"][-1] >= batch.numbers[-1]:
                break

    def _shown_mask(self, shard: str) -> str:
        return visible(Path(self.folder) / MASKS / f"{shard}{MASK_SUFFIX}")
