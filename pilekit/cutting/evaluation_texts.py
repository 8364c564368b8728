"""The texts of evaluations: JSON lines, Parquet and Pile shards, record by record.

A record's texts are the values of the given fields. If there are several fields, all values joined are one more text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pilekit.corpus import Corpus, Shard
from pilekit.corpus.shard import stem
from pilekit.errors import PilekitError, visible
from pilekit.shards.read.json_records import BadRecord, kind_of
from pilekit.shards.read.records import BLANK, decoded_records


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


def read_records(corpus: Corpus, fields: Sequence[str]) -> Iterator[Record]:
    """All records in order. PilekitError for a bad line, and if no record of a file has any of the fields.

    An evaluation's name is the stem of its file, with folders if two stems are equal.
    """
    names = [stem(shard) for shard in corpus.shards]
    short = [Path(name).name for name in names]
    for evaluation, shard in zip(short if len(set(short)) == len(short) else names, corpus.shards, strict=True):
        found = False
        for number, raw in enumerate(_raw_records(shard, fields)):
            texts = {field: raw[field] for field in fields if raw.get(field) is not None}
            for field, value in texts.items():
                if not isinstance(value, str):
                    raise PilekitError(
                        f"{visible(shard.path)}, record {number:,}: {visible(field)} is no text but "
                        f"{visible(value, 60)}; name other --fields"
                    )
            found = found or bool(texts)
            if len(texts) > 1:
                texts[",".join(texts)] = " ".join(texts.values())
            id = raw.get("id")
            yield Record(evaluation, number, None if id is None else str(id), texts)
        if not found:
            missing = ", ".join(map(visible, fields))
            raise PilekitError(f"{visible(shard.path)}: no record has a field {missing}; name the text with --fields")


def _raw_records(shard: Shard, fields: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The records of a file."""
    with closing(decoded_records(shard.path, {*fields, "id"})) as blocks:
        for first, records in blocks:
            for number, record in enumerate(records, first + 1):
                if record is BLANK:
                    continue
                if type(record) is not dict:
                    why = record if isinstance(record, BadRecord) else f"is {kind_of(record)}, not a JSON object"
                    raise PilekitError(f"{visible(shard.path)}, line {number:,}: {visible(why, 200)}")
                yield record
