"""Scanned rows equal decoded rows: numbers, labels, sizes, hashes, and the errors of bad lines."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError
from pilekit.shards.index import json_line_kernel as kernel
from pilekit.shards.index.document_rows import LineRows
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import LineBlock, whole_lines
from tests.shards.making import LABELS, lines, record

Found = list[tuple[int, str, int, int]]


def parser(skip: bool = True) -> LineParser:
    return LineParser("a.jsonl", "a.jsonl", RecordFormat(), None, SkippedLines() if skip else None)


def blocks_of(text: bytes, cuts: list[int]) -> list[LineBlock]:
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return list(whole_lines(iter([text[a:b] for a, b in pairwise(borders)]), 1 << 30))


def found_by(rows_of_lines: LineRows, blocks: list[LineBlock]) -> Found:
    number, found = 0, []
    for block in blocks:
        rows, count = rows_of_lines.rows(block, number)
        labels = [rows.labels[code] for code in rows.codes.tolist()]
        hashes = rows.text_hashes.tolist() if rows_of_lines.hashed else [0] * len(labels)
        found += list(zip(rows.numbers.tolist(), labels, rows.text_bytes.tolist(), hashes, strict=True))
        number += count
    return found


def check(text: bytes, cuts: list[int]) -> None:
    blocks = blocks_of(text, cuts)
    for hashed in (True, False):
        one, other = parser(), parser()
        scanned = found_by(LineRows(one, scan=True, hashed=hashed), blocks)
        assert scanned == found_by(LineRows(other, scan=False, hashed=hashed), blocks)
        assert one.skipped == other.skipped


characters = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from('"\\/\b\f\n\r\t\x00\x1f\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff'),
)


@st.composite
def spelt(draw: st.DrawFn) -> bytes:
    """A record in the Pile's form, each character of its text spelt in one of the ways that JSON has."""
    text = ""
    for character in draw(st.text(characters, max_size=30)):
        plain = json.dumps(character, ensure_ascii=False)[1:-1]
        escaped = "".join(f"\\u{unit:04x}" for unit in np.frombuffer(character.encode("utf-16-le"), "<u2").tolist())
        ways = [plain, json.dumps(character)[1:-1], escaped, escaped.upper().replace("\\U", "\\u")]
        text += draw(st.sampled_from(ways))
    label = draw(st.sampled_from(LABELS))
    return f'{{"text": "{text}", "meta": {{"pile_set_name": {json.dumps(label, ensure_ascii=False)}}}}}'.encode()


some_lines = st.lists(
    st.one_of(
        lines(), spelt(), spelt(), st.sampled_from([b"", b" ", b"bad", b'{"text": "\\ud800"}', record("x", "(none)")])
    ),
    max_size=20,
)


@given(some_lines, st.booleans(), st.lists(st.integers(0, 5000), max_size=5))
@example([record("a"), record("b", "ArXiv")] * 4, True, [40, 100, 160])
def test_scanned_rows_are_decoded_rows(some: list[bytes], ends: bool, cuts: list[int]) -> None:
    # Twice: in the second half the labels are known.
    check(b"\n".join([*some, *some]) + b"\n" * ends, [*cuts, len(b"\n".join(some))])


def test_more_lines_than_one_call_takes_and_more_labels_than_the_scan_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilekit.shards.index.json_line_kernel.LINES", 7)
    check(b"".join(record(f"{number} é", LABELS[number % 3]) + b"\n" for number in range(200)), [100, 5000])
    monkeypatch.setattr("pilekit.shards.index.json_line_kernel.KNOWN_LABELS", 5)
    text = b"".join(record(f"{number}", f"label {number % 9}") + b"\n" for number in range(300))
    check(text, list(range(0, len(text), 1000)))


def test_the_error_names_the_first_bad_line() -> None:
    text = b"".join(line + b"\n" for line in [record("a"), record("b"), b"bad", record("c"), b"worse"])
    with pytest.raises(PilekitError, match=r"a\.jsonl, line 3: is not JSON"):
        found_by(LineRows(parser(skip=False), scan=True), blocks_of(text, [20]))


def test_the_scan_is_given_up_where_lines_are_of_another_form() -> None:
    of_form = [record("a", f"label {number}") for number in range(10)]
    odd = [json.dumps({"meta": {"pile_set_name": "ArXiv"}, "text": "b"}).encode()] * 10
    for some, worthwhile in ((of_form, True), (odd, False)):
        scanner = LineRows(parser(), scan=True)
        for number in range(3):
            (block,) = whole_lines(iter([b"".join(line + b"\n" for line in some)]), 1 << 30)
            scanner.rows(block, 10 * number)
        assert scanner.scan is worthwhile


def test_texts_are_written_to_their_room_and_nowhere_else() -> None:
    text = b"".join(record("é\n" * number) + b"\n" for number in range(50))
    data, words = np.frombuffer(text, np.uint8), np.frombuffer(text, np.uint64, count=len(text) // 8)
    arrays = [np.zeros(100, dtype=np.int64) for _ in range(4)]
    form, labels = kernel.line_form("text", ("meta", "pile_set_name")), kernel.known_labels({"Github": 0})
    room = np.full(len(text) + 64, 0xAA, dtype=np.uint8)
    count, _ = kernel.scan_lines(data, words, 0, len(text), *form, *labels, *arrays, room)
    assert count == 50
    expected = "".join("é\n" * number for number in range(50)).encode()
    assert room[: len(expected)].tobytes() == expected
    assert (room[len(expected) :] == 0xAA).all()
