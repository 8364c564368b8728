"""`shard_job`: a corpus is made into another one, shard by shard, in a folder that a killed run resumes.

Each shard is a job of its own, and what becomes of a document depends only on the document. So the output is the same
for any number of processes, and for a run that was killed and run again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pilekit.artifacts.job_folder import Output, output_folder
from pilekit.corpus import Corpus, Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.documents import DocumentBatch, RecordFormat
from pilekit.engine import Advance, map_shards
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import inputs_for
from pilekit.shards.processes import decompress_ahead, processes_for
from pilekit.shards.read.damage import BadLine, SkippedLines
from pilekit.shards.read.open import is_parquet
from pilekit.shards.read.reader import OnError, ShardReader
from pilekit.shards.write.parquet_writer import RowGroups, parquet_writer
from pilekit.shards.write.shard_writer import ShardWriter


@contextmanager
def shard_job(
    corpus: Corpus,
    out: str | Path,
    work: Callable[..., object],
    *,
    kind: str,
    parameters: Mapping[str, Any],
    on_error: OnError,
    jobs: int | None,
    advance: Advance | None,
    whole: str | None = None,
) -> Iterator[Output]:
    """Process the shards that no earlier run has finished; yields the folder with the results of all shards.

    work        `work(shard, advance, output=..., inputs=..., ahead=...)` writes what comes of a shard and notes its
                counts, those of `skipped_lines` among them
    kind        what the job makes
    parameters  every setting that the output depends on; fields of the manifest are added
    whole       the name of a note about all shards together: if a shard is processed after it, all are

    If a shard cannot be read, the other shards are finished and kept before the error is raised.
    """
    check_names(corpus.shards)
    manifest = corpus.manifest
    parameters = {**parameters, "text_field": manifest.text_field, "label_path": manifest.label_path}
    inputs = inputs_for(out, corpus.shards)
    with output_folder(
        out, kind=kind, parameters=parameters, inputs=inputs.fingerprints, versions=inputs.versions
    ) as output:
        done = output.results()
        if on_error == "raise":  # An earlier run may have skipped lines that are errors now.
            done = {name: result for name, result in done.items() if not result.get("skipped")}
        waiting = [shard for shard in corpus.shards if shard.name not in done]
        if waiting and whole in done and not output.finished:
            output.forget()
            waiting = list(corpus.shards)
        if advance is not None:
            advance(sum(shard.size or 0 for shard in corpus.shards if shard not in waiting))
        processes = processes_for(waiting, jobs)
        work = functools.partial(work, output=output, inputs=inputs, ahead=decompress_ahead(processes))
        map_shards(work, waiting, jobs=processes, on_progress=advance)
        yield output


def write_documents(path: Path, batches: Iterable[DocumentBatch], complete: Callable[[], None]) -> list[Path]:
    """Write all documents to the shard at `path`; returns its path, or no path and writes no file without documents.

    complete    called before the file gets its name
    """
    writer: ShardWriter | RowGroups | None = None
    with ExitStack() as opened:
        for batch in batches:
            if writer is None and len(batch):
                writer = opened.enter_context(_writer(path, batch.format))
            if writer is not None:
                writer.write(batch)
        complete()
    return [] if writer is None else [path]


def _writer(path: Path, format: RecordFormat) -> AbstractContextManager[ShardWriter | RowGroups]:
    return parquet_writer(path, format) if is_parquet(str(path)) else ShardWriter(path, follow_links=False)


def skipped_lines(reader: ShardReader) -> dict[str, Any]:
    """The bad lines and the documents of other subsets that a reader has passed over, for the result of a shard."""
    return {
        "skipped": reader.skipped.count,
        "others": reader.parser.others if reader.parser else 0,
        "bad_lines": [[bad.line, bad.reason] for bad in reader.skipped.examples],
    }


def all_skipped(results: Mapping[str, Mapping[str, Any]], shards: Iterable[Shard]) -> SkippedLines:
    """The bad lines of all shards' results."""
    skipped = SkippedLines()
    for shard in shards:
        path = shard.name if shard.path == STANDARD_INPUT else shard.path
        bad_lines = [BadLine(path, line, reason) for line, reason in results[shard.name]["bad_lines"]]
        skipped.merge(SkippedLines(results[shard.name]["skipped"], bad_lines))
    return skipped


def stem(shard: Shard) -> str:
    """The shard's name without the suffix of its storage."""
    if shard.path == STANDARD_INPUT:
        return "stdin"
    for suffix in (".jsonl", ".json", ".ndjson", ".parquet"):
        if shard.name.endswith(suffix):
            return shard.name.removesuffix(suffix)
    return shard.name


def check_names(shards: Iterable[Shard]) -> None:
    """Raise PilekitError if two shards would be written into one file."""
    found: dict[str, Shard] = {}
    for shard in shards:
        other = found.setdefault(stem(shard), shard)
        if other is not shard:
            raise PilekitError(
                f"{visible(other.path)} and {visible(shard.path)} would both be written to {visible(stem(shard))}"
                "; take one after the other"
            )
