"""The documents that `seen` is asked for, beyond those of a list: documents that hold a text, and copies of others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from pilekit.artifacts.header import finished_header
from pilekit.corpus import Corpus, Manifest
from pilekit.corpus.listed_documents import Place
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.dedup.find_copies import THRESHOLD, CopySearch, find_copies
from pilekit.dedup.previous_runs import COMMAND, KIND
from pilekit.dedup.show.removed_pairs import removals
from pilekit.errors import PilekitError, shortened
from pilekit.pipeline.find_text import Counts, find_text
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.work import Work


class Copy(msgspec.Struct, frozen=True):
    """What a document is a copy of.

    of           the document that was asked for
    similarity   of the two; by a finished dedup, that of the removed document to the kept one
    reason       "exact" or "near"
    """

    of: Place
    similarity: float
    reason: str


def documents_with(text: str, job: CorpusJob) -> tuple[list[Place], dict[str, int]]:
    """The documents of the job's corpus that hold a text, character for character, and what was scanned."""
    counts, advance = Counts(), job.step("searching", job.corpus.size or 0).advance
    work = Work(on_error=job.on_error, jobs=job.jobs, advance=advance, cluster=job.cluster)
    with closing(find_text(job.corpus, re.escape(text), counts, **work)) as documents:
        places = [(document.shard, document.number) for document in documents]
    return places, scanned(job.corpus, counts.read.total(), counts.skipped.count)


def copies_of_given(path: str, job: CorpusJob) -> tuple[CopySearch, dict[str, Any]]:
    """The copies, in the job's corpus, of the documents at a path, and what was scanned and compared."""
    search = find_copies(given_documents(path, job.corpus.manifest), job)
    given = {"path": path, "documents": search.originals, "copied": search.copied, "threshold": THRESHOLD}
    return search, {"against": given, "scanned": scanned(job.corpus, search.documents, search.skipped.count)}


def given_documents(path: str, manifest: Manifest) -> Corpus:
    """The documents of which copies are looked for, in the format of the run's data."""
    if path == STANDARD_INPUT:
        raise PilekitError("against is standard input (-), which no answer can name; save it to a file first")
    return Corpus(path, manifest)


def scanned(corpus: Corpus, documents: int, skipped: int) -> dict[str, int]:
    """What a search of the whole corpus has read."""
    stored = sum(shard.size or 0 for shard in corpus.shards)
    return {"shards": len(corpus.shards), "documents": documents, "stored_bytes": stored, "skipped": skipped}


def copies_of(documents: Sequence[Place], dedup: str | Path) -> dict[Place, Copy]:
    """The other documents of the asked documents' clusters in a finished dedup of the run's data.

    A cluster is a kept document and those that were removed because they resemble it. PilekitError if the dedup has not
    read the shards of the documents.
    """
    inputs, asked = finished_header(dedup, KIND, COMMAND).inputs, dict.fromkeys(documents)
    for shard, _ in asked:
        if shard not in inputs:
            raise PilekitError(
                f"{dedup}: is no dedup of the run's data: it has no shard {shard}, but "
                f"{shortened(', '.join(inputs), 200)}; run `pilekit dedup` on what the run reads"
            )
    with removals(Path(dedup) / "removed.parquet") as removed:
        kept_of = {place: kept for place, kept, _ in _removed(removed, "number", asked)}
        asked_of = {kept_of.get(place, place): place for place in reversed(asked)}
        copies: dict[Place, Copy] = {}
        for place, kept, (similarity, reason) in _removed(removed, "kept_number", asked_of):
            for other in (place, kept) if place in asked else (place,):
                if other not in asked:
                    copies.setdefault(other, Copy(asked_of[kept], similarity, reason))
    return copies


def _removed(
    removed: pa.dataset.Dataset, column: str, chosen: Mapping[Place, object]
) -> Iterator[tuple[Place, Place, tuple[float, str]]]:
    """(removed document, kept one, similarity and reason) of the rows whose document of this column is chosen."""
    shard = column.replace("number", "shard")
    numbers = pa.array({number for _, number in chosen}, pa.int64())
    for batch in removed.to_batches(filter=pc.field(column).isin(numbers) & (pc.field("kept_corpus") != "against")):
        for row in batch.to_pylist():
            if (row[shard], row[column]) in chosen:
                kept = row["kept_shard"], row["kept_number"]
                yield (row["shard"], row["number"]), kept, (row["similarity"], row["reason"])
