"""The compiled scan accepts no line that the careful reader refuses, and its counts are equal."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.corpus import Corpus, shard_of
from pilekit.errors import PilekitError
from pilekit.shards.index.document_rows import document_rows
from pilekit.shards.index.json_line_kernel import CAREFUL, KNOWN_LABELS, LINES, known_labels, line_form, scan_lines
from pilekit.shards.write.shard_writer import ShardWriter
from pilekit.stats import summary
from pilekit.stats.summary import corpus_stats
from tests.shards.making import LABELS, lines, record, zstd_frame

KNOWN = {label: row + 5 for row, label in enumerate([*LABELS, 'a "quoted" label', "back\\slash", "", "\x00"])}

Scanned = list[tuple[bytes, int, int]]


def scanned(data: bytes, known: dict[str, int] | None = None, capacity: int = LINES) -> Scanned:
    """(line, row, size) of every line of `data`, from as many calls as it takes."""
    known = KNOWN if known is None else known
    arrays = [np.zeros(capacity, dtype=np.int64) for _ in range(4)]
    bytes_, words = np.frombuffer(data, np.uint8), np.frombuffer(data, np.uint64, count=len(data) // 8)
    found: Scanned = []
    begin = 0
    while begin < len(data):
        form = line_form("text", ("meta", "pile_set_name"))
        count, begin = scan_lines(bytes_, words, begin, len(data), *form, *known_labels(known), *arrays)
        assert 0 < count <= capacity
        begins, ends, rows, sizes = (array[:count].tolist() for array in arrays)
        assert all(a < b for a, b in pairwise(begins))
        found += [(data[a:b], row, size) for a, b, row, size in zip(begins, ends, rows, sizes, strict=True)]
    return found


def careful(line: bytes) -> tuple[str, int] | None:
    """(label, UTF-8 bytes) by orjson; None if it is no labelled document."""
    try:
        record = orjson.loads(line)
        return record["meta"]["pile_set_name"], len(record["text"].encode())
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return None


def check(data: bytes, capacity: int = LINES) -> None:
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    found = scanned(data, capacity=capacity)
    assert [line for line, _, _ in found] == expected
    for line, row, size in found:
        if row != CAREFUL:
            read = careful(line)
            assert read is not None, f"the scan took a line that is no document: {line!r}"
            assert (KNOWN[read[0]], read[1]) == (row, size)


@given(st.lists(lines(), max_size=6), st.booleans(), st.integers(1, 3))
def test_what_is_scanned_is_what_is_read(some: list[bytes], ends: bool, capacity: int) -> None:
    check(b"\n".join(some) + (b"\n" if ends and some else b""), capacity)


bytes_that_matter = st.sampled_from(
    [
        bytes([byte])
        for byte in b'"\\{}[]:,un0dDfF89aA /\t\r\n\x00\x1f\x7f\x80\xbf\xc0\xc1\xc2\xe0\xed\xef\xf0\xf4\xf5\xff'
    ]
    + [b"\\u", b"\\ud800", b"\\udc00", b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"\xc3\xa9", b"12345678"]
)


@given(lines(), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), bytes_that_matter), min_size=1, max_size=4))
def test_damaged_lines_are_never_taken_for_documents(line: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    for place, removed, inserted in edits:
        place = min(place, len(line))
        line = line[:place] + inserted + line[place + removed :]
    if line:
        check(line)


@given(st.lists(bytes_that_matter, max_size=30).map(b"".join), st.sampled_from([b", ", b","]))
@example(b"\\ud83d\\ude00", b", ")
@example(b"\\ud83d", b", ")
@example(b"1234567\\", b", ")
def test_any_bytes_between_the_quotes(text: bytes, comma: bytes) -> None:
    if b"\n" not in text:
        check(b'{"text": "' + text + b'"' + comma + b'"meta": {"pile_set_name": "ArXiv"}}')


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), st.sampled_from(LABELS), st.booleans())
def test_the_usual_form_is_scanned_whatever_the_text(text: str, label: str, ascii_only: bool) -> None:
    line = json.dumps({"text": text, "meta": {"pile_set_name": label}}, ensure_ascii=ascii_only).encode()
    if label.isascii() or not ascii_only:
        assert scanned(line) == [(line, KNOWN[label], len(text.encode()))]
        compact = line.replace(b'"}}', b'" \t}}\r ')
        assert scanned(compact)[0][1] == KNOWN[label]


def test_a_label_that_spans_lines_or_needs_escapes_is_left() -> None:
    for raw in (b'a "quoted" label', b"back\\slash", b"\x00", b"\n"):
        check(b'{"text": "a", "meta": {"pile_set_name": "' + raw + b'"}}\n' + record("b", "ArXiv"))


def test_the_table_of_labels_is_bounded() -> None:
    many = {f"label {row}": row for row in range(1000)}
    assert len(known_labels(many)[1]) == KNOWN_LABELS
    line = record("a", "label 999")
    assert scanned(line, many) == [(line, CAREFUL, 1)]


def stats_of(path: Path, scan: bool, monkeypatch: pytest.MonkeyPatch, **options: object) -> object:
    monkeypatch.setattr(summary, "SCANNED_FROM_BYTES", 0 if scan else 1 << 60)
    try:
        stats = corpus_stats(Corpus(path), **options)  # type: ignore[arg-type]
    except PilekitError as error:
        return str(error)
    return stats.to_dict(), [str(bad) for bad in stats.skipped.examples]


@given(
    st.lists(st.one_of(lines(), lines(), st.sampled_from([b"{", b'{"text": 1}'])), min_size=1, max_size=40), st.data()
)
def test_both_ways_count_alike(
    tmp_path_factory: pytest.TempPathFactory, some: list[bytes], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("counted")
    text = b"\n".join(some)
    path = folder / data.draw(st.sampled_from(["a.jsonl", "a.jsonl.zst"]))
    path.write_bytes((zstd_frame(text) if path.suffix == ".zst" else text) or b"\n")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for on_error in ("raise", "skip"):
            read = stats_of(path, False, monkeypatch, on_error=on_error)
            assert stats_of(path, True, monkeypatch, on_error=on_error) == read


def test_a_shard_of_many_pieces_counts_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl.zst"
    rng = np.random.default_rng(0)
    sizes = [*rng.integers(0, 3000, 2000).tolist(), 5_000_000, *[0] * 10_000]
    with ShardWriter(path) as writer:
        writer.write_lines(record("é" * (size % 7) + "x\n" * (size // 2), LABELS[size % 6]) for size in sizes)
    for copies in (False, True):
        assert stats_of(path, True, monkeypatch, copies=copies) == stats_of(path, False, monkeypatch, copies=copies)
    stored = path.read_bytes()
    path.write_bytes(stored[: len(stored) // 2])
    damage = stats_of(path, True, monkeypatch)
    assert "is cut off" in str(damage)
    assert damage == stats_of(path, False, monkeypatch)


def test_a_shard_of_another_form_is_read_as_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    line = b'{"meta": {"pile_set_name": "ArXiv"}, "text": "%s"}\n' % (b"a" * 2000)
    path.write_bytes(line * 3000)
    calls: list[int] = []

    def counting(*arguments: object) -> tuple[int, int]:
        calls.append(1)
        return scan_lines(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("pilekit.shards.index.json_line_kernel.scan_lines", counting)
    rows = list(document_rows(shard_of(str(path)), ahead=False, hashed=False))
    assert sum(int(some.text_bytes.sum()) for some in rows) == 2000 * 3000
    assert len(calls) == 2, "the first piece teaches the label, the second shows that it was not the label"


def test_real_text_counts_alike(real_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = real_corpus / "minipile-00.jsonl.zst"
    assert stats_of(path, True, monkeypatch) == stats_of(path, False, monkeypatch)
