"""Parsed lines equal the standard library's result, and a skipped line always belongs to another subset."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.json_records import LineParser, _ending_pattern, may_be_wanted
from tests.shards.making import LABELS, lines, record, slow_documents, tricky_texts

ENDING = re.compile(_ending_pattern(RecordFormat().label_path))


def parser(subsets: list[str] | None = None, skipped: SkippedLines | None = None) -> LineParser:
    chosen = None if subsets is None else frozenset(subsets)
    return LineParser(path="shard.jsonl", shard="shard.jsonl", format=RecordFormat(), subsets=chosen, skipped=skipped)


@given(st.lists(st.lists(lines(), max_size=5), max_size=4), st.integers(0, 12))
def test_all_documents(pieces: list[list[bytes]], start: int) -> None:
    expected = [d for d in slow_documents(b"\n".join(line for piece in pieces for line in piece)) if d[0] >= start]
    found = [
        (int(number), text, subset)
        for batch in parser().batches(iter(pieces), start)
        for number, text, subset in zip(batch.numbers, batch.texts, batch.subsets, strict=True)
    ]
    assert found == expected


@given(st.lists(st.lists(lines(), max_size=5), max_size=4), st.sets(st.sampled_from([*LABELS, "(none)"]), min_size=1))
def test_selected_documents(pieces: list[list[bytes]], subsets: set[str]) -> None:
    everything = slow_documents(b"\n".join(line for piece in pieces for line in piece))
    found = []
    for batch in parser(sorted(subsets)).batches(iter(pieces)):
        found += list(zip(batch.numbers.tolist(), batch.texts, batch.subsets, strict=True))
        all_lines = [line for piece in pieces for line in piece]
        assert [bytes(line) for line in batch.raw_lines()] == [all_lines[n] for n in batch.numbers]
    assert found == [document for document in everything if document[2] in subsets]


@given(lines(), st.sampled_from(LABELS))
def test_a_line_is_skipped_only_if_it_belongs_to_another_subset(line: bytes, wanted: str) -> None:
    if not may_be_wanted(line, ENDING, {wanted.encode()}):
        assert json.loads(line)["meta"]["pile_set_name"] != wanted


@given(tricky_texts, tricky_texts, st.sampled_from(LABELS), st.sampled_from(LABELS))
def test_text_that_imitates_an_ending_is_not_skipped(text: str, key: str, imitated: str, label: str) -> None:
    for record_ in (
        {"text": text, "meta": {"pile_set_name": label}, key or "k": {"meta": {"pile_set_name": imitated}}},
        {"meta": {"pile_set_name": label}, "text": text + '", "meta": {"pile_set_name": "' + imitated + '"}}'},
        {"text": text, "x": {"y": 1, "meta": {"pile_set_name": imitated}}, "meta": {"pile_set_name": label}},
        {"text": text, "meta": {"pile_set_name": label, "meta": {"pile_set_name": imitated}}},
    ):
        if record_.get("meta") != {"pile_set_name": label}:
            label_now = record_["meta"]["pile_set_name"]  # type: ignore[index]
        else:
            label_now = label
        assert may_be_wanted(json.dumps(record_).encode(), ENDING, {str(label_now).encode()})


def test_lines_of_other_subsets_are_skipped_in_both_spellings() -> None:
    for line in (record("x", "ArXiv"), record("x", "ArXiv").replace(b": ", b":").replace(b", ", b",") + b"\r"):
        assert not may_be_wanted(line, ENDING, {b"Github"})
        assert may_be_wanted(line, ENDING, {b"ArXiv"})


BAD = [
    (b"nope", "not JSON"),
    (b'{"text": "a', "not JSON: unexpected end of data (byte 11 of the line)"),
    (b'{"text": "\xff"}', "not valid UTF-8 (byte 10 of the line)"),
    (b'{"text": "\xed\xa0\x80"}', "not valid UTF-8 (byte 10 of the line)"),
    (rb'{"text": "\ud800"}', "lone surrogate"),
    (rb'{"text": "\udc00x"}', "lone surrogate"),
    ('{"text": "é" x'.encode(), "(byte 14 of the line)"),
    (b'{"meta": {"pile_set_name": "ArXiv"}}', 'has no "text" field'),
    (b'{"text": 3}', 'field "text" is a number, not a string'),
    (b'{"text": null}', 'field "text" is null, not a string'),
    (b'{"text": ["a"]}', 'field "text" is a list, not a string'),
    (b'["text"]', "is a list, not a JSON object"),
    (b'"text"', "is a string, not a JSON object"),
    (b'{"text": "a", "meta": "b"}', 'field "meta" is a string, not an object'),
    (b'{"text": "a", "meta": {"pile_set_name": true}}', 'field "meta.pile_set_name" is a boolean, not a string'),
    (b"[" * 3000, "not JSON: depth limit exceeded"),
]


def test_bad_lines_name_file_line_and_reason() -> None:
    for line, reason in BAD:
        with pytest.raises(PilekitError) as raised:
            list(parser().batches(iter([[record("a"), record("b")], [record("c"), line, record("d")]])))
        message = str(raised.value)
        assert message.startswith("shard.jsonl, line 4: ")
        assert reason in message
        assert "skip" in message
        assert "\n" not in message


def test_skipped_lines_are_counted_and_listed_and_keep_their_numbers() -> None:
    for line, reason in BAD:
        skipped = SkippedLines()
        (batch,) = parser(skipped=skipped).batches(iter([[record("a"), b"", line, record("d")]]))
        assert (batch.texts, batch.numbers.tolist()) == (["a", "d"], [0, 3])
        assert (skipped.count, skipped.examples[0].line) == (1, 3)
        assert reason in str(skipped.examples[0])
    skipped = SkippedLines()
    assert list(parser(skipped=skipped).batches(iter([[b"x"] * 5000]))) == []
    assert (skipped.count, len(skipped.examples)) == (5000, 100)


def test_unlabelled_documents() -> None:
    unlabelled = [b'{"text": "a"}', b'{"text": "b", "meta": {}}', b'{"text": "c", "meta": null}']
    batch = parser().parse(list(unlabelled), np.arange(3))
    assert batch.subsets == ["(none)"] * 3
    assert parser(["(none)"]).parse(list(unlabelled), np.arange(3)).texts == ["a", "b", "c"]


def test_other_formats() -> None:
    format = RecordFormat("content", ("source",))
    other = LineParser(path="s", shard="s", format=format, subsets=frozenset(["web"]), skipped=None)
    pieces = [[b'{"content": "a", "source": "web"}', b'{"source": "books", "content": "b"}']]
    assert [batch.texts for batch in other.batches(iter(pieces))] == [["a"]]
