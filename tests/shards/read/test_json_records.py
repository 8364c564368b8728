"""Parsed lines equal the standard library's result, and a skipped line always belongs to another subset."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import NumberedLines
from pilekit.shards.read.read_errors import SkippedLines
from tests.shards.making import LABELS, lines, record, slow_documents, tricky_texts
from tests.shards.reading import documents

PILE = RecordFormat()
labels = st.sampled_from(LABELS)
selections = st.none() | st.sets(st.sampled_from([*LABELS, "(none)"]), min_size=1)


def parser(
    subsets: set[str] | None = None, skipped: SkippedLines | None = None, format: RecordFormat = PILE
) -> LineParser:
    return LineParser(path="shard.jsonl", shard="shard.jsonl", format=format, subsets=subsets, skipped=skipped)


def numbered(pieces: list[list[bytes]]) -> Iterator[NumberedLines]:
    """Lists of lines with their numbers, as `read_lines` gives them, but with blank lines."""
    for end, piece in zip(accumulate(map(len, pieces)), pieces, strict=True):
        yield NumberedLines(np.arange(end - len(piece), end), list(piece), end)


@given(st.lists(st.lists(lines(), max_size=5), max_size=4), st.integers(0, 12), selections)
def test_documents_are_those_of_a_plain_loop(pieces: list[list[bytes]], start: int, subsets: set[str] | None) -> None:
    all_lines = [line for piece in pieces for line in piece]
    batches = list(parser(subsets).batches(numbered(pieces), start))
    assert documents(batches) == [
        (number, text, label)
        for number, text, label in slow_documents(b"\n".join(all_lines))
        if number >= start and (subsets is None or label in subsets)
    ]
    for batch in batches:
        assert [bytes(line) for line in batch.raw_lines()] == [all_lines[number] for number in batch.numbers]


@given(tricky_texts, tricky_texts, labels, labels)
def test_text_that_imitates_an_ending_is_not_skipped(text: str, key: str, imitated: str, label: str) -> None:
    false_end = '", "meta": {"pile_set_name": "' + imitated + '"}}'
    for imitation in (
        {"text": text, "meta": {"pile_set_name": label}, f"k{key}": {"meta": {"pile_set_name": imitated}}},
        {"meta": {"pile_set_name": label}, "text": text + false_end},
        {"text": text, "x": {"y": 1, "meta": {"pile_set_name": imitated}}, "meta": {"pile_set_name": label}},
        {"text": text, "meta": {"pile_set_name": label, "meta": {"pile_set_name": imitated}}},
    ):
        line = json.dumps(imitation).encode()
        assert documents(parser({label}).batches(numbered([[line]]))) == slow_documents(line)


def test_lines_of_other_subsets_are_skipped_in_both_spellings() -> None:
    spaced = record("x", "ArXiv")
    both = [spaced, spaced.replace(b": ", b":").replace(b", ", b",") + b"\r"]
    assert parser().may_be_of(list(both), {"Github"}) == []
    assert parser().may_be_of(list(both), {"ArXiv"}) == [0, 1]


BAD = [
    (b'{"text": "a', "not JSON: unexpected end of data (byte 11 of the line)"),
    ('{"text": "é" x'.encode(), "(byte 14 of the line)"),
    (b'{"text": "\xed\xa0\x80"}', "not valid UTF-8 (byte 10 of the line)"),
    (rb'{"text": "\ud800"}', "lone surrogate"),
    (b'{"meta": {"pile_set_name": "ArXiv"}}', 'has no "text" field'),
    (b'{"text": null}', 'field "text" is null, not a string'),
    (b'["text"]', "is a list, not a JSON object"),
    (b'{"text": "a", "meta": "b"}', 'field "meta" is a string, not an object'),
    (b'{"text": "a", "meta": {"pile_set_name": true}}', 'field "meta.pile_set_name" is a boolean, not a string'),
    (b"[" * 3000, "depth"),
]


def test_bad_lines_name_file_line_and_reason_and_skipped_ones_are_counted() -> None:
    for line, reason in BAD:
        with pytest.raises(PilekitError) as raised:
            list(parser().batches(numbered([[record("a"), record("b")], [record("c"), line, record("d")]])))
        message = str(raised.value)
        assert message.startswith("shard.jsonl, line 4: ")
        assert reason in message
        assert "skip" in message
        assert "\n" not in message
        skipped = SkippedLines()
        (batch,) = parser(skipped=skipped).batches(numbered([[record("a"), b"", line, record("d")]]))
        assert (batch.texts, batch.numbers.tolist()) == (["a", "d"], [0, 3])
        assert (skipped.count, skipped.examples[0].line) == (1, 3)
        assert reason in str(skipped.examples[0])
    skipped = SkippedLines()
    assert list(parser(skipped=skipped).batches(numbered([[b"x"] * 5000]))) == []
    assert (skipped.count, len(skipped.examples)) == (5000, 100)


def test_documents_without_label_and_other_formats() -> None:
    unlabelled = [b'{"text": "a"}', b'{"text": "b", "meta": {}}', b'{"text": "c", "meta": null}']
    for subsets in (None, {"(none)"}):
        (batch,) = parser(subsets).batches(numbered([list(unlabelled)]))
        assert (batch.texts, batch.subsets) == (["a", "b", "c"], ["(none)"] * 3)
    pieces = [[b'{"content": "a", "source": "web"}', b'{"source": "books", "content": "b"}']]
    other = parser({"web"}, format=RecordFormat("content", ("source",)))
    assert [batch.texts for batch in other.batches(numbered(pieces))] == [["a"]]


def test_a_line_that_memory_does_not_hold_is_not_a_bad_line() -> None:
    """There is room for a copy of the line, but not for the parser's buffer."""
    script = """if 1:
        import resource
        from pathlib import Path
        from pilekit.shards.read.json_records import record_of
        line = b'{"text": "' + b"x" * 50_000_000 + b'"}'
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + 120_000_000,) * 2)
        try:
            print(record_of(line))
        except MemoryError:
            print("out of memory")
    """
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "out of memory\n"
