"""`count_phrases`: how often each of many phrases occurs in a corpus, and in how many documents, in one pass.

    phrases -> PhraseTable, in files -> counts of each shard -> all shards together -> a Parquet file

The work is a folder job: OUT.unfinished/ until OUT is there, or a temporary folder without `out`. Its table is mapped
by all processes, and a shard that was counted is not read again. Sums do not depend on the order of the shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus, Described, Shard, Source, subsets_or_all
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.cutting.words import compacted_all
from pilekit.documents import add_counts, check_labels
from pilekit.errors import PilekitError, message_logger
from pilekit.shards.corpus_job import CorpusJob, Share, await_files
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import FolderJob
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import Reading, read
from pilekit.shards.work import PartWork, takes
from pilekit.trace.phrase_counts import PhraseCounts, ShardCounts, Sort, count_rows, totals
from pilekit.trace.phrase_table import PhraseTable
from pilekit.trace.phrases import Phrases
from pilekit.trace.result_file import Content, rows_result
from pilekit.trace.subset_counts import SubsetCounts
from pilekit.workers import Advance

logger = message_logger(__name__)


@takes(PartWork)
def count_phrases(
    corpus: Corpus | Source,
    phrases: str | Path | Iterable[str],
    out: str | Path | None = None,
    *,
    field: str | None = None,
    words: bool = False,
    sort: Sort = "count",
    subsets: str | Sequence[str] | None = None,
    manifest: Described = None,
    **work: Unpack[PartWork],
) -> PhraseCounts:
    """Count how often each phrase occurs in the texts of a corpus, and in how many documents, overall and by subset.

    corpus    a `Corpus`, or a path, glob or URL, or several of them
    phrases   a list of texts; or the path of a text file with a phrase a line, or of a .jsonl or .parquet file
    out       a new Parquet file for the result; a killed run is resumed, and a finished one returns at once. None: no
              file
    field     the field of the phrase in records; None: text
    words     compare words, lower-cased and without punctuation, across lines; else bytes of UTF-8
    sort      "count": the most frequent phrase first; "given": the order of `phrases`
    subsets   only documents of these subsets, in any spelling the manifest knows; None: all
    manifest  describes the corpus at a path, as for `Corpus`
    work      on_error, jobs, advance, cluster, part: see `PartWork`

    Occurrences may overlap each other, and do not cross documents. Equal phrases count once. PilekitError for an empty
    phrase, which names its line.
    """
    corpus = Corpus.of(corpus, manifest)
    chosen = subsets_or_all([subsets] if isinstance(subsets, str) else subsets, corpus.manifest)
    if sort not in ("count", "given"):
        raise PilekitError(f'sort is "count" or "given", not {sort!r}')
    if phrases == STANDARD_INPUT and any(shard.path == STANDARD_INPUT for shard in corpus.shards):
        raise PilekitError("standard input (-) cannot be both the phrases and the corpus; save one to a file first")
    job = CorpusJob(corpus, **work)
    given = [Phrases.read(phrases, field)]  # `_count` takes them out, so that their memory is free while it counts.
    parameters = {"phrases": given[0].hash, "words": words, "sort": sort, **corpus.manifest.record}
    parameters["subsets"] = None if chosen is None else sorted(chosen)
    make = partial(_count, given=given, parameters=parameters, subsets=chosen)
    return rows_result(PhraseCounts, out, job, parameters, make)


def _count(
    job: FolderJob, *, given: list[Phrases], parameters: Mapping[str, Any], subsets: Sequence[str] | None
) -> Content:
    """Count all shards of the job."""
    words, folder, corpus, sought = bool(parameters["words"]), job.output.folder, job.corpus, given.pop()
    phrases = sought.saved(folder / "given")
    if words:
        sought = sought.words()
    table = PhraseTable.build(sought.data, sought.ends, at_words=words)
    del sought
    table.save(folder / "phrases")
    numbers = np.sort(table.number)
    del table  # The shards' processes map the files, and this may be one of them.
    if (repeated := len(phrases) - len(numbers)) > 0:
        first = phrases.place(int(np.setdiff1d(np.arange(len(phrases)), numbers, assume_unique=True)[0]))
        logger.warning("%s: was given before; equal phrases count once (%s left out)", first, f"{repeated:,}")
    reading = partial(read, subsets=subsets, on_error=job.on_error, manifest=corpus.manifest)
    notes = job.process_unfinished(partial(count_shard, reading=reading, words=words))
    shards = [ShardCounts(_path(job.output, name), list(note["subsets"])) for name, note in notes.items()]
    documents: dict[str, int] = reduce(add_counts, (note["subsets"] for note in notes.values()), {})
    if job.part is None:
        check_label(corpus, documents, subsets, discard=job.output.discard)
    sums, skipped = totals(shards, len(phrases)), SkippedLines.from_notes(notes, job.shards)
    if parameters["sort"] == "count":
        numbers = numbers[np.argsort(-sums[0, numbers], kind="stable")]
    summary = {
        "phrases": len(numbers),
        "found": int(np.count_nonzero(sums[0])),
        "duplicates": repeated,
        "documents": sum(documents.values()),
        "others": sum(note["others"] for note in notes.values()),
        "skipped": skipped.count,
        "subsets": dict(sorted(documents.items(), key=lambda item: (-item[1], item[0]))),
    }
    return Content(count_rows(shards, phrases, numbers, sums), summary, skipped)


def count_shard(
    shard: Shard, advance: Advance, *, output: Output, inputs: Inputs, reading: Reading, words: bool, share: Share
) -> None:
    """Count one shard, write its counts, and note its documents by subset."""
    table_folder, path = output.folder / "phrases", _path(output, shard.name)
    await_files([table_folder / "heads.npy"])
    counts, documents = SubsetCounts(PhraseTable.load(table_folder)), Counter[str]()
    with reading(shard, advance=advance, ahead=share.ahead) as reader:
        for batch in reader:
            documents.update(batch.subsets)
            check_labels(documents)
            codes = {subset: code for code, subset in enumerate(documents)}
            subsets = np.fromiter(map(codes.__getitem__, batch.subsets), np.int64, len(batch))
            data, offsets = compacted_all(batch.texts) if words else batch.utf8()
            counts.add(data, offsets, subsets)
    inputs.check(shard)
    with write_atomically(path) as file:
        np.save(file, counts.rows())
    output.note(shard.name, {"subsets": dict(documents), **reader.skip_counts()}, path)


def _path(output: Output, shard: str) -> Path:
    return output.path(f"counts/{shard}", ".npy")
