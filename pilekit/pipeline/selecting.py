"""`select_corpus`: writes part of a corpus as a new corpus.

    read(shard, subsets) -> Sample -> Match -> MinBytes -> one shard of the same name

Lines are copied byte for byte, with all their fields. Parquet keeps only text and label.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus, Part, Shard, subsets_or_all
from pilekit.corpus.shard import check_stems, stem
from pilekit.documents import DocumentBatch, check_labels
from pilekit.engine import Advance, Ray
from pilekit.errors import PilekitError, counted, visible
from pilekit.pipeline.pipeline import Pipeline, Stage
from pilekit.pipeline.stages import Match, MinBytes, Sample
from pilekit.shards.each_shard import corpus_folder, finish_shards, part_of
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.reader import OnError, Reading, read
from pilekit.shards.write.shard_writer import write_documents
from pilekit.table_result import TableResult

if TYPE_CHECKING:
    from pilekit.fitted_table import FittedTable

SELECTION = "selection"
"""The kind in the header of the folder that `select_corpus` makes."""

Format = Literal["zst", "parquet", "jsonl"]
SUFFIXES: dict[Format, str] = {"zst": ".jsonl.zst", "parquet": ".parquet", "jsonl": ".jsonl"}


@dataclass(frozen=True, slots=True)
class SelectedSubset:
    """Documents and UTF-8 bytes of text of one subset (or of all), selected and read."""

    name: str
    documents: int
    bytes: int
    read_documents: int
    read_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The counts, for programs."""
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "read": {"documents": self.read_documents, "bytes": self.read_bytes},
        }


@dataclass(frozen=True, slots=True)
class Selected(TableResult):
    """The result of `select_corpus`.

    folder    where the shards are
    subsets   the largest first; if subsets were given, only those
    total     all subsets together
    empty     names of the shards without a selected document; they have no file
    skipped   the bad lines skipped
    others    number of documents of all other subsets
    """

    folder: Path
    subsets: tuple[SelectedSubset, ...]
    total: SelectedSubset
    empty: tuple[str, ...]
    skipped: SkippedLines
    others: int = 0

    def __repr__(self) -> str:
        documents, subsets = counted(self.total.documents, "document"), counted(len(self.subsets), "subset")
        return f"Selected({str(self.folder)!r}, {documents} of {subsets})"

    def to_dict(self) -> dict[str, Any]:
        """All counts, for programs."""
        return {
            **self.total.to_dict(),
            "skipped": self.skipped.count,
            "others": self.others,
            "empty": list(self.empty),
            "subsets": {subset.name: subset.to_dict() for subset in self.subsets},
        }

    def table(self) -> FittedTable[SelectedSubset]:
        """A row per subset, the largest first, one for all other subsets, and the total."""
        from pilekit.fitted_table import DASH, OTHERS, Column, FittedTable, rounded_bytes

        def share(row: SelectedSubset) -> str:
            return f"{100 * row.bytes / row.read_bytes:.2f}" if row.read_bytes else DASH

        columns: list[Column[SelectedSubset]] = [
            Column("Subset", lambda row: row.name),
            Column("In shards", lambda row: f"{row.read_documents:,}"),
            Column("Documents", lambda row: f"{row.documents:,}"),
            Column("Bytes", lambda row: rounded_bytes(row.bytes)),
            Column("Of read %", share),
        ]
        others = [SelectedSubset(OTHERS, 0, 0, self.others, 0)] if self.others else []
        total = replace(self.total, name="Total", read_documents=self.total.read_documents + self.others)
        return FittedTable([*self.subsets, *others], columns, [total], ("In shards",))


def select_corpus(
    corpus: Corpus | str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    subsets: Sequence[str] | None = None,
    sample: float | None = None,
    seed: int = 0,
    match: str | None = None,
    min_bytes: int | None = None,
    format: Format = "zst",
    on_error: OnError = "raise",
    jobs: int | None = None,
    advance: Advance | None = None,
    part: Part | None = None,
    engine: Ray | None = None,
) -> Selected:
    """Write the documents that pass all given conditions into the folder `out`, one shard for each shard read.

    corpus      a `Corpus`, a path, glob or URL, or a list of these
    out         a new or empty folder, or the folder of an earlier run of the same selection, which is resumed
    subsets     documents of these subsets, in any spelling the manifest knows
    sample      about this share of the documents (0 to 1), chosen by hash of `seed`, shard name and document number
    match       documents whose text holds a match of this regular expression
    min_bytes   documents whose text has at least this many UTF-8 bytes
    format      "zst" and "jsonl" keep whole lines, "parquet" keeps text and label
    on_error    "raise": a bad line is a `PilekitError`; "skip": it is counted and listed in `.skipped`
    jobs        shards at a time, each in its own process; None: the usable CPUs, or fewer for a small corpus
    advance     called with the number of stored bytes done since the last call
    part        (I, N): only the shards of `corpus.part(part)`; a call without it does the rest and finishes
    engine      a cluster instead of local processes

    A shard without a selected document gives no file. `PilekitError` if nothing is selected at all; then nothing is
    left in `out`. If a shard cannot be read, the other shards are finished and kept before the error is
    raised.
    """
    corpus = corpus if isinstance(corpus, Corpus) else Corpus(corpus)
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
    reading = functools.partial(read, subsets=subsets, on_error=on_error, manifest=corpus.manifest)
    select = functools.partial(select_shard, reading=reading, stages=stages, suffix=SUFFIXES[format])
    check_stems(corpus.shards)
    shards, shared = part_of(corpus, part, engine).shards, part is not None
    with corpus_folder(corpus, out, kind=SELECTION, parameters=parameters, shared=shared) as (output, inputs):
        results = finish_shards(
            select, shards, output, inputs, on_error=on_error, jobs=jobs, advance=advance, engine=engine
        )
        selected = _selected(output.folder, results, shards)
        if not (shared or selected.total.documents):
            output.forget()
            raise PilekitError(_nothing(selected, subsets))
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
    ahead: bool,
) -> None:
    """Write the documents of one shard that pass, and note the counts."""
    path, counts = output.path(stem(shard), suffix), defaultdict[str, list[int]](lambda: [0] * 4)
    with reading(shard, advance=advance, ahead=ahead) as reader:
        passing = _counting(Pipeline(stages)(_counting(reader, counts, 2)), counts, 0)
        files = write_documents(path, passing, lambda: inputs.check(shard))
    output.note(shard.name, {"subsets": dict(sorted(counts.items())), **reader.passed_over()}, *files)


def _counting(batches: Iterable[DocumentBatch], counts: dict[str, list[int]], column: int) -> Iterator[DocumentBatch]:
    """Yield the batches; add documents and UTF-8 bytes of each subset to `counts`, from `column` on."""
    for batch in batches:
        for subset, size in zip(batch.subsets, batch.text_bytes().tolist(), strict=True):
            row = counts[subset]
            row[column] += 1
            row[column + 1] += size
        check_labels(counts)
        yield batch


def _selected(folder: Path, results: Mapping[str, Mapping[str, Any]], shards: Sequence[Shard]) -> Selected:
    """All shards' results together."""
    sums: dict[str, list[int]] = {}
    empty, others = [], 0
    for shard, result in results.items():
        for name, counts in result["subsets"].items():
            sums[name] = [one + more for one, more in zip(sums.get(name, [0] * 4), counts, strict=True)]
        if not any(documents for documents, *_ in result["subsets"].values()):
            empty.append(shard)
        others += result.get("others", 0)
    subsets = [SelectedSubset(name, *counts) for name, counts in sums.items()]
    subsets.sort(key=lambda subset: (-subset.bytes, -subset.documents, subset.name))
    total = SelectedSubset("total", *(sum(column) for column in zip([0] * 4, *sums.values(), strict=True)))
    return Selected(folder, tuple(subsets), total, tuple(empty), SkippedLines.of_shards(results, shards), others)


def _nothing(selected: Selected, subsets: Sequence[str] | None) -> str:
    """Why nothing was selected, and the remedy."""
    read = selected.total.read_documents
    if read:
        return f"nothing is selected: none of the {counted(read)} read passes; loosen the conditions"
    if subsets is None:
        return "nothing is selected: the shards hold no documents"
    names = ", ".join(visible(name, 60) for name in subsets)
    return f"nothing is selected: there are no documents of {names}; `pilekit stats` shows which subsets there are"
