"""A bounded, seeded sample of a corpus's text, spread over its shards.

Every shard offers its documents, from the first one on, until they come to eight times its share of the wanted bytes
(shares go by stored size; what a shard leaves over goes to the ones after it). Of all that is offered, the documents
with the smallest hash of (seed, shard name, document number) make the sample, until it has the wanted bytes.

So a small corpus is sampled evenly from end to end, and of thirty shards of 43 GB each only the first per cent is read.
Released Pile shards are shuffled, so their starts are like the rest. Memory is the sample itself. The result depends on
the shards, the subsets and the seed alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pilekit.corpus import Corpus
from pilekit.pipeline import document_hashes
from pilekit.shards.read.reader import read

OFFERED_PER_BYTE = 8
"""Text looked at for each byte of the sample: enough to spread it, few enough to be read in seconds."""


@dataclass(frozen=True, slots=True)
class SampledDocument:
    """A document of the sample: its text in UTF-8 and its subset."""

    text: bytes
    subset: str


def sample_documents(
    corpus: Corpus,
    wanted: int,
    *,
    subsets: Sequence[str] | None = None,
    seed: int = 0,
    advance: Callable[[int], None] | None = None,
) -> list[SampledDocument]:
    """About `wanted` bytes of documents of `subsets` (exact names; None: all), in the order of their hashes.

    The last document is whole, so the sample may be longer by less than that one; it is all there is where the corpus
    is smaller. `advance` is told of stored bytes, in the end of as many as the shards have.
    """
    shards = corpus.shards
    sizes = [shard.size or 0 for shard in shards]
    # A heap with the largest hash on top (so hashes are negated); the identity after it makes every entry distinct.
    heap: list[tuple[int, str, int, SampledDocument]] = []
    held = 0
    to_offer = wanted * OFFERED_PER_BYTE
    for place, shard in enumerate(shards):
        rest = sum(sizes[place:])
        limit = to_offer * sizes[place] // rest if rest else to_offer // (len(shards) - place)
        offered = 0
        stored = _Told(advance)
        with read(shard, subsets, manifest=corpus.manifest, advance=stored) as batches:
            for batch in batches:
                hashes = document_hashes(batch.shard, batch.numbers, seed).tolist()
                offered += int(batch.text_bytes().sum())
                for index, value in enumerate(hashes):
                    if (held >= wanted and value > -heap[0][0]) or not batch.texts[index]:
                        continue
                    document = SampledDocument(batch.texts[index].encode(), batch.subsets[index])
                    heapq.heappush(heap, (-value, batch.shard, int(batch.numbers[index]), document))
                    held += len(document.text)
                    while held - len(heap[0][3].text) >= wanted:
                        held -= len(heapq.heappop(heap)[3].text)
                if offered >= limit:
                    break
        stored.rest_of(sizes[place])
        to_offer = max(0, to_offer - offered)
    return [entry[3] for entry in sorted(heap, key=lambda entry: (-entry[0], entry[1], entry[2]))]


class _Told:
    """Passes stored bytes on to `advance`, and at the end tells of those that a shard left early was spared."""

    def __init__(self, advance: Callable[[int], None] | None) -> None:
        self._advance = advance
        self._told = 0

    def __call__(self, amount: int) -> None:
        self._told += amount
        if self._advance is not None:
            self._advance(amount)

    def rest_of(self, size: int) -> None:
        """Tell of what is missing to `size`."""
        if size > self._told:
            self(size - self._told)
