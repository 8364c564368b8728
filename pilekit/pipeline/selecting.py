"""`select_corpus`: writes part of a corpus as a new corpus.

    read(shard, subsets) -> Sample -> Match -> MinBytes -> one shard of the same name

Lines are copied byte for byte, with all their fields. Parquet keeps only text and label.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, Literal, Unpack

from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus, Described, Shard, Source, subsets_or_all
from pilekit.corpus.shard import check_stems, stem
from pilekit.display.table_result import TableResult
from pilekit.documents import DocumentBatch, add_counts, check_labels
from pilekit.errors import PilekitError, counted, shortened
from pilekit.pipeline.pipeline import Pipeline, Stage
from pilekit.pipeline.stages import Match, MinBytes, Sample
from pilekit.shards.corpus_job import CorpusJob, Share
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import corpus_folder
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import Reading, read
from pilekit.shards.work import PartWork, takes
from pilekit.shards.write.shard_writer import write_documents
from pilekit.workers import Advance

SELECTION = "selection"
"""The kind in the header of the folder that `select_corpus` makes."""

Format = Literal["zst", "parquet", "jsonl"]
SUFFIXES: dict[Format, str] = {"zst": ".jsonl.zst", "parquet": ".parquet", "jsonl": ".jsonl"}


COUNTS = ("read", "documents", "bytes")


@dataclass(frozen=True, repr=False)
class SelectResult(TableResult):
    """The result of `select_corpus`.

    folder    where the shards are
    summary   documents read, documents selected and their UTF-8 bytes, of all and of each subset, the largest first;
              the number of bad lines `skipped` and of documents of `others`, which are subsets that were not asked
              for; `empty`, the names of the shards without a selected document, which have no file
    skipped   the bad lines skipped
    """

    folder: Path
    summary: dict[str, Any]
    skipped: SkippedLines


@takes(PartWork)
def select_corpus(
    corpus: Corpus | Source,
    out: str | Path,
    *,
    subsets: Sequence[str] | None = None,
    sample: float | None = None,
    seed: int = 0,
    match: str | None = None,
    min_bytes: int | None = None,
    format: Format = "zst",
    manifest: Described = None,
    **work: Unpack[PartWork],
) -> SelectResult:
    """Write the documents that pass all given conditions into the folder `out`, one shard for each shard read.

    corpus      a `Corpus`, a path, glob or URL, or a list of these; held-out shards among others are left out
    out         a new or empty folder, or the folder of an earlier run of the same selection, which is resumed
    subsets     documents of these subsets, in any spelling the manifest knows
    sample      about this share of the documents (0 to 1), chosen by hash of `seed`, shard name and document number
    match       documents whose text holds a match of this regular expression
    min_bytes   documents whose text has at least this many UTF-8 bytes
    format      "zst" and "jsonl" keep whole lines, "parquet" keeps text and label
    manifest    describes the corpus at a path, as for `Corpus`
    work        on_error, jobs, advance, cluster, part: see `PartWork`

    A shard without a selected document gives no file. `PilekitError` if nothing is selected at all; then nothing is
    left in `out`. If a shard cannot be read, the other shards are finished and kept before the error is
    raised.
    """
    corpus = Corpus.of(corpus, manifest).without_held_out()
    subsets = subsets_or_all(subsets, corpus.manifest)
    if format not in SUFFIXES:
        raise PilekitError(f'format is "zst", "parquet" or "jsonl", not {format!r}')
    stages: list[Stage] = []
    if sample is not None:
        stages.append(Sample(sample, seed))
    if match is not None:
        stages.append(Match(match))
    if min_bytes is not None:
        stages.append(MinBytes(min_bytes))
    parameters = {
        "subsets": None if subsets is None else sorted(subsets),
        "sample": sample if sample is None else float(sample),
        "seed": None if sample is None else str(seed),
        "match": match,
        "min_bytes": min_bytes,
        "format": format,
    }
    job = CorpusJob(corpus, **work)
    reading = partial(read, subsets=subsets, on_error=job.on_error, manifest=corpus.manifest)
    select = partial(select_shard, reading=reading, stages=stages, suffix=SUFFIXES[format])
    check_stems(corpus.shards)
    with corpus_folder(job, out, kind=SELECTION, parameters=parameters) as folder_job:
        results, output = folder_job.process_unfinished(select), folder_job.output
        selected = _selected(output.folder, results, job.shards)
        if job.part is None:
            check_label(corpus, selected.summary["subsets"], subsets, discard=output.discard)
            if not selected.summary["documents"]:
                output.forget()
                raise PilekitError(_why_nothing(selected.summary["read"], subsets))
    return selected


def select_shard(
    shard: Shard,
    advance: Advance,
    *,
    output: Output,
    inputs: Inputs,
    reading: Reading,
    stages: Sequence[Stage],
    suffix: str,
    share: Share,
) -> None:
    """Write the documents of one shard that pass, and note the counts."""
    path, counts = output.path(stem(shard), suffix), defaultdict[str, Counter[str]](Counter)

    def counted_read() -> Iterator[DocumentBatch]:
        for batch in reader:
            for subset, documents in Counter(batch.subsets).items():
                counts[subset]["read"] += documents
            check_labels(counts)
            yield batch

    def passing() -> Iterator[DocumentBatch]:
        for batch in Pipeline(stages)(counted_read()):
            for subset, size in zip(batch.subsets, batch.text_bytes().tolist(), strict=True):
                row = counts[subset]
                row["documents"] += 1
                row["bytes"] += size
            yield batch

    with reading(shard, advance=advance, ahead=share.ahead) as reader:
        files = write_documents(path, passing(), lambda: inputs.check(shard))
    output.note(shard.name, {"subsets": dict(sorted(counts.items())), **reader.skip_counts()}, *files)


def _selected(folder: Path, results: Mapping[str, Mapping[str, Any]], shards: Sequence[Shard]) -> SelectResult:
    """All shards' results together."""
    sums: dict[str, Any] = reduce(add_counts, (result["subsets"] for result in results.values()), {})
    subsets = {name: {kind: counts.get(kind, 0) for kind in COUNTS} for name, counts in sums.items()}
    subsets = dict(sorted(subsets.items(), key=lambda item: (-item[1]["bytes"], -item[1]["documents"], item[0])))
    summary: dict[str, Any] = {kind: sum(counts[kind] for counts in subsets.values()) for kind in COUNTS}
    summary |= {kind: sum(result[kind] for result in results.values()) for kind in ("skipped", "others")}
    selected = {
        shard
        for shard, result in results.items()
        for subset_counts in result["subsets"].values()
        if subset_counts.get("documents")
    }
    summary |= {"empty": [shard for shard in results if shard not in selected], "subsets": subsets}
    return SelectResult(folder, summary, SkippedLines.from_notes(results, shards))


def _why_nothing(read: int, subsets: Sequence[str] | None) -> str:
    """Why nothing was selected of so many documents, and the remedy."""
    if read:
        return f"nothing is selected: none of the {counted(read)} read passes; loosen the conditions"
    if subsets is None:
        return "nothing is selected: the shards hold no documents"
    names = ", ".join(shortened(name, 60) for name in subsets)
    return f"nothing is selected: there are no documents of {names}; `pilekit stats` shows which subsets there are"
