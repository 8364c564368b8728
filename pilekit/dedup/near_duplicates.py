"""`NearDuplicates`: near-duplicates dropped in passing, without a second look at anything.

    for batch in NearDuplicates(0.8)(read("00.jsonl.zst")):
        ...

A document is dropped if an earlier one that was kept is as similar as `threshold`: keep-first. The earlier ones are
found as `datasketch.MinHashLSH` finds them, by signatures that share a whole band, with the bands that `pilekit dedup`
would choose; whoever is found is then compared exactly. So nothing is dropped that is not similar, and of the pairs
right at the threshold 1 % are not found.

What that takes is the shingles of all that was kept, about 1.7 times its text. This is for a corpus that fits: `pilekit
dedup` compares any corpus in bounded memory, and keeps the longest document instead of the first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from pilekit.dedup.sketch.bands import Bands, choose_bands
from pilekit.dedup.sketch.minhash import band_keys, permutations, signatures
from pilekit.dedup.sketch.shingles import NGRAM, UInt64, jaccard, shingle_set
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.pipeline.pipeline import DocumentStage

NUM_PERM = 128
NEWEST = 64
"""With so many documents of a band, the newest ones, a document is compared; thousands may share one licence header."""

_PER_DOCUMENT = 160
"""An array object, and the place of its pointer in a list that grows."""
_PER_KEY = 40 + 8
"""A Python integer above 2^60, and the number in `older`."""


@dataclass(frozen=True)
class NearDuplicates(DocumentStage):
    """Keep the documents that are not as similar as `threshold` (Jaccard, word 5-grams) to an earlier one kept.

    threshold   above 0, up to 1
    memory      bytes, about, that what is remembered of the kept documents may take; more is a `PilekitError`

    Each call of the stage begins with nothing remembered. What passes depends on what passed before, so this is for one
    process that reads the corpus in order. `PileStream`, which reads in another order and on many ranks, takes the
    result of `pilekit dedup`, as its `dedup=`.
    """

    threshold: float = 0.8
    memory: int = 4_000_000_000

    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, int | float):
            raise PilekitError(f"NearDuplicates: the threshold is a number, not {visible(repr(self.threshold), 80)}")
        if not isinstance(self.memory, int | float) or not self.memory > 0:
            raise PilekitError(f"NearDuplicates: memory is a number of bytes, not {visible(repr(self.memory), 80)}")
        choose_bands(self.threshold, NUM_PERM)

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents that no earlier one is like; batches without any are dropped."""
        bands = choose_bands(self.threshold, NUM_PERM)
        a, b = permutations(bands.num_perm)
        kept = _Kept(bands, self.threshold)
        for batch in batches:
            data, offsets = batch.utf8()
            keys = band_keys(signatures(data, offsets, NGRAM, a, b), bands.bands, bands.rows)
            new = []
            for document in range(len(batch)):
                text = data[offsets[document] : offsets[document + 1]]
                new.append(kept.add(keys[:, document].tolist(), shingle_set(text)))
                if kept.bytes > self.memory:
                    raise PilekitError(
                        f"{visible(batch.shard)}: document {int(batch.numbers[document]):,}: to remember the "
                        f"{len(kept.sets):,} documents kept so far takes NearDuplicates more than its memory="
                        f"{self.memory:,} bytes; give it more, or use `pilekit dedup`, which compares a corpus of any "
                        "size in bounded memory"
                    )
            passed = batch.where(new)
            if len(passed):
                yield passed


class _Kept:
    """What is remembered of the documents that were kept.

    sets     the shingles of each
    newest   band key -> the newest document with it
    older    at [document x bands + band], the newest before it that had the same key there; -1: none
    """

    def __init__(self, bands: Bands, threshold: float) -> None:
        self.bands, self.threshold = bands.bands, threshold
        self.sets: list[UInt64] = []
        self.newest: dict[int, int] = {}
        self.older: list[int] = []
        self._set_bytes = 0

    @property
    def bytes(self) -> int:
        """How much memory all this takes."""
        fixed = len(self.sets) * (_PER_DOCUMENT + self.bands * _PER_KEY)
        return self._set_bytes + fixed + sys.getsizeof(self.newest)

    def add(self, keys: list[int], shingles: UInt64) -> bool:
        """Keep a document, and say so, if it is not similar to one that is kept."""
        for document in self._candidates(keys):
            one, other = sorted((len(self.sets[document]), len(shingles)))
            if one / other >= self.threshold and jaccard(self.sets[document], shingles) >= self.threshold:
                return False
        document = len(self.sets)
        self.sets.append(shingles)
        self._set_bytes += shingles.nbytes
        for key in keys:
            self.older.append(self.newest.get(key, -1))
            self.newest[key] = document
        return True

    def _candidates(self, keys: list[int]) -> Iterable[int]:
        found: set[int] = set()
        for band, key in enumerate(keys):
            document = self.newest.get(key, -1)
            for _ in range(NEWEST):
                if document < 0:
                    break
                found.add(document)
                document = self.older[document * self.bands + band]
        return found
