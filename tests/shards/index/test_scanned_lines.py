"""The compiled scan gives the rows of decoded lines: numbers, labels, sizes, hashes, and the same bad lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.corpus import shard_of
from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError
from pilekit.shards.index import json_line_kernel as kernel
from pilekit.shards.index.document_rows import SCANNED_FROM_BYTES, DocumentRows, LineScanner, document_rows, index_rows
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import LineBlock, LineCount, numbered_parts, whole_lines
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.read.read_errors import SkippedLines
from tests.shards.making import LABELS, lines, record, write_shard

TAUGHT = b"".join(record("a", label) + b"\n" for label in [*LABELS, 'a "quoted" label', "back\\slash", "\x00"])
"""A block that teaches the scan its labels."""


def parser(skip: bool = True) -> LineParser:
    return LineParser("a.jsonl", "a.jsonl", RecordFormat(), None, SkippedLines() if skip else None)


def blocks_of(text: bytes, cuts: list[int]) -> Iterator[LineBlock]:
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return whole_lines(iter([text[a:b] for a, b in pairwise(borders)]), 1 << 30, LineCount())


def listed(parts: Iterable[DocumentRows], hashed: bool) -> list[tuple[int, str, int, int]]:
    rows = []
    for part in parts:
        labels = [part.labels[code] for code in part.codes.tolist()]
        hashes = part.text_hashes.tolist() if hashed else [0] * len(labels)
        rows += list(zip(part.numbers.tolist(), labels, part.text_bytes.tolist(), hashes, strict=True))
    return rows


def check(text: bytes, cuts: list[int], **limits: int) -> None:
    for hashed in (True, False):
        one, other = parser(), parser()
        scanner = LineScanner(one, hashed=hashed, **limits)
        scanned, odd_lines = [], b""
        for documents in chain.from_iterable(map(scanner.documents, blocks_of(text, cuts))):
            scanned.append(documents.rows)
            odd_lines += documents.lines(documents.rows.numbers % 3 != 1)
            assert documents.lines(documents.rows.numbers < 0) == b""
        batches = list(other.batches(numbered_parts(blocks_of(text, cuts))))
        assert listed(scanned, hashed) == listed((index_rows(batch, hashed=hashed) for batch in batches), hashed)
        raw = [zip(batch.numbers.tolist(), batch.raw_lines(), strict=True) for batch in batches]
        assert odd_lines == b"".join(
            bytes(line) + b"\n" for number, line in chain.from_iterable(raw) if number % 3 != 1
        )
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


single = b'"\\{}[]:,un0dDfF89aA /\t\r\x00\x1f\x7f\x80\xbf\xc0\xc1\xc2\xe0\xed\xef\xf0\xf4\xf5\xff'
several = [
    b"\\u",
    b"\\ud800",
    b"\\udc00",
    b"\xe2\x82\xac",
    b"\xf0\x9f\x98\x80",
    b"\xed\xa0\x80",
    b"\xc3\xa9",
    b"12345678",
]
bytes_that_matter = st.sampled_from([*(bytes([byte]) for byte in single), *several])
any_texts = st.lists(bytes_that_matter, max_size=30).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A line with bytes removed and inserted."""
    line = draw(lines())
    for _ in range(draw(st.integers(1, 4))):
        place, removed = draw(st.integers(0, len(line))), draw(st.integers(0, 3))
        line = line[:place] + draw(bytes_that_matter) + line[place + removed :]
    return line


def of_text(text: bytes) -> bytes:
    return b'{"text": "' + text + b'","meta": {"pile_set_name": "ArXiv"}}'


odd_lines = st.sampled_from([b"", b" ", b"bad", b'{"text": "\\ud800"}', record("x", "(none)"), record("x", "unknown")])


@given(
    st.lists(st.one_of(lines(), spelt(), damaged(), any_texts.map(of_text), odd_lines), max_size=20),
    st.booleans(),
    st.lists(st.integers(0, 5000), max_size=3),
)
@example([record("a"), record("b", "ArXiv")] * 4, True, [40, 100, 160])
@example([of_text(b"x" * plain + special) for plain in range(150) for special in several], False, [5000])
@example([*map(of_text, [b"\\ud83d\\ude00", b"\\ud83d", b"1234567\\", b'", "']), record("b", "\n")], True, [])
def test_scanned_rows_are_decoded_rows(some: list[bytes], ends: bool, cuts: list[int]) -> None:
    check(TAUGHT + b"\n".join(some) + b"\n" * ends, [len(TAUGHT), *(len(TAUGHT) + cut for cut in cuts)])


def test_more_lines_than_one_call_takes_and_more_labels_than_the_scan_knows() -> None:
    check(b"".join(record(f"{number} é", LABELS[number % 3]) + b"\n" for number in range(200)), [100, 5000], lines=7)
    text = b"".join(record(f"{number}", f"label {number % 9}") + b"\n" for number in range(300))
    check(text, list(range(0, len(text), 1000)), labels=5)


def test_the_usual_form_is_scanned_and_nothing_is_written_after_the_room_for_texts() -> None:
    labels = kernel.known_labels({label: row + 5 for row, label in enumerate([*LABELS, 'a "quoted" label'])})
    texts = ["é\n" * number for number in range(50)]
    of_each = [LABELS[number % 6] for number in range(50)]
    spellings = [
        json.dumps({"text": text, "meta": {"pile_set_name": label}}, ensure_ascii=number % 2 == 1 and label.isascii())
        for number, (text, label) in enumerate(zip(texts, of_each, strict=True))
    ]
    text = "\n".join([*(line.replace('"}}', '" \t}}\r ') for line in spellings), ""]).encode()
    begins, ends, rows, sizes = (np.zeros(100, dtype=np.int64) for _ in range(4))
    memory = np.full(len(text) + 64, 0xAA, dtype=np.uint8)
    room = memory[: len(text)]
    form = kernel.line_form("text", ("meta", "pile_set_name"))
    count, end = kernel.scan_lines(
        np.frombuffer(text, np.uint8), 0, len(text), *form, *labels, begins, ends, rows, sizes, room
    )
    assert (count, end) == (50, len(text))
    assert rows[:50].tolist() == [LABELS.index(label) + 5 for label in of_each]
    assert sizes[:50].tolist() == [len(text.encode()) for text in texts]
    assert [text[a:b] for a, b in zip(begins[:50], ends[:50], strict=True)] == text.split(b"\n")[:-1]
    expected = "".join(texts).encode()
    assert room[: len(expected)].tobytes() == expected
    assert (memory[len(text) :] == 0xAA).all()


def test_the_error_names_the_first_bad_line() -> None:
    text = b"".join(line + b"\n" for line in [record("a"), record("b"), b"bad", record("c"), b"worse"])
    with pytest.raises(PilekitError, match=r"a\.jsonl, line 3: is not JSON"):
        list(chain.from_iterable(map(LineScanner(parser(skip=False)).documents, blocks_of(text, [20]))))


def test_the_scan_is_given_up_where_lines_are_of_another_form() -> None:
    of_form = [record("a", f"label {number}") for number in range(10)]
    odd = [json.dumps({"meta": {"pile_set_name": "ArXiv"}, "text": "b"}).encode()] * 10
    for some, worthwhile in ((of_form, True), (odd, False)):
        scanner = LineScanner(parser())
        for block in blocks_of(b"".join(line + b"\n" for line in some * 3), [300, 600]):
            list(scanner.documents(block))
        assert scanner.pays is worthwhile


def test_a_process_that_reads_much_scans_and_stops_where_it_does_not_pay(tmp_path: Path) -> None:
    """The rows are the same, with the names of subsets, whether all, some or no lines are scanned."""
    odd = [json.dumps({"meta": {"pile_set_name": "github"}, "text": f"{number}"}).encode() for number in range(3000)]
    good = [record(f"{number} é", ("GitHub", *LABELS)[number % 7]) for number in range(3000)]
    for name, some in (("a.jsonl", [*good, b"bad", b"", *odd]), ("b.jsonl.zst", [*odd, *good])):
        shard, rows = shard_of(str(write_shard(tmp_path / name, some))), []
        for stored in (0, SCANNED_FROM_BYTES):
            skipped = SkippedLines()
            reader = LineParser.for_shard(shard, None, None, "skip", skipped)
            rows.append((listed(document_rows(shard, reader, ReadOptions(stored=stored)), hashed=True), skipped))
        assert rows[0] == rows[1]
        assert {row[1] for row in rows[0][0]} == {"Github", *LABELS}
