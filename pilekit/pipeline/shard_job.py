"""Shards made of shards: their names, writing them, and the lines that reading passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from pilekit.corpus import Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.documents import DocumentBatch, RecordFormat
from pilekit.errors import PilekitError, visible
from pilekit.shards.read.damage import BadLine, SkippedLines
from pilekit.shards.read.open import is_parquet
from pilekit.shards.read.reader import ShardReader
from pilekit.shards.write.parquet_writer import RowGroups, parquet_writer
from pilekit.shards.write.shard_writer import ShardWriter


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
