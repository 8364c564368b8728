"""`NearDuplicates`: a stage that drops near-duplicates in one pass.

    for batch in NearDuplicates(0.8)(read("00.jsonl.zst")):
        ...

A document is dropped if its similarity to an earlier kept document reaches `threshold`. Its candidates are the kept
documents whose MinHash signatures share a whole band with its own, as in `datasketch.MinHashLSH`. The bands are those
that `pilekit dedup` chooses. Each candidate is compared exactly. So every dropped document is similar enough, and at
most 1 % of the pairs at the threshold are missed.

The shingles of all kept documents stay in memory: about 1.7 times their text. For larger corpora use `pilekit dedup`,
which compares in bounded memory and keeps the longest document instead of the first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pilekit.dedup.sketch.bands import Bands, choose_bands
from pilekit.dedup.sketch.minhash import band_keys, permutations, signatures
from pilekit.dedup.sketch.shingles import NGRAM, UInt64, jaccard, shingle_set
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, shortened
from pilekit.pipeline.pipeline import DocumentStage

NUM_PERM = 128
NEWEST = 64
"""A document is compared with this many documents of a band, the newest ones; thousands may share a licence header."""

_PER_DOCUMENT = 160
"""Bytes of an array object and its pointer in a growing list."""
_PER_KEY = 40 + 8
"""Bytes of a Python integer above 2^60, and of a number in `older`."""


@dataclass(frozen=True)
class NearDuplicates(DocumentStage):
    """Drop documents whose similarity (Jaccard, word 5-grams) to an earlier kept document reaches `threshold`.

    threshold   above 0, up to 1
    memory      bytes, about, for the kept documents; `PilekitError` if they need more

    Each call starts empty. The result depends on the order, so the stage is for one process that reads the corpus in
    order. `PileStream` reads in another order and on many ranks, so it takes the folder of `pilekit dedup` as `dedup=`.
    """

    threshold: float = 0.8
    memory: int = 4_000_000_000

    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, int | float):
            raise PilekitError(f"NearDuplicates: the threshold is a number, not {shortened(repr(self.threshold), 80)}")
        if not isinstance(self.memory, int | float) or not self.memory > 0:
            raise PilekitError(f"NearDuplicates: memory is a number of bytes, not {shortened(repr(self.memory), 80)}")
        choose_bands(self.threshold, NUM_PERM)  # raises for a threshold that is out of range or too low

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents without an earlier near-duplicate; empty batches are dropped."""
        bands = choose_bands(self.threshold, NUM_PERM)
        a, b = permutations(bands.num_perm)
        index = _KeptDocuments(bands, self.threshold)
        for batch in batches:
            data, offsets = batch.utf8()
            keys = band_keys(signatures(data, offsets, NGRAM, a, b), bands.bands, bands.rows)
            is_kept = []
            for document in range(len(batch)):
                text = data[offsets[document] : offsets[document + 1]]
                is_kept.append(index.add(keys[:, document].tolist(), shingle_set(text)))
                if index.bytes > self.memory:
                    raise PilekitError(
                        f"{batch.shard}: document {int(batch.numbers[document]):,}: the {len(index.sets):,} "
                        f"documents kept so far take NearDuplicates more than memory={self.memory:,} bytes; give it "
                        "more, or use `pilekit dedup`, which compares a corpus of any size in bounded memory"
                    )
            documents = batch.where(is_kept)
            if len(documents):
                yield documents


class _KeptDocuments:
    """The kept documents.

    sets     the shingles of each
    newest   band key -> the newest document with it
    older    at [document x bands + band], the newest document before it with the same key; -1: none

    So `newest` and then `older` lead from a key to all documents that have it, the newest first.
    """

    def __init__(self, bands: Bands, threshold: float) -> None:
        self.bands, self.threshold = bands.bands, threshold
        self.sets: list[UInt64] = []
        self.newest: dict[int, int] = {}
        self.older: list[int] = []
        self._set_bytes = 0

    @property
    def bytes(self) -> int:
        """Memory taken, about."""
        fixed = len(self.sets) * (_PER_DOCUMENT + self.bands * _PER_KEY)
        return self._set_bytes + fixed + sys.getsizeof(self.newest)

    def add(self, keys: list[int], shingles: UInt64) -> bool:
        """Keep a document unless it is similar to a kept one; returns whether it is kept."""
        for document in self._candidates(keys):
            smaller, larger = sorted((len(self.sets[document]), len(shingles)))
            if smaller / larger >= self.threshold and jaccard(self.sets[document], shingles) >= self.threshold:
                return False
        document = len(self.sets)
        self.sets.append(shingles)
        self._set_bytes += shingles.nbytes
        for key in keys:
            self.older.append(self.newest.get(key, -1))
            self.newest[key] = document
        return True

    def _candidates(self, keys: list[int]) -> set[int]:
        """The newest documents of each band that have the band's key."""
        documents: set[int] = set()
        for band, key in enumerate(keys):
            document = self.newest.get(key, -1)
            for _ in range(NEWEST):
                if document < 0:
                    break
                documents.add(document)
                document = self.older[document * self.bands + band]
        return documents
