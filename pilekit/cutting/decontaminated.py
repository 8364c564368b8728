"""`Decontaminated`: a stage that drops the documents in which `pilekit decontaminate` found a span."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from pilekit.artifacts.header import Header, read_header
from pilekit.cutting.cut_shards import spans_of
from pilekit.cutting.decontaminate import KIND
from pilekit.cutting.hits import HITS
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.pipeline.pipeline import DocumentStage


@dataclass(frozen=True)
class Decontaminated(DocumentStage):
    """Drop the documents that have a span in `folder`, the output of `pilekit decontaminate`, even with `--no-write`.

    PilekitError for a folder that is not finished; while running, for a shard that was not searched there.
    """

    folder: str | Path

    def __post_init__(self) -> None:
        self._header()

    @property
    def identity(self) -> str:
        """A hash of the run's parameters, shards and evaluations."""
        header = self._header()
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode([header.parameters, header.inputs], order="sorted"))

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents without a span; empty batches are dropped."""
        found: dict[str, dict[int, list[tuple[int, int]]]] = {}
        searched = self._header().inputs
        for batch in batches:
            if batch.shard not in searched:
                raise PilekitError(
                    f"{visible(batch.shard)}: was not searched in {visible(str(self.folder))}; names are relative to "
                    "the corpus: read it from the same folder, or run `pilekit decontaminate` on it"
                )
            if batch.shard not in found:
                found[batch.shard] = dict(spans_of(Path(self.folder) / HITS, batch.shard))
            spans = found[batch.shard]
            keep = [number not in spans for number in batch.numbers.tolist()]
            for index, kept in enumerate(keep):
                if not kept and index not in batch.edited:
                    end = spans[int(batch.numbers[index])][-1][1]
                    if end > len(batch.texts[index]):
                        raise PilekitError(
                            f"{visible(batch.shard)}: document {int(batch.numbers[index]):,} is not the one that was "
                            f"searched in {visible(str(self.folder))}: this is another shard of the same name"
                        )
            kept_batch = batch.where(keep)
            if len(kept_batch):
                yield kept_batch

    def _header(self) -> Header:
        header = read_header(self.folder, KIND)
        if not header.finished:
            shown = visible(str(self.folder))
            raise PilekitError(f"{shown}: is not finished; run the same `pilekit decontaminate` again to resume it")
        return header
