"""`find_copies`: the documents of a corpus that are exact or near copies of given documents, all pairs, in one pass.

Copies are what they are for `dedup`: equal texts, and texts whose sets of word 5-grams are similar (Jaccard) to 0.8 or
more. But `dedup` looks for one reason to remove a document: the most similar one that it keeps, of either corpus. Here
all pairs of a given document and its copies are found, none by chance.

Two sets of hashes that each share 80 % with the other have their smallest common hash among the smallest 20 % of each,
and one. So the smallest hashes of the given documents are sorted, and a document of the corpus is compared, exactly,
with those given documents that have one of its own. The arrays are files that all processes map, about 11 bytes for
each word of the given documents.

Of given documents with one text, the first stands for all.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from pilekit.artifacts.folders import cache_folder, make_folder
from pilekit.corpus import Corpus, Manifest, Shard
from pilekit.dedup.resolve import least_shared
from pilekit.dedup.sketch.shingles import NGRAM, Int64, UInt64, shared_if_enough, shingle_sets
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.shards.corpus_job import CorpusJob, Share, await_files
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import OnError, read
from pilekit.workers import Advance

THRESHOLD = 0.8
"""The least similarity of near copies: the default of `dedup`."""

_ARRAYS = ("values", "begins", "texts", "keys", "owners")


class FoundCopy(NamedTuple):
    """A document of the corpus, the given document that it is a copy of, their similarity, "exact" or "near"."""

    shard: str
    number: int
    original: tuple[str, int]
    similarity: float
    reason: str


@dataclass
class CopySearch:
    """What a search has read, and what it found.

    copies       in the order of the given documents; of one the most similar first
    originals    the number of given documents
    copied       of those of which there is a copy
    documents    of documents of the corpus
    skipped      bad lines, of the given documents too
    """

    copies: list[FoundCopy] = field(default_factory=list)
    originals: int = 0
    copied: int = 0
    documents: int = 0
    skipped: SkippedLines = field(default_factory=SkippedLines)


def find_copies(originals: Corpus, job: CorpusJob, threshold: float = THRESHOLD) -> CopySearch:
    """Find all copies of given documents in the corpus of a job. PilekitError if no document is given.

    originals   the given documents
    threshold   the least similarity, above 0
    """
    search = CopySearch()
    if (shared := None if job.cluster is None else cache_folder()) is not None:
        make_folder(shared)
    with tempfile.TemporaryDirectory(prefix="pilekit-copies-", dir=shared) as name:
        folder = Path(name)
        places, counts = _write_originals(folder, originals, job, threshold, search)
        job = job.step("comparing", job.corpus.size or 0)
        manifest = job.corpus.manifest
        compare = functools.partial(
            _compare_shard, folder=folder, threshold=threshold, on_error=job.on_error, manifest=manifest
        )
        pairs = []
        with closing(job.each(compare, job.shards)) as results:
            for place, (of_shard, documents, skipped) in enumerate(results):
                search.documents += documents
                search.skipped.merge(skipped)
                pairs += [(pair.original, -pair.similarity, place, pair.number, pair.is_exact) for pair in of_shard]
    _originals_in.cache_clear()  # Mapped files keep their space after they are removed.
    for original, similarity, place, number, is_exact in sorted(pairs):
        reason = "exact" if is_exact else "near"
        search.copies.append(FoundCopy(job.shards[place].name, number, places[original], -similarity, reason))
    search.copied = sum(counts[original] for original in {pair[0] for pair in pairs})
    return search


def _write_originals(
    folder: Path, originals: Corpus, job: CorpusJob, threshold: float, search: CopySearch
) -> tuple[list[tuple[str, int]], list[int]]:
    """Write the arrays of the distinct texts; returns the first document of each, and how many have it."""
    places: list[tuple[str, int]] = []
    counts: list[int] = []
    text_of: dict[bytes, int] = {}
    begins, keys, owners = [0], [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    advance = job.step("reading", originals.size or 0).advance
    with (
        (folder / "values").open("wb") as values,
        read(originals, None, job.on_error, advance=advance) as reader,
    ):
        for batch in reader:
            is_new = []
            for number, text in zip(batch.numbers.tolist(), batch.texts, strict=True):
                hash = xxhash.xxh3_128_digest(text.encode())
                is_new.append(hash not in text_of)
                if is_new[-1]:
                    text_of[hash] = len(places)
                    places.append((batch.shard, number))
                    counts.append(0)
                counts[text_of[hash]] += 1
            sets = shingle_sets(*batch.where(is_new).utf8(), NGRAM)
            sets.values.tofile(values)
            at, documents = _smallest(sets.sizes, threshold)
            keys.append(sets.values[at])
            owners.append(documents + len(begins) - 1)
            begins += (begins[-1] + np.cumsum(sets.sizes)).tolist()
        search.skipped.merge(reader.skipped)
    search.originals = sum(counts)
    if not counts:
        raise PilekitError(f"{originals.root}: holds no document; name shards with some")
    order = np.argsort(all_keys := np.concatenate(keys), kind="stable")
    arrays = {
        "begins": np.array(begins),
        "texts": np.frombuffer(b"".join(text_of), np.uint8).reshape(-1, 16),
        "keys": all_keys[order],
        "owners": np.concatenate(owners)[order],
    }
    for name, array in arrays.items():
        with (folder / name).open("wb") as file:
            np.save(file, array)
    return places, counts


def _smallest(sizes: Int64, threshold: float) -> tuple[Int64, Int64]:
    """(places in the values, documents) of the smallest hashes of each set, of which similar sets share one.

    Similar sets share at least `threshold` of each. So of a set of n hashes, at most n - threshold * n are smaller than
    the smallest common one.
    """
    counts = np.minimum(sizes, sizes - (threshold * sizes).astype(np.int64) + 1)
    documents = np.repeat(np.arange(len(sizes)), counts)
    return _runs(np.cumsum(sizes) - sizes, counts), documents


def _runs(begins: Int64, counts: Int64) -> Int64:
    """`counts` successive numbers from each of the `begins` on."""
    numbers: Int64 = np.arange(counts.sum()) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
    return numbers


class _Pair(NamedTuple):
    number: int
    original: int
    similarity: float
    is_exact: bool


class _Originals:
    """The mapped arrays of the given documents.

    values, begins   their sets, one after the other, uint64, and where each begins, int64 [documents + 1]
    texts            the xxh3_128 of each text, uint8 [documents, 16]
    keys, owners     the smallest hashes of all sets, sorted, uint64, and the document that each is of, int64
    """

    def __init__(self, folder: Path) -> None:
        self.values: UInt64 = np.asarray(np.memmap(folder / "values", np.uint64, "r"))
        self.begins, self.texts, self.keys, self.owners = (np.load(folder / name, "r") for name in _ARRAYS[1:])

    def copies(self, batch: DocumentBatch, threshold: float) -> Iterator[_Pair]:
        """The pairs of a document of the batch and a given one."""
        sets = shingle_sets(*batch.utf8(), NGRAM)
        begins = np.cumsum(sets.sizes) - sets.sizes
        at, documents = _smallest(sets.sizes, threshold)
        hashes = sets.values[at]
        first = np.searchsorted(self.keys, hashes)
        is_known = self.keys[np.minimum(first, len(self.keys) - 1)] == hashes
        hashes, first, documents = hashes[is_known], first[is_known], documents[is_known]
        counts = np.searchsorted(self.keys, hashes, "right") - first
        of_batch, given = np.repeat(documents, counts), self.owners[_runs(first, counts)]
        for document, original in np.unique(np.stack([of_batch, given]), axis=1).T.tolist():
            mine = sets.values[begins[document] : begins[document] + sets.sizes[document]]
            theirs = np.array(self.values[self.begins[original] : self.begins[original + 1]])
            enough = least_shared(len(mine), len(theirs), threshold)
            if enough <= min(len(mine), len(theirs)) and (shared := shared_if_enough(mine, theirs, enough)) >= 0:
                similarity = shared / (len(mine) + len(theirs) - shared)
                text = xxhash.xxh3_128_digest(batch.texts[document].encode()) if similarity == 1 else b""
                is_exact = text == self.texts[original].tobytes()
                yield _Pair(int(batch.numbers[document]), original, similarity, is_exact)


@functools.lru_cache(1)
def _originals_in(folder: Path) -> _Originals:
    await_files(folder / name for name in _ARRAYS)
    return _Originals(folder)


def _compare_shard(
    shard: Shard,
    advance: Advance,
    *,
    folder: Path,
    threshold: float,
    on_error: OnError,
    manifest: Manifest,
    share: Share,
) -> tuple[list[_Pair], int, SkippedLines]:
    """The pairs of a shard, and its documents and bad lines."""
    originals, pairs, documents = _originals_in(folder), list[_Pair](), 0
    with read(shard, None, on_error, manifest=manifest, advance=advance, ahead=share.ahead) as reader:
        for batch in reader:
            documents += len(batch)
            pairs += originals.copies(batch, threshold)
    return pairs, documents, reader.skipped
