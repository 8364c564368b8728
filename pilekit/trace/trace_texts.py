"""`trace_texts`: the passages of given texts that also stand in a corpus, in one pass.

    texts -> NGrams, RunAutomaton, in files -> the passages of each shard, in files -> all shards together
          -> a Parquet file

The work is a folder job, in OUT.unfinished/ until OUT is there. All processes map its tables, and a finished shard is
not read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Annotated, Any, Unpack

import msgspec
import numpy as np

from pilekit.artifacts.checked import checked
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus, Described, Shard, Source, subsets_or_all
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.cutting.ngrams import LONGEST, NGrams
from pilekit.cutting.words import compacted
from pilekit.documents import add_counts, check_labels
from pilekit.errors import PilekitError, counted
from pilekit.shards.corpus_job import CorpusJob, Share, await_files
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import FolderJob
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import Reading, read
from pilekit.shards.work import PartWork, takes
from pilekit.trace.given_texts import given_texts, hash_of
from pilekit.trace.maximal_passages import MaximalPassages
from pilekit.trace.result_file import Content, rows_result
from pilekit.trace.run_automaton import RunAutomaton
from pilekit.trace.shard_passages import ShardPassages
from pilekit.trace.traced_passages import TextTraces, trace_rows
from pilekit.workers import Advance


class _Options(msgspec.Struct):
    """The arguments that have a range."""

    words: Annotated[int, msgspec.Meta(ge=1, le=LONGEST)]
    documents: Annotated[int, msgspec.Meta(ge=1)]
    common: Annotated[int, msgspec.Meta(ge=0)]


@takes(PartWork)
def trace_texts(
    corpus: Corpus | Source,
    texts: str | Path | Iterable[str],
    out: str | Path | None = None,
    *,
    field: str | None = None,
    words: int = 8,
    documents: int = 10,
    common: int = 1000,
    subsets: str | Sequence[str] | None = None,
    manifest: Described = None,
    **work: Unpack[PartWork],
) -> TextTraces:
    """Find the maximal passages of texts that also stand in a corpus, word for word, and the documents that have them.

    corpus    a `Corpus`, or a path, glob or URL, or several of them
    texts     a list of texts; or the path of a text file, which is one text, or of a .jsonl or .parquet file
    out       a new Parquet file for the result; a killed run is resumed, and a finished one returns at once. None: no
              file
    field     the field of the text in records; None: text
    words     the fewest words of a passage, up to 100
    documents list at most so many documents of a passage; all are counted
    common    list no document of a passage that more documents have; 0: list some of each
    subsets   only documents of these subsets, in any spelling the manifest knows; None: all
    manifest  describes the corpus at a path, as for `Corpus`
    work      on_error, jobs, advance, cluster, part: see `PartWork`

    Words are lower-cased and have no punctuation, as for `decontaminate_corpus`. A passage is maximal if no document
    has a longer one around it. PilekitError if no text has `words` words.
    """
    checked({"words": words, "documents": documents, "common": common}, _Options)
    corpus = Corpus.of(corpus, manifest)
    chosen = subsets_or_all([subsets] if isinstance(subsets, str) else subsets, corpus.manifest)
    if texts == STANDARD_INPUT and any(shard.path == STANDARD_INPUT for shard in corpus.shards):
        raise PilekitError("standard input (-) cannot be both the texts and the corpus; save one to a file first")
    job = CorpusJob(corpus, **work)
    read_texts = given_texts(texts, field)
    parameters = {"texts": hash_of(read_texts), "words": words, "documents": documents, "common": common}
    parameters |= {"subsets": None if chosen is None else sorted(chosen), **corpus.manifest.record}
    make = partial(_trace, texts=read_texts, parameters=parameters, subsets=chosen)
    return rows_result(TextTraces, out, job, parameters, make)


def _trace(
    job: FolderJob, *, texts: Sequence[str], parameters: Mapping[str, Any], subsets: Sequence[str] | None
) -> Content:
    """Trace in all shards of the job."""
    words, documents, common = (parameters[name] for name in ("words", "documents", "common"))
    folder, corpus = job.output.folder, job.corpus
    compact = [compacted(text) for text in texts]
    counts = [count for _, count in compact]
    long_enough = [number for number, count in enumerate(counts) if count >= words]
    if not long_enough:
        raise PilekitError(
            f"none of {counted(len(texts), 'text')} has {counted(words, 'word')} to look for; ask for fewer --words"
        )
    ngrams = NGrams.build((compact[number] for number in long_enough), words)
    del compact
    automaton = RunAutomaton.build(ngrams.numbers, ngrams.first, len(ngrams.keys))
    needs = [*ngrams.save(folder / "windows"), *automaton.save(folder / "automaton")]
    ngrams, automaton = NGrams.load(folder / "windows"), RunAutomaton.load(folder / "automaton")
    reading = partial(read, subsets=subsets, on_error=job.on_error, manifest=corpus.manifest)
    scratch = job.own_scratch(folder)
    trace = partial(trace_shard, reading=reading, documents=documents, common=common, needs=needs, scratch=scratch)
    notes = job.process_unfinished(trace)
    read_documents: dict[str, int] = reduce(add_counts, (note["subsets"] for note in notes.values()), {})
    if job.part is None:
        check_label(corpus, read_documents, subsets, discard=job.output.discard)
    shards = [(name, _path(job.output, name)) for name in notes]
    passages = MaximalPassages(automaton, ngrams.first, words, shards, documents, common)
    passages.numbers = np.array(long_enough)[passages.numbers]
    skipped = SkippedLines.from_notes(notes, job.shards)
    covered = int(passages.new.sum())
    summary = {
        "texts": len(texts),
        "found": len(np.unique(passages.numbers)),
        "words": sum(counts),
        "covered": covered,
        "coverage": covered / sum(counts),
        "passages": len(passages.numbers),
        "common": int(np.count_nonzero(passages.documents > common)) if common else 0,
        "documents": sum(read_documents.values()),
        "others": sum(note["others"] for note in notes.values()),
        "skipped": skipped.count,
        "subsets": dict(sorted(read_documents.items(), key=lambda item: (-item[1], item[0]))),
    }
    return Content(trace_rows(texts, counts, passages.by_text(len(texts)), common), summary, skipped)


def trace_shard(
    shard: Shard,
    advance: Advance,
    *,
    output: Output,
    inputs: Inputs,
    reading: Reading,
    documents: int,
    common: int,
    needs: Sequence[Path],
    scratch: Path,
    share: Share,
) -> None:
    """Find the passages in one shard, write them, and note its documents by subset."""
    await_files(needs)
    read_documents, ngrams = Counter[str](), NGrams.load(output.folder / "windows")
    passages = ShardPassages(ngrams, RunAutomaton.load(output.folder / "automaton"), documents, common, scratch)
    with reading(shard, advance=advance, ahead=share.ahead) as reader:
        for batch in reader:
            read_documents.update(batch.subsets)
            check_labels(read_documents)
            passages.add(batch)
    inputs.check(shard)
    files = passages.write(ngrams.first, _path(output, shard.name))
    output.note(shard.name, {"subsets": dict(read_documents), **reader.skip_counts()}, *files)


def _path(output: Output, shard: str) -> Path:
    return output.path(f"passages/{shard}", ".npy")
