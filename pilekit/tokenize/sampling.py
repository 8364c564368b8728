"""A bounded, seeded sample of a corpus's text, spread over its shards.

Each shard offers its first documents, up to eight times its share of the wanted bytes. Shares follow the shards' stored
sizes, and later shards get the bytes that a shard does not use. The sample takes the offered documents with the
smallest hash of (seed, shard name, document number), until it has the wanted bytes.

So a small corpus is sampled evenly. Of thirty shards of 43 GB each, only the first per cent is read. That is enough,
because released Pile shards are shuffled. Only the sample is in memory. The result depends only on the shards, the
subsets, the wanted bytes and the seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from pilekit.corpus import Corpus
from pilekit.pipeline.stages import document_hashes
from pilekit.shards.read.reader import read

OFFERED_PER_BYTE = 8
"""Bytes of text that are read for each byte of the sample."""


def sample_by_hash(
    corpus: Corpus,
    wanted: int,
    *,
    subsets: Sequence[str] | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda stored: None,
) -> list[bytes]:
    """Documents' texts in UTF-8, about `wanted` bytes, of `subsets` (exact names; None: all), ordered by their hashes.

    The last document is not cut, so the sample may be longer by part of it. `advance` is called with numbers of stored
    bytes, which add up to the size of the shards.
    """
    shards = corpus.shards
    sizes = [shard.size or 0 for shard in shards]
    # A heap with the largest hash on top, hence negated. Shard and number make every entry distinct.
    heap: list[tuple[int, str, int, bytes]] = []
    held = 0
    to_offer = wanted * OFFERED_PER_BYTE
    for place, shard in enumerate(shards):
        rest = sum(sizes[place:])
        limit = to_offer * sizes[place] // rest if rest else to_offer // (len(shards) - place)
        offered = told = 0

        def tell(stored: int) -> None:
            nonlocal told
            told += stored
            advance(stored)

        with read(shard, subsets, manifest=corpus.manifest, advance=tell) as batches:
            for batch in batches:
                hashes = document_hashes(batch.shard, batch.numbers, seed).tolist()
                offered += int(batch.text_bytes().sum())
                for index, value in enumerate(hashes):
                    if (held >= wanted and value > -heap[0][0]) or not batch.texts[index]:
                        continue
                    text = batch.texts[index].encode()
                    heapq.heappush(heap, (-value, batch.shard, int(batch.numbers[index]), text))
                    held += len(text)
                    while held - len(heap[0][3]) >= wanted:
                        held -= len(heapq.heappop(heap)[3])
                if offered >= limit:
                    break
        advance(max(0, sizes[place] - told))  # the part that was not read
        to_offer = max(0, to_offer - offered)
    return [entry[3] for entry in sorted(heap, key=lambda entry: (-entry[0], entry[1], entry[2]))]
