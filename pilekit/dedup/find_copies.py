"""`find_copies`: the documents of a corpus that are exact or near copies of given documents, all pairs, in one pass.

Copies are what they are for `dedup`: equal texts, and texts whose sets of word 5-grams are similar (Jaccard) to 0.8 or
more. But `dedup` looks for one reason to remove a document: the most similar one that it keeps, of either corpus. Here
all pairs of a given document and its copies are found, none by chance (given_documents.py).

Of given documents with one text, the first stands for all. The work is a folder job in the cache folder, so a killed
search resumes. The folder is removed at the end.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.folders import cache_folder, make_folder
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus, Manifest, Shard
from pilekit.dedup.given_documents import PAIR, GivenDocuments, write_given
from pilekit.dedup.sketch.shingles import NGRAM
from pilekit.errors import PilekitError
from pilekit.shards.corpus_job import CorpusJob, Share
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import FolderJob, corpus_folder
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import OnError, read
from pilekit.workers import Advance

THRESHOLD = 0.8
"""The least similarity of near copies: the default of `dedup`."""

_GIVEN, _PAIRS = "/given", "/pairs/"
"""The name of the note about the given documents, and the beginning of those about shards; a change of any input makes
all of them invalid."""
_AT_A_TIME = 1 << 14
"""Pairs that are objects at a time."""


class FoundCopy(NamedTuple):
    """A document of the corpus, the given document that it is a copy of, their similarity, "exact" or "near"."""

    shard: str
    number: int
    original: tuple[str, int]
    similarity: float
    reason: str


@dataclass(frozen=True)
class CopySearch:
    """What a search has read, and the copies it found, which it yields.

    They come in the order of the given documents; of one the most similar first.

    originals      the number of given documents
    copied         of those of which there is a copy
    documents      of documents of the corpus
    skipped        bad lines, of the given documents too
    pairs          a `PAIR` for each copy
    shard          the index in `shards` of the shard of each copy, int32
    places         a `PLACE` for each given text, whose shards are `given_shards`
    """

    originals: int
    copied: int
    documents: int
    skipped: SkippedLines
    pairs: npt.NDArray[np.void] = field(repr=False)
    shard: npt.NDArray[np.int32] = field(repr=False)
    shards: Sequence[str] = field(repr=False)
    places: npt.NDArray[np.void] = field(repr=False)
    given_shards: Sequence[str] = field(repr=False)

    def __iter__(self) -> Iterator[FoundCopy]:
        for begin in range(0, len(self.pairs), _AT_A_TIME):
            some = slice(begin, begin + _AT_A_TIME)
            columns = self.shard[some].tolist(), self.pairs[some].tolist()
            for shard, (original, number, similarity, is_exact) in zip(*columns, strict=True):
                place, of, _ = self.places[original].tolist()
                reason = "exact" if is_exact else "near"
                yield FoundCopy(self.shards[shard], number, (self.given_shards[place], of), similarity, reason)

    def numbers(self) -> dict[str, npt.NDArray[np.int64]]:
        """The distinct documents that are copies: their numbers by shard, ascending."""
        return {
            self.shards[shard]: np.unique(self.pairs["number"][self.shard == shard])
            for shard in np.unique(self.shard).tolist()
        }


def find_copies(originals: Corpus, job: CorpusJob, threshold: float = THRESHOLD) -> CopySearch:
    """Find all copies of given documents in the corpus of a job. PilekitError if no document is given.

    originals   the given documents
    threshold   the least similarity, above 0
    """
    folder = _folder_for([*job.corpus.shards, *originals.shards], threshold)
    try:
        make_folder(folder.parent)
    except OSError as error:
        why = error.strerror or str(error)
        raise PilekitError(
            f"{folder.parent}: cannot be made: {why}; set $PILEKIT_CACHE to a folder of yours"
        ) from error
    parameters, further = {"threshold": threshold, "ngram": NGRAM}, originals.shards
    with corpus_folder(job, folder, kind="copies", parameters=parameters, further_inputs=further) as folder_job:
        output, given = folder_job.output, _written(folder_job, originals, threshold)
        compare = functools.partial(
            _compare_shard, threshold=threshold, on_error=job.on_error, manifest=job.corpus.manifest
        )
        notes = folder_job.step("comparing", job.corpus.size or 0).process_unfinished(compare, note=_PAIRS)
        of_shards = [np.fromfile(_pairs_file(output, name), PAIR) for name in notes]
        places = np.array(GivenDocuments(output.folder / "given").places)
    shutil.rmtree(folder, ignore_errors=True)
    _given_in.cache_clear()  # Mapped files keep their space after they are removed.
    pairs = np.concatenate(of_shards)
    shard = np.repeat(np.arange(len(notes), dtype=np.int32), list(map(len, of_shards)))
    order = np.lexsort((pairs["number"], shard, -pairs["similarity"], pairs["original"]))
    skipped = SkippedLines.from_note(given)
    skipped.merge(SkippedLines.from_notes(notes, job.shards))
    return CopySearch(
        originals=int(places["documents"].sum()),
        copied=int(places["documents"][np.unique(pairs["original"])].sum()),
        documents=sum(note["documents"] for note in notes.values()),
        skipped=skipped,
        pairs=pairs[order],
        shard=shard[order],
        shards=list(notes),
        places=places,
        given_shards=given["shards"],
    )


def _folder_for(shards: Sequence[Shard], threshold: float) -> Path:
    """The folder of a search in the cache folder, which the nodes of a cluster share."""
    named = msgspec.json.encode([[ascii(shard.absolute_path) for shard in shards], threshold])
    return cache_folder() / "copies" / xxhash.xxh3_128_hexdigest(named)


def _written(job: FolderJob, originals: Corpus, threshold: float) -> dict[str, Any]:
    """Write the arrays of the given documents, unless an earlier run did; returns the note about them."""
    note = job.output.result(_GIVEN)
    if note is None or (note["skipped"] and job.on_error == "raise"):
        advance = job.step("reading", originals.size or 0).advance
        with read(originals, None, job.on_error, advance=advance) as reader:
            files, shards = write_given(reader, job.output.folder / "given", threshold, str(originals.root))
        for shard in originals.shards:
            job.inputs.check(replace(shard, name=f"/{shard.name}"))
        note = {"shards": shards, "skipped": reader.skipped.count, "bad_lines": reader.skipped.listed()}
        job.output.note(_GIVEN, note, *files)
    return note


@functools.lru_cache(1)
def _given_in(folder: Path, version: str) -> GivenDocuments:
    """The given documents of a search; another version of the shards has other ones in the same folder."""
    return GivenDocuments(folder)


def _compare_shard(
    shard: Shard,
    advance: Advance,
    *,
    threshold: float,
    on_error: OnError,
    manifest: Manifest,
    share: Share,
    output: Output,
    inputs: Inputs,
) -> None:
    """Write the pairs of a shard, and note its documents and bad lines."""
    given, path, documents = _given_in(output.folder / "given", output.made_of[""]), _pairs_file(output, shard.name), 0
    with write_atomically(path) as file:
        with read(shard, None, on_error, manifest=manifest, advance=advance, ahead=share.ahead) as reader:
            for batch in reader:
                documents += len(batch)
                for pairs in given.copies(batch, threshold):
                    file.write(pairs.tobytes())
        inputs.check(shard)
    output.note(f"{_PAIRS}{shard.name}", {"documents": documents, **reader.skip_counts()}, path)


def _pairs_file(output: Output, shard: str) -> Path:
    return output.path(f"pairs/{shard}", ".pairs")
