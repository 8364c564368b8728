"""The texts of evaluations: JSON lines, Parquet and Pile shards, record by record.

A record's texts are the fields asked for, each by itself, and if there are several, all joined by spaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from pilekit.corpus import Corpus, Shard
from pilekit.corpus.shard import stem
from pilekit.errors import PilekitError, visible
from pilekit.shards.read.open import is_parquet
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES, line_blocks, located_errors
from pilekit.shards.read.unchanged import open_unchanged

ROWS = 1024


class Record(NamedTuple):
    """A record of an evaluation.

    number   from 0, in its file
    id       the record's `id` as text, if it has one
    texts    the texts, by the name of the field; the joined text by all their names
    """

    evaluation: str
    number: int
    id: str | None
    texts: dict[str, str]


def evaluation_names(shards: Sequence[Shard]) -> list[str]:
    """The name of each file: its stem; with folders if two stems are equal."""
    names = [stem(shard) for shard in shards]
    short = [Path(name).name for name in names]
    return short if len(set(short)) == len(short) else names


def read_records(corpus: Corpus, fields: Sequence[str]) -> Iterator[Record]:
    """All records in order. PilekitError for a bad line, and if no record of a file has any of the fields."""
    for evaluation, shard in zip(evaluation_names(corpus.shards), corpus.shards, strict=True):
        found = False
        for number, raw in enumerate(_raw_records(shard, fields)):
            texts = {}
            for field in fields:
                value = raw.get(field)
                if isinstance(value, str):
                    texts[field] = value
                elif value is not None:
                    raise PilekitError(
                        f"{visible(shard.path)}, record {number:,}: {visible(field)} is no text but "
                        f"{visible(str(value), 60)}; name other --fields"
                    )
            found = found or bool(texts)
            if len(texts) > 1:
                texts[",".join(texts)] = " ".join(texts.values())
            id = raw.get("id")
            yield Record(evaluation, number, None if id is None else str(id), texts)
        if not found:
            names = ", ".join(map(visible, fields))
            raise PilekitError(f"{visible(shard.path)}: no record has a field {names}; name the text with --fields")


def _raw_records(shard: Shard, fields: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The records of a file."""
    if is_parquet(shard.path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with open_unchanged(shard.path) as (file, _), pq.ParquetFile(file, pre_buffer=False) as table:
                columns = [name for name in table.schema_arrow.names if name in {*fields, "id"}]
                for rows in table.iter_batches(ROWS, columns=columns, use_threads=False):
                    yield from rows.to_pylist() or [{}] * len(rows)
        except pa.ArrowException as error:
            raise PilekitError(f"{visible(shard.path)}: cannot be read as Parquet: {visible(str(error))}") from error
        return
    number = 0
    with located_errors(shard.path, lambda: number, MAX_DOCUMENT_BYTES), line_blocks(shard.path) as blocks:
        for block in blocks:
            for line in block.lines():
                number += 1
                if not bytes(line).strip():
                    continue
                try:
                    record = orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    record = error
                if not isinstance(record, dict):
                    why = (
                        f"not JSON ({record})"
                        if isinstance(record, Exception)
                        else "no JSON object; an evaluation has one in each line"
                    )
                    raise PilekitError(f"{visible(shard.path)}, line {number:,}: is {visible(why, 200)}")
                yield record
