"""`Deduplicated`: the documents that `pilekit dedup` kept, of shards it read; nothing is rewritten for that.

    pipeline = Pipeline([Deduplicated(KIND), Tokenize(tokenizer)])

A batch knows the name of its shard and the numbers of its documents, and that is what the keep masks go by. Another
shard of the same name would lose the wrong documents: a selection, for one, is numbered anew. So the texts of the first
batch of each shard are compared with the hashes in its sketch, but for those that a stage before has changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from pilekit.artifacts.header import read_header
from pilekit.dedup.previous_runs import KIND, MASKS, SKETCHES, check_finished
from pilekit.dedup.sketch.sketch_format import SUFFIX as SKETCH_SUFFIX
from pilekit.dedup.sketch.sketch_format import load_sketch
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.pipeline.pipeline import DocumentStage
from pilekit.shards.keep_mask import SUFFIX as MASK_SUFFIX
from pilekit.shards.keep_mask import KeepMask, read_mask

HELD_MASKS = 16
"""So many are in memory at once, those used last; one of 7 million documents takes 0.9 MB."""


@dataclass(frozen=True)
class Deduplicated(DocumentStage):
    """Keep the documents that `pilekit dedup --out folder`, or `deduplicate`, kept.

    PilekitError, when it is made, for a folder that holds no finished dedup; when it runs, for a shard that was not
    read there, by its name, and for a document that is not the one of that number there.
    """

    folder: str | Path

    def __post_init__(self) -> None:
        check_finished(self.folder, read_header(self.folder, KIND))

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents kept; batches without any are dropped."""
        names = read_header(self.folder, KIND).inputs
        masks: OrderedDict[str, KeepMask] = OrderedDict()
        for batch in batches:
            if not len(batch):
                continue
            if batch.shard not in masks:
                masks[batch.shard] = self._mask(batch.shard, names)
                self._compare_texts(batch)
                if len(masks) > HELD_MASKS:
                    masks.popitem(last=False)
            masks.move_to_end(batch.shard)
            mask = masks[batch.shard]
            last = int(batch.numbers[-1])
            if last >= mask.header.lines:
                raise PilekitError(
                    f"{visible(batch.shard)}: has a document {last:,}, but {self._file(MASKS, batch.shard)} is of a "
                    f"shard with {mask.header.lines:,} lines; run `pilekit dedup` on this one"
                )
            kept = batch.where(mask.keeps(batch.numbers))
            if len(kept):
                yield kept

    def mask(self, shard: str) -> KeepMask:
        """The keep mask of the shard of this name."""
        return self._mask(shard, read_header(self.folder, KIND).inputs)

    def _mask(self, shard: str, names: dict[str, list[object]]) -> KeepMask:
        if shard not in names:
            some = ", ".join(visible(name) for name in list(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise PilekitError(
                f"{visible(shard)}: was not deduplicated in {visible(str(self.folder))}, which has {some}; names are "
                "relative to the corpus: read it from the same folder, or run `pilekit dedup` on it"
            )
        mask = read_mask(self._path(MASKS, shard))
        if [mask.header.shard, mask.header.size, mask.header.sample] != [shard, *names[shard]]:
            raise PilekitError(f"{self._file(MASKS, shard)}: belongs to another shard; run `pilekit dedup` again")
        return mask

    def _compare_texts(self, batch: DocumentBatch) -> None:
        """Raise PilekitError if a document is another than the one of its number; without a sketch, none is known."""
        path = self._path(SKETCHES, batch.shard)
        if not path.exists():
            return
        for rows in load_sketch(path).chunks(["number", "hash_high", "hash_low"]):
            _, here, there = np.intersect1d(batch.numbers, rows["number"], assume_unique=True, return_indices=True)
            for index, row in zip(here.tolist(), there.tolist(), strict=True):
                known = int(rows["hash_high"][row]) << 64 | int(rows["hash_low"][row])
                if index not in batch.edited and xxhash.xxh3_128_intdigest(batch.texts[index].encode()) != known:
                    raise PilekitError(
                        f"{visible(batch.shard)}: document {int(batch.numbers[index]):,} is not the one that was "
                        f"deduplicated in {visible(str(self.folder))}: this is another shard of the same name; run "
                        "`pilekit dedup` on it"
                    )
            if rows["number"][-1] >= batch.numbers[-1]:
                break

    def _path(self, kind: str, shard: str) -> Path:
        return Path(self.folder) / kind / f"{shard}{MASK_SUFFIX if kind == MASKS else SKETCH_SUFFIX}"

    def _file(self, kind: str, shard: str) -> str:
        return visible(str(self._path(kind, shard)))
