"""`Decontaminated`: a stage that drops the documents in which `pilekit decontaminate` found a span."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pilekit.artifacts.header import Header, finished_header
from pilekit.cutting.cut_shards import spans_of
from pilekit.cutting.decontaminate import KIND
from pilekit.cutting.hits import HITS
from pilekit.dedup.previous_runs import identity_of
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
        return identity_of(self._header())

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents without a span; empty batches are dropped."""
        found: dict[str, dict[int, list[tuple[int, int]]]] = {}
        searched = self._header().inputs
        for batch in batches:
            if batch.shard not in searched:
                raise PilekitError(
                    f"{visible(batch.shard)}: was not searched in {visible(self.folder)}; names are relative to "
                    "the corpus: read it from the same folder, or run `pilekit decontaminate` on it"
                )
            if batch.shard not in found:
                found[batch.shard] = dict(spans_of(Path(self.folder) / HITS, batch.shard))
            spans = found[batch.shard]
            for index, number in enumerate(batch.numbers.tolist()):
                if number in spans and index not in batch.edited and spans[number][-1][1] > len(batch.texts[index]):
                    raise PilekitError(
                        f"{visible(batch.shard)}: document {number:,} is not the one that was searched in "
                        f"{visible(self.folder)}: this is another shard of the same name"
                    )
            kept_batch = batch.where([number not in spans for number in batch.numbers.tolist()])
            if len(kept_batch):
                yield kept_batch

    def _header(self) -> Header:
        return finished_header(self.folder, KIND, "pilekit decontaminate")
