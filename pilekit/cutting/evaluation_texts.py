"""The texts of evaluations: JSON lines, Parquet and Pile shards, record by record.

A record's texts are the values of the given fields. If there are several, all values joined are one more text. A
question is a text by itself, and joined with none.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from pilekit.corpus import Corpus, Shard
from pilekit.corpus.shard import stem
from pilekit.cutting.ngrams import SHORTEST, SHORTEST_ITEM
from pilekit.cutting.record_fields import RecordFields
from pilekit.cutting.words import compacted_all
from pilekit.errors import PilekitError, shortened
from pilekit.shards.read.absent_label import fields_of, first_records
from pilekit.shards.read.blocks import shard_blocks
from pilekit.shards.read.json_records import kind_of, records_of
from pilekit.shards.read.lines import numbered_parts
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.read.read_errors import BadRecord

CHARACTERS = 1 << 20
"""Texts and answers with about so many characters are taken in together."""


@dataclass(frozen=True)
class Texts:
    """The texts of evaluations to search for, and the texts that are too short.

    records     (evaluation, number from 0 in its file, `id` as text if it has one) of each record
    answers     the words of each record's answers, each followed by a space; the first n-gram of a longer answer
    record_of   the index of each text's record
    fields      the field of each text; of a joined text all their names
    too_short   rows of the table
    """

    record_fields: RecordFields
    records: list[tuple[str, int, str | None]] = field(default_factory=list)
    answers: list[list[bytes]] = field(default_factory=list)
    record_of: list[int] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    too_short: list[tuple[Any, ...]] = field(default_factory=list)

    def read(self, corpus: Corpus, ngram: int) -> Iterator[tuple[bytes, int]]:
        """Take in all records in order; yield the words of each text that is long enough, and their number.

        PilekitError for a bad line, if no record of a file has any of the fields, and if none of all has one of them.
        """
        absent, waiting = set(self.record_fields.names), _Waiting()
        for evaluation, shard in zip(evaluation_names(corpus.shards), corpus.shards, strict=True):
            present_fields = set[str]()
            for number, (_, raw) in enumerate(raw_records(shard, self.record_fields.names)):
                texts, place = _texts_of(raw, self.record_fields, shard, number), f"{shard.path}, record {number:,}"
                answers = self.record_fields.answers(raw, place) if self.record_fields.question in texts else []
                present_fields.update(texts)
                absent.difference_update(raw)
                for name, text in texts.items():
                    is_item = bool(answers) and name == self.record_fields.question
                    waiting.add_text(len(self.records), name, text, self.shortest(ngram, is_item))
                waiting.add_answers(len(self.records), answers)
                self.records.append((evaluation, number, None if raw.get("id") is None else str(raw["id"])))
                self.answers.append([])
                if waiting.characters >= CHARACTERS:
                    yield from self._take_in(waiting, ngram)
                    waiting = _Waiting()
            if not present_fields:
                raise _no_field(shard, self.record_fields.searched, self.record_fields)
        if absent:
            raise _no_field(corpus.shards[0], sorted(absent), self.record_fields)
        yield from self._take_in(waiting, ngram)

    def _take_in(self, waiting: _Waiting, ngram: int) -> Iterator[tuple[bytes, int]]:
        """`read` for some texts, and answers, whose words are found together."""
        columns = zip(waiting.record_of, waiting.fields, waiting.least, waiting.texts, strict=True)
        for (record, name, least, text), words in zip(columns, _words_of(waiting.texts), strict=True):
            count = words.count(b" ")
            if count >= least:
                self.record_of.append(record)
                self.fields.append(name)
                yield words, count
            else:
                self.too_short.append((*self.records[record], name, count, text))
        for record, words in zip(waiting.answer_of, _words_of(waiting.answers), strict=True):
            if words:
                self.answers[record].append(_first_words(words, ngram))

    @staticmethod
    def shortest(ngram: int, is_item: bool) -> int:
        """The fewest words of a text that is searched for; an item is a question with an answer."""
        return min(SHORTEST_ITEM if is_item else SHORTEST, ngram)


@dataclass
class _Waiting:
    """Texts and answers of records whose words are not found yet, in lists that the garbage collector need not visit.

    record_of, fields, texts   the index of each text's record, its field, and the text
    least                      the fewest words with which it is searched for
    answer_of, answers         the index of each answer's record, and the answer
    characters                 of all
    """

    record_of: list[int] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    least: list[int] = field(default_factory=list)
    answer_of: list[int] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    characters: int = 0

    def add_text(self, record: int, name: str, text: str, least: int) -> None:
        self.record_of.append(record)
        self.fields.append(name)
        self.texts.append(text)
        self.least.append(least)
        self.characters += len(text)

    def add_answers(self, record: int, answers: Sequence[str]) -> None:
        for answer in answers:
            self.answer_of.append(record)
            self.answers.append(answer)
            self.characters += len(answer)


def _words_of(texts: Sequence[str]) -> Iterator[bytes]:
    """The words of each text, each word followed by a space."""
    words, offsets = compacted_all(texts)
    return (words[begin:end].tobytes() for begin, end in pairwise(offsets.tolist()))


def _first_words(words: bytes, most: int) -> bytes:
    return words if words.count(b" ") <= most else b" ".join([*words.split(b" ", most)[:most], b""])


def _no_field(shard: Shard, names: Sequence[str], fields: RecordFields) -> PilekitError:
    has, options = fields_of(first_records([shard])), dict.fromkeys(map(fields.option, names))
    return PilekitError(
        f"{shard.path}: no record has a field {', '.join(names)}{has}; name another with {' or '.join(options)}"
    )


def evaluation_names(shards: Sequence[Shard]) -> list[str]:
    """The name of each evaluation: the stem of its file, with folders if two stems are equal."""
    names = [stem(shard) for shard in shards]
    short = [Path(name).name for name in names]
    return short if len(set(short)) == len(short) else names


def record_texts(shard: Shard, fields: RecordFields, numbers: Collection[int]) -> dict[int, dict[str, str]]:
    """The texts of some records of a file by field, a joined text under all their names; reads up to the last one."""
    texts = {}
    with closing(raw_records(shard, fields.names)) as records:
        for number, (_, raw) in enumerate(islice(records, max(numbers, default=-1) + 1)):
            if number in numbers:
                texts[number] = _texts_of(raw, fields, shard, number)
    return texts


def _texts_of(raw: Mapping[str, Any], fields: RecordFields, shard: Shard, number: int) -> dict[str, str]:
    """The texts of a record by field, and of several passages all joined; PilekitError if a value is no text."""
    texts = {name: raw[name] for name in fields.searched if raw.get(name) is not None}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise PilekitError(
                f"{shard.path}, record {number:,}: {name} is no text but {shortened(value, 60)}; name other --fields"
            )
    joined = [name for name in texts if name != fields.question]
    if len(joined) > 1:
        texts[",".join(joined)] = " ".join(texts[name] for name in joined)
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
