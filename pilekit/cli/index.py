"""`pilekit index`: an index beside every shard, for random access and for counting without reading."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from pilekit.cli.options import jobs_option, json_option, on_error_option, open_corpus, paths_argument
from pilekit.cli.output import print_fitted, tell_skipped
from pilekit.progress import byte_progress

if TYPE_CHECKING:
    from pilekit.corpus import Shard
    from pilekit.fitted_table import FittedTable
    from pilekit.shards.index.format import ShardIndex
    from pilekit.shards.read.reader import OnError

LONG_FRAME_BYTES = 64 << 20
"""From so much text in one frame on, decoding it for one document takes a tenth of a second or more."""


@click.command()
@paths_argument
@on_error_option("leave it out and count it")
@jobs_option
@json_option
def command(paths: tuple[str, ...], manifest: str | None, on_error: OnError, jobs: int | None, as_json: bool) -> None:
    """Make an index of every shard: its documents, and where to begin reading.

    An index is a Parquet file, SHARD.index.parquet beside the shard (beside a Parquet shard .SHARD.index, hidden), with
    number, subset, text bytes and text hash of each document. Where the folder is read-only, or the shard a URL, it is
    kept in $PILEKIT_CACHE (~/.cache/pilekit). Indexes that are whole, fit and are newer than their shard are kept; a
    killed run resumes when run again.

    \b
    Example:
      pilekit index 00.jsonl.zst
      pilekit index data/ --on-error skip
    """
    from pilekit.shards.index.build import index_corpus
    from pilekit.shards.index.format import bad_lines
    from pilekit.shards.read.damage import SkippedLines

    corpus = open_corpus(paths, manifest)
    with byte_progress("indexing", corpus.size) as advance:
        indexes = index_corpus(corpus, on_error=on_error, jobs=jobs, advance=advance)
    skipped = SkippedLines()
    for shard, index in zip(corpus.shards, indexes, strict=True):
        if index.built:
            skipped.merge(bad_lines(shard, index))
    tell_skipped(skipped)
    if as_json:
        shards = [{"shard": shard.name, **index.to_dict()} for shard, index in zip(corpus.shards, indexes, strict=True)]
        click.echo(json.dumps({"shards": shards}, indent=2))
    else:
        print_fitted(_table(corpus.shards, indexes))
        for note in _notes(corpus.shards, indexes):
            click.echo(note)


def _table(shards: tuple[Shard, ...], indexes: list[ShardIndex]) -> FittedTable[tuple[Shard, ShardIndex]]:
    from pilekit.fitted_table import Column, FittedTable, rounded_bytes

    columns: list[Column[tuple[Shard, ShardIndex]]] = [
        Column("Shard", lambda row: row[0].name),
        Column("Documents", lambda row: f"{row[1].header.documents:,}"),
        Column("Text", lambda row: rounded_bytes(row[1].header.text_bytes)),
        Column("Frames", lambda row: f"{len(row[1].frames):,}"),
        Column("Bad lines", lambda row: f"{row[1].header.skipped:,}"),
        Column("Index", lambda row: "built" if row[1].built else "kept", justify="left"),
    ]
    return FittedTable(list(zip(shards, indexes, strict=True)), columns, priority=("Frames", "Text"))


def _notes(shards: tuple[Shard, ...], indexes: list[ShardIndex]) -> list[str]:
    """Where indexes are that are not beside their shards, and which frames are too long for random access."""
    from pilekit.errors import visible
    from pilekit.fitted_table import rounded_bytes
    from pilekit.shards.index.format import index_places

    notes = []
    elsewhere = [index for shard, index in zip(shards, indexes, strict=True) if index.path == index_places(shard)[-1]]
    if elsewhere:
        first = visible(elsewhere[0].path)
        notes.append(f"Not beside the shard but in the cache: {first}{_more(len(elsewhere) - 1)}.")
    long = [(shard, frame) for shard, index in zip(shards, indexes, strict=True) if (frame := _long_frame(index))]
    if long:
        shard, frame = long[0]
        notes.append(
            f"{visible(shard.name)} has {rounded_bytes(frame)} in one frame{_more(len(long) - 1)}: to read one of its "
            "documents, all before it is decoded; `pilekit reframe` mends that."
        )
    return notes


def _more(others: int) -> str:
    return f" (and {others:,} more)" if others else ""


def _long_frame(index: ShardIndex) -> int:
    """The bytes of the longest frame of compressed text, if it is a long one; else 0."""
    import numpy as np

    if index.header.storage not in ("zstd", "gzip"):
        return 0
    longest = int(np.diff(index.frames.text_offset, append=index.header.content_bytes).max())
    return longest if longest > LONG_FRAME_BYTES else 0
