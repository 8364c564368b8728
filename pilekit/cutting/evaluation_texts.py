"""The texts of evaluations: JSON lines, Parquet and Pile shards, record by record.

A record's texts are the values of the given fields. If there are several fields, all values joined are one more text.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pilekit.corpus import Corpus, Shard
from pilekit.corpus.shard import stem
from pilekit.cutting.words import compacted
from pilekit.errors import PilekitError, shortened
from pilekit.shards.read.absent_label import fields_of, first_records
from pilekit.shards.read.blocks import shard_blocks
from pilekit.shards.read.json_records import kind_of, records_of
from pilekit.shards.read.lines import numbered_parts
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.read.read_errors import BadRecord


class Texts(NamedTuple):
    """The texts of evaluations to search for, and the texts that are too short.

    records     (evaluation, number from 0 in its file, `id` as text if it has one) of each record
    record_of   the index of each text's record
    fields      the field of each text; of a joined text all their names
    too_short   rows of the table
    """

    records: list[tuple[str, int, str | None]]
    record_of: list[int]
    fields: list[str]
    too_short: list[tuple[Any, ...]]

    def read(self, corpus: Corpus, fields: Sequence[str], least: int) -> Iterator[tuple[bytes, int]]:
        """Take in all records in order; yield the words of each text of at least `least` words, and their number.

        PilekitError for a bad line, if no record of a file has any of the fields, and if none of all has one of them.
        """
        absent = set(fields)
        for evaluation, shard in zip(evaluation_names(corpus.shards), corpus.shards, strict=True):
            present_fields = set[str]()
            for number, (_, raw) in enumerate(raw_records(shard, fields)):
                texts = _texts_of(raw, fields, shard, number)
                present_fields.update(texts)
                record = evaluation, number, None if raw.get("id") is None else str(raw["id"])
                for field, text in texts.items():
                    words, count = compacted(text)
                    if count >= least:
                        self.record_of.append(len(self.records))
                        self.fields.append(field)
                        yield words, count
                    else:
                        self.too_short.append((*record, field, count, text))
                self.records.append(record)
            absent -= present_fields
            if not present_fields:
                raise _no_field(shard, fields)
        if absent:
            raise _no_field(corpus.shards[0], sorted(absent))


def _no_field(shard: Shard, fields: Sequence[str]) -> PilekitError:
    has = fields_of(first_records([shard]))
    return PilekitError(f"{shard.path}: no record has a field {', '.join(fields)}{has}; name the text with --fields")


def evaluation_names(shards: Sequence[Shard]) -> list[str]:
    """The name of each evaluation: the stem of its file, with folders if two stems are equal."""
    names = [stem(shard) for shard in shards]
    short = [Path(name).name for name in names]
    return short if len(set(short)) == len(short) else names


def record_texts(shard: Shard, fields: Sequence[str], numbers: Collection[int]) -> dict[int, dict[str, str]]:
    """The texts of some records of a file by field, a joined text under all their names; reads up to the last one."""
    texts = {}
    with closing(raw_records(shard, fields)) as records:
        for number, (_, raw) in enumerate(islice(records, max(numbers, default=-1) + 1)):
            if number in numbers:
                texts[number] = _texts_of(raw, fields, shard, number)
    return texts


def _texts_of(raw: Mapping[str, Any], fields: Sequence[str], shard: Shard, number: int) -> dict[str, str]:
    """The texts of a record by field, and of several fields all joined; PilekitError if a value is no text."""
    texts = {field: raw[field] for field in fields if raw.get(field) is not None}
    for field, value in texts.items():
        if not isinstance(value, str):
            raise PilekitError(
                f"{shard.path}, record {number:,}: {field} is no text but {shortened(value, 60)}; name other --fields"
            )
    if len(texts) > 1:
        texts[",".join(texts)] = " ".join(texts.values())
    return texts


def raw_records(shard: Shard, fields: Sequence[str]) -> Generator[tuple[int, Mapping[str, Any]], None, None]:
    """The records of a file, each with its line, from 1."""
    with shard_blocks(shard.path, ReadOptions(ahead=False), columns={*fields, "id"}) as blocks:
        for part in numbered_parts(blocks):
            for number, record in zip((part.numbers + 1).tolist(), records_of(part), strict=True):
                if type(record) is not dict:
                    why = record if isinstance(record, BadRecord) else f"is {kind_of(record)}, not a JSON object"
                    raise PilekitError(f"{shard.path}, line {number:,}: {shortened(why, 200)}")
                yield number, record
