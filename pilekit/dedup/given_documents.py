"""`GivenDocuments`: the shingle sets of the documents of which copies are sought, in files that all processes map.

Two sets of hashes that each share 80 % with the other have their smallest common hash among the smallest 20 % of each,
and one. So the smallest hashes of the given documents are sorted, and a document of the corpus is compared, exactly,
with those given documents that have one of its own. The files take about 11 bytes for each word of the given documents.

However many given documents have a hash, a document is compared with each of them once, and that takes memory for each
given document, not for each pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.dedup.resolve import least_shared
from pilekit.dedup.sketch.shingles import NGRAM, Int64, UInt64, shared_if_enough, shingle_sets
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.shards.corpus_job import await_files
from pilekit.workers.kernels import compiled

Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]

PAIR = np.dtype([("original", "i4"), ("number", "i8"), ("similarity", "f8"), ("is_exact", "?")])
"""A given document, and the number of a document that is its copy."""
PLACE = np.dtype([("shard", "i4"), ("number", "i8"), ("documents", "i8")])
"""The first document that has a text, and how many have it."""

_ARRAYS = ("places", "begins", "texts", "keys", "owners")
FILES = ("values", *(f"{name}.npy" for name in _ARRAYS))


class GivenDocuments:
    """The arrays that `write_given` wrote into a folder. A document is a distinct text.

    values, begins   the sets, one after the other, uint64, and where each begins, int64 [documents + 1]
    places           a `PLACE` for each
    texts            the xxh3_128 of each text, uint8 [documents, 16]
    keys, owners     the smallest hashes of all sets, sorted, uint64, and the document that each is of, int32
    """

    def __init__(self, folder: Path) -> None:
        await_files(folder / name for name in FILES)
        self.values: UInt64 = np.memmap(folder / "values", np.uint64, "r").view(np.ndarray)
        arrays = (np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in _ARRAYS)
        self.places, self.begins, self.texts, self.keys, self.owners = arrays
        self._last, self._compared = np.full(len(self.texts), -1, np.int64), 0
        self._found: tuple[Int32, Float64] = np.empty(len(self.texts), np.int32), np.empty(len(self.texts))

    def copies(self, batch: DocumentBatch, threshold: float) -> Iterator[npt.NDArray[np.void]]:
        """The `PAIR`s of each document of the batch that is a copy, in no order."""
        sets = shingle_sets(*batch.utf8(), NGRAM)
        begins = np.append(0, np.cumsum(sets.sizes))
        at, documents = _smallest(sets.sizes, threshold)
        hashes = sets.values[at]
        first = np.searchsorted(self.keys, hashes)
        is_known = self.keys[np.minimum(first, len(self.keys) - 1)] == hashes
        first, behind = first[is_known], np.searchsorted(self.keys, hashes[is_known], "right")
        chosen, begin = np.unique(documents[is_known], return_index=True)
        arrays, (originals, similarities) = (self.values, self.begins, self.owners), self._found
        ends = np.append(begin, len(first))[1:]
        for document, start, stop in zip(chosen.tolist(), begin.tolist(), ends.tolist(), strict=True):
            mine = sets.values[begins[document] : begins[document + 1]]
            lists = first[start:stop], behind[start:stop]
            count = _compare(mine, lists, arrays, threshold, self._last, self._compared, self._found)
            self._compared += 1
            if count:
                pairs = np.empty(count, PAIR)
                pairs["original"], pairs["number"] = originals[:count], batch.numbers[document]
                pairs["similarity"] = similarities[:count]
                text = np.frombuffer(xxhash.xxh3_128_digest(batch.texts[document].encode()), np.uint8)
                pairs["is_exact"] = (self.texts[originals[:count]] == text).all(axis=1)
                yield pairs


def write_given(
    batches: Iterable[DocumentBatch], folder: Path, threshold: float, root: str
) -> tuple[list[Path], list[str]]:
    """Write the arrays of documents; returns the files, and the names of the shards.

    threshold   the least similarity that is asked for, above 0
    root        where the documents are; PilekitError if there are none
    """
    places, shards, text_of = list[tuple[int, int, int]](), dict[str, int](), dict[bytes, int]()
    copies: list[int] = []
    begins, keys, owners = [np.zeros(1, np.int64)], [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)]
    with write_atomically(folder / "values", flushed=False) as file:
        for batch in batches:
            is_new = []
            for number, text in zip(batch.numbers.tolist(), batch.texts, strict=True):
                document = text_of.setdefault(xxhash.xxh3_128_digest(text.encode()), len(places))
                is_new.append(document == len(places))
                if is_new[-1]:
                    places.append((shards.setdefault(batch.shard, len(shards)), number, 0))
                    copies.append(0)
                copies[document] += 1
            sets = shingle_sets(*batch.where(is_new).utf8(), NGRAM)
            file.write(sets.values.data)
            at, documents = _smallest(sets.sizes, threshold)
            keys.append(sets.values[at])
            owners.append((documents + len(places) - len(sets.sizes)).astype(np.int32))
            begins.append(begins[-1][-1] + np.cumsum(sets.sizes))
        if not places:
            raise PilekitError(f"{root}: holds no document; name shards with some")
    order = np.argsort(all_keys := np.concatenate(keys), kind="stable")
    of_texts = np.array(places, PLACE)
    of_texts["documents"] = copies
    arrays = {
        "places": of_texts,
        "begins": np.concatenate(begins),
        "texts": np.frombuffer(b"".join(text_of), np.uint8).reshape(-1, 16),
        "keys": all_keys[order],
        "owners": np.concatenate(owners)[order],
    }
    for name, array in arrays.items():
        with write_atomically(folder / f"{name}.npy", flushed=False) as file:
            np.save(file, array)
    return [folder / name for name in FILES], list(shards)


def _smallest(sizes: Int64, threshold: float) -> tuple[Int64, Int64]:
    """(places in the values, documents) of the smallest hashes of each set, of which similar sets share one.

    Similar sets share at least `threshold` of each. So of a set of n hashes, at most n - threshold * n are smaller than
    the smallest common one.
    """
    counts = np.minimum(sizes, sizes - (threshold * sizes).astype(np.int64) + 1)
    begins = np.cumsum(sizes) - sizes
    places: Int64 = np.arange(counts.sum()) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
    return places, np.repeat(np.arange(len(sizes)), counts)


@compiled()
def _compare(
    mine: UInt64,
    lists: tuple[Int64, Int64],
    arrays: tuple[UInt64, Int64, Int32],
    threshold: float,
    last: Int64,
    document: int,
    found: tuple[Int32, Float64],
) -> int:
    """Write the given documents that are similar to a set, and their similarities; returns their number.

    lists    the begin and the end in `owners` of each known hash of the set
    arrays   values, begins, owners of the given documents
    last     the last document that each given one was compared with; this one has the number `document`
    """
    values, begins, owners = arrays
    count = 0
    for i in range(len(lists[0])):
        for place in range(lists[0][i], lists[1][i]):
            original = owners[place]
            if last[original] == document:
                continue
            last[original] = document
            theirs = values[begins[original] : begins[original + 1]]
            smaller = min(len(mine), len(theirs))
            if smaller < np.int64(threshold * max(len(mine), len(theirs))):
                continue
            enough = least_shared(len(mine), len(theirs), threshold)
            shared = shared_if_enough(mine, theirs, enough) if enough <= smaller else -1
            if shared >= 0:
                found[0][count], found[1][count] = original, shared / (len(mine) + len(theirs) - shared)
                count += 1
    return count
