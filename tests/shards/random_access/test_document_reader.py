"""Documents by number: the same as reading gives, from only the frames in which they lie, and no trust in the index."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Corpus, load_manifest, shard_of
from pilekit.errors import PilekitError
from pilekit.shards.fingerprint import fingerprint
from pilekit.shards.index import frame_lines
from pilekit.shards.index.build import index_of
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.random_access import frame_lru, lines_by_number, rows_by_number
from pilekit.shards.random_access.document_reader import DocumentReader, StoredDocument, read_documents
from pilekit.shards.random_access.pile_documents import PileDocuments
from pilekit.shards.read.reader import read
from pilekit.shards.write.reframe import reframe_corpus
from pilekit.shards.write.shard_writer import ShardWriter
from tests.shards.making import lines, record, some_lines, zstd_frame
from tests.shards.reading import value_and_memory
from tests.web_server import serving

Hold = Callable[[int], None]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Set how many bytes of decoded frames are held."""
    with pytest.MonkeyPatch.context() as patch:

        def hold(size: int) -> None:
            for module in (frame_lru, lines_by_number, rows_by_number):
                patch.setattr(module, "HELD_BYTES", size)

        yield hold


def slow_document(line: bytes, number: int, shard: str) -> StoredDocument:
    """What the standard library makes of a line."""
    record = json.loads(line)
    subset = record.get("meta", {}).get("pile_set_name", "(none)")
    meta = record["meta"] if "meta" in record else {key: value for key, value in record.items() if key != "text"}
    return StoredDocument(record["text"], meta, subset, number, shard)


def long_lines(count: int) -> list[bytes]:
    """Distinct lines of about 16 kB that compress to half of that."""
    numbers = random.Random(count)
    return [record(f"{i} " + numbers.randbytes(numbers.randint(7000, 9000)).hex()) for i in range(count)]


def refused(path: Path | str, number: int) -> str:
    """The one line said of a number that cannot be read."""
    with pytest.raises(PilekitError) as raised:
        list(read_documents(path, [number]))
    message = str(raised.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@given(
    st.lists(lines(), min_size=1, max_size=30),
    st.booleans(),
    st.sampled_from([1 << 26, 300, 40, 0]),
    st.data(),
)
def test_however_it_is_stored_and_cut(
    tmp_path_factory: pytest.TempPathFactory, some: list[bytes], ends: bool, held: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("stored")
    text = b"\n".join(some) + (b"\n" if ends else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    (folder / "a.jsonl").write_bytes(text)
    (folder / "b.jsonl.zst").write_bytes(b"".join(zstd_frame(part) for part in parts))
    (folder / "c.jsonl.gz").write_bytes(b"".join(gzip.compress(part) for part in parts))
    every = text.split(b"\n")
    if not every[-1]:
        del every[-1]
    good = [number for number, line in enumerate(every) if line.strip()]
    asked = data.draw(st.lists(st.sampled_from(good), max_size=40)) if good else []
    with pytest.MonkeyPatch.context() as patch:
        for module in (frame_lru, lines_by_number):
            patch.setattr(module, "HELD_BYTES", held)
        patch.setattr(frame_lines, "MARK_BYTES", 50)
        for path in sorted(folder.iterdir()):
            if not path.stat().st_size:
                continue
            name = path.name.removesuffix(".zst").removesuffix(".gz")
            expected = [slow_document(every[number], number, name) for number in asked]
            assert list(read_documents(path, asked)) == expected
            for blank in set(range(len(every))) - set(good):
                assert f"number {blank} is no document: line {blank + 1} is blank" in refused(path, blank)
            assert f"has no document {len(every)}" in refused(path, len(every))


@pytest.mark.parametrize("held", [1 << 26, 0])
def test_numbers_come_one_by_one_in_the_order_asked(tmp_path: Path, hold: Hold, held: int) -> None:
    hold(held)
    path, some = tmp_path / "a.jsonl.zst", some_lines(100)
    with ShardWriter(path, frame_bytes=3000) as writer:
        writer.write_lines(some)
    asked = [70, 3, 3, 99, 0, 70, 70, 42, 3]
    assert [document.number for document in read_documents(str(path), iter(asked))] == asked
    assert list(read_documents(path, [])) == []
    assert [document.number for document in read_documents(shard_of(str(path)), np.array([5, 2]))] == [5, 2]
    if held:  # What never ends cannot be sorted, but neither need it be.
        endless = read_documents(path, itertools.cycle([7, 80]))
        assert [document.number for document in itertools.islice(endless, 5)] == [7, 80, 7, 80, 7]


def test_what_is_no_document_says_why(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    some = [record("a"), b"", b"{", b'{"text": 1}', b'{"txt": ""}', b"[]", b'{"text": "\xff"}', b'{"text": "b"}']
    path.write_bytes(zstd_frame(b"\n".join(some) + b"\n"))
    assert "number 1 is no document: line 2 is blank" in refused(path, 1)
    assert "number 2 is no document: line 3 is not JSON" in refused(path, 2)
    assert 'number 3 is no document: line 4 field "text" is a number, not a string' in refused(path, 3)
    assert 'number 4 is no document: line 5 has no "text" field' in refused(path, 4)
    assert "number 5 is no document: line 6 is a list, not a JSON object" in refused(path, 5)
    assert "number 6 is no document: line 7 is not valid UTF-8" in refused(path, 6)
    assert "has no document 8: its 8 lines have the numbers 0 to 7" in refused(path, 8)
    assert "has no document -1: numbers begin at 0" in refused(path, -1)
    with pytest.raises(PilekitError, match="a document's number is an integer, not '7'"):
        list(read_documents(path, ["7"]))  # type: ignore[list-item]
    assert list(read_documents(path, [7])) == [StoredDocument("b", {}, "(none)", 7, "a.jsonl")]


def test_a_shard_without_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd_frame(b""))
    assert "has no document 0: it has no lines" in refused(path, 0)


def test_where_text_and_label_are_is_the_manifests_to_say(tmp_path: Path) -> None:
    path, about = tmp_path / "a.jsonl", tmp_path / "other.toml"
    path.write_bytes(b'{"content": "a", "source": {"name": "web"}, "meta": "no object", "url": null}\n')
    about.write_text('name = "other"\ntext_field = "content"\nlabel_path = "source.name"\n')
    (document,) = read_documents(path, [0], manifest=load_manifest(about))
    fields = {"source": {"name": "web"}, "meta": "no object", "url": None}
    assert document == StoredDocument("a", fields, "web", 0, "a.jsonl")


def test_each_frame_is_decoded_once_and_only_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, some = tmp_path / "a.jsonl.zst", some_lines(400)
    text = b"\n".join(some)
    size = 5000  # cuts lines in two
    path.write_bytes(b"".join(zstd_frame(text[at : at + size]) for at in range(0, len(text), size)))
    begins = np.cumsum([0, *(len(line) + 1 for line in some)])
    decoded: list[int] = []
    decode = lines_by_number.LinesByNumber._decoded

    def counting(lines: lines_by_number.LinesByNumber, frame: int, stored: memoryview) -> bytes | None:
        decoded.append(frame)
        return decode(lines, frame, stored)

    monkeypatch.setattr(lines_by_number.LinesByNumber, "_decoded", counting)
    for number in (0, 1, 57, 200, 398, 399):
        decoded.clear()
        list(read_documents(path, [number]))
        first, last = begins[number] // size, (begins[number + 1] - 2) // size
        needed = list(range(first, last + 1))
        # The newline itself may be the next frame's first byte.
        assert decoded in (needed, [*needed, last + 1]), number
    decoded.clear()
    assert len(list(read_documents(path, [*range(400), *reversed(range(400))]))) == 800
    assert sorted(decoded) == list(range(len(text) // size + 1))


def test_what_is_fetched_does_not_depend_on_the_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    with ShardWriter(path) as writer:
        writer.write_lines(long_lines(800))
    frames = index_of(shard_of(str(path))).frames
    most = int(np.diff(frames.offset).max())
    with serving(tmp_path) as server:
        for number in (0, 1, 200, 399, 600):
            asked = read_documents(f"{server.url}{path.name}", [number])
            server.requests.clear()  # The index is loaded.
            assert next(asked).number == number
            assert server.sent <= most
            assert len(server.requests) == 1
    assert path.stat().st_size > 4 << 20


def test_a_shard_of_long_frames_is_read_once_whatever_is_asked(tmp_path: Path, hold: Hold) -> None:
    hold(100_000)
    path, some = tmp_path / "a.jsonl.zst", some_lines(20_000)
    path.write_bytes(b"".join(zstd_frame(b"\n".join(part) + b"\n") for part in (some[:4000], some[4000:])))
    shard, told = shard_of(str(path)), 0

    def advance(amount: int) -> None:
        nonlocal told
        told += amount

    index = index_of(shard)
    for known in (index, None):
        reader = DocumentReader(shard, known, advance=advance)
        for asked in ([7000, 20, 19_999, 21, 3999, 4000, 20], list(range(19_999, -1, -7))):
            told = 0
            expected = [slow_document(some[number], number, "a.jsonl") for number in asked]
            assert list(reader.read(asked)) == expected
            assert told <= path.stat().st_size
        assert reader.document(5).number == 5
        assert reader.batch(np.array([3, 3999, 4000])).numbers.tolist() == [3, 3999, 4000]
        reader.close()
    with pytest.raises(PilekitError, match=r"frames are longer .* reframe it first \(`pilekit reframe`\)"):
        PileDocuments(path)


def test_a_frame_that_one_document_makes_long(tmp_path: Path, hold: Hold) -> None:
    path = tmp_path / "a.jsonl.zst"
    some = [*some_lines(300), record("long " * 10_000), record("after"), *some_lines(3000)]
    with ShardWriter(path, frame_bytes=8000) as writer:
        writer.write_lines(some)
    hold(20_000)
    index = index_of(shard_of(str(path)))
    sizes = np.diff(index.frames.text_offset, append=index.header.content_bytes)
    assert (sizes > 20_000).sum() == 1
    with PileDocuments(path) as documents:
        for number in (300, 299, 301, 0, 3301):
            assert documents[number] == slow_document(some[number], number, "a.jsonl")
        frame = int(sizes.argmax())
        wrong = moved(index, frame, line_at=7)
        with pytest.raises(PilekitError, match="does not fit"):
            DocumentReader(documents.corpus.shards[0], wrong).document(int(index.frames.line[frame + 1]) - 1)


def test_memory_does_not_grow_with_the_frame(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    some = long_lines(500)
    block = b"".join(line + b"\n" for line in some)
    with path.open("wb") as file:
        for _ in range(40):
            file.write(stream.compress(block))
        file.write(stream.flush())
    index_of(shard_of(str(path)))
    script = """
from pilekit.shards.random_access.document_reader import read_documents
asked = [500 * 40 - 1, 5, 500 * 20]
value = sum(len(document.text) for document in read_documents(sys.argv[1], asked))
"""
    value, memory = value_and_memory(script, path)
    assert value == sum(len(slow_document(some[number], number, "").text) for number in (499, 5, 0))
    assert 40 * len(block) > 300e6
    assert 0 < memory < 60_000, "kilobytes"


def damaged_frame(path: Path) -> tuple[ShardIndex, int]:
    """Write and index a shard of many checksummed frames, then flip a bit as a disk does, unseen: (index, frame)."""
    with ShardWriter(path, frame_bytes=100_000) as writer:
        writer.write_lines(some_lines(20_000))
    index = index_of(shard_of(str(path)))
    stored, before = bytearray(path.read_bytes()), fingerprint(str(path))
    frame = len(index.frames) // 2
    stored[int(index.frames.offset[frame]) + 20_000] ^= 4
    times = path.stat()
    path.write_bytes(stored)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fingerprint(str(path)) == before
    return index, frame


def test_a_damaged_frame_is_named_and_all_others_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    index, frame = damaged_frame(path)
    begin, end = (int(index.frames.line[at]) for at in (frame, frame + 1))
    for number in (begin, (begin + end) // 2, end - 1):
        message = refused(path, number)
        assert f"frame {frame} is damaged" in message
        assert f"noticed at line {number + 1:,})" in message
    rest = [*range(begin), *range(end, 20_000)]
    assert [document.number for document in read_documents(path, rest)] == rest
    with pytest.raises(PilekitError, match="is damaged"):
        list(read(path))


@pytest.mark.parametrize("held", [1 << 26, 0])
def test_a_file_that_became_shorter(tmp_path: Path, hold: Hold, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_lines, "MARK_BYTES", 100_000)
    for name in ("a.jsonl.zst", "a.jsonl", "a.jsonl.gz"):
        path = tmp_path / name
        with ShardWriter(path, frame_bytes=100_000) as writer:
            writer.write_lines(some_lines(3000))
        shard = shard_of(str(path))
        index = index_of(shard)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        hold(held)
        reader = DocumentReader(shard, index)
        for _ in range(2):
            with pytest.raises(PilekitError, match=r"cut off|no frame begins|does not fit|cannot be read"):
                reader.document(2999)
        if name != "a.jsonl.gz":
            assert reader.document(0).number == 0


def moved(index: ShardIndex, frame: int, **by: int) -> ShardIndex:
    """The index with what it says of one frame changed."""
    changed = {}
    for name, amount in by.items():
        values = getattr(index.frames, name).copy()
        values[frame] += amount
        changed[name] = values
    return replace(index, frames=replace(index.frames, **changed))


@pytest.mark.parametrize(
    ("name", "by", "why"),
    [
        ("a.jsonl.zst", {"text_offset": 5}, "has another size"),
        ("a.jsonl.zst", {"text_offset": -5}, "has another size"),
        *((name, {"line": 1}, "other lines begin in frame") for name in ("a.jsonl.zst", "a.jsonl")),
        *((name, {"line": -1}, "other lines begin in frame") for name in ("a.jsonl.zst", "a.jsonl")),
        *((name, {"line_at": 7}, "other lines begin in frame") for name in ("a.jsonl.zst", "a.jsonl")),
    ],
)
def test_an_index_that_does_not_fit_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, by: dict[str, int], why: str
) -> None:
    monkeypatch.setattr(frame_lines, "MARK_BYTES", 3000)
    path, some = tmp_path / name, some_lines(200)
    with ShardWriter(path, frame_bytes=3000) as writer:
        writer.write_lines(some)
    shard = shard_of(str(path))
    index = index_of(shard)
    assert len(index.frames) > 5
    wrong = moved(index, 3, **by)
    first, behind = int(index.frames.line[3]), int(index.frames.line[4])
    reader = DocumentReader(shard, wrong)
    found = 0
    for number in range(200):
        try:
            document = reader.document(number)
        except PilekitError as error:
            assert why in str(error)
            assert f"{index.path}: does not fit {path}" in str(error)
            assert "remove it and make a new one with `pilekit index`" in str(error)
            found += 1
        else:
            assert document == slow_document(some[number], number, "a.jsonl")
            assert number < first or number >= behind - 1 or by.keys() == {"line"}
    assert found >= behind - first - 1
    reader.close()


def test_an_index_whose_frames_begin_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    with ShardWriter(path, frame_bytes=3000) as writer:
        writer.write_lines(some_lines(200))
    shard = shard_of(str(path))
    index = index_of(shard)
    reader = DocumentReader(shard, moved(index, 3, offset=1))
    with pytest.raises(PilekitError, match=r"no frame begins where one should; .* index it again .*frame 3, line"):
        reader.document(int(index.frames.line[3]))


def test_a_plain_file_changed_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_lines, "MARK_BYTES", 3000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(some_lines(200)))
    shard = shard_of(str(path))
    index = index_of(shard)
    stored = bytearray(path.read_bytes())
    stored[stored.index(b" ", int(index.frames.offset[2]) + 100)] = 10
    path.write_bytes(stored)
    reader = DocumentReader(shard, index)
    with pytest.raises(PilekitError, match=r"does not fit .* \(other lines begin in frame 2\)"):
        reader.document(int(index.frames.line[2]))


def test_a_line_longer_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl.zst"
    text = record("short") + b"\n" + record("long" * 5000) + b"\n"
    path.write_bytes(b"".join(zstd_frame(text[at : at + 5000]) for at in range(0, len(text), 5000)))
    index_of(shard_of(str(path)))
    monkeypatch.setattr(lines_by_number, "MAX_DOCUMENT_BYTES", 10_000)
    assert next(read_documents(path, [0])).text == "short"
    assert "line 2: is longer than 10,000 bytes" in refused(path, 1)


def test_standard_input_has_no_documents_by_number() -> None:
    with pytest.raises(PilekitError, match=r"standard input \(-\).*save it to a file first"):
        read_documents("-", [0])


def parquet_rows(count: int) -> list[dict[str, Any]]:
    labels = ["ArXiv", None, "Github"]
    return [
        {"text": f"row {i} " + "é" * (i % 50), "meta": {"pile_set_name": labels[i % 3], "url": f"u{i}"}, "other": i}
        for i in range(count)
    ]


@pytest.mark.parametrize("held", [1 << 26, 500, 0])
def test_parquet(tmp_path: Path, hold: Hold, held: int) -> None:
    hold(held)
    rows = parquet_rows(1000)
    nested, flat = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.Table.from_pylist(rows), nested, row_group_size=130)
    labels = pa.array([row["meta"]["pile_set_name"] for row in rows])
    texts, others = ([row[name] for row in rows] for name in ("text", "other"))
    pq.write_table(pa.table({"text": texts, "meta.pile_set_name": labels, "other": others}), flat, row_group_size=77)
    asked = [999, 0, 129, 130, 130, 131, 5, 500, 4]
    expected = [
        StoredDocument(rows[i]["text"], rows[i]["meta"], rows[i]["meta"]["pile_set_name"] or "(none)", i, "a.parquet")
        for i in asked
    ]
    assert list(read_documents(nested, asked)) == expected
    for found, of_nested in zip(read_documents(flat, asked), expected, strict=True):
        assert (found.text, found.subset, found.number) == of_nested[:1] + of_nested[2:4]
        label = of_nested.meta["pile_set_name"]
        assert found.meta == {"meta.pile_set_name": label, "other": found.number}
    assert "has no document 1,000: its 1,000 lines have the numbers 0 to 999" in refused(nested, 1000)


def test_bad_rows_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.array([b"a", b"\xff\xfe", None, "é".encode()], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": texts}), path)
    assert "number 1 is no document: line 2 is not valid UTF-8" in refused(path, 1)
    assert 'number 2 is no document: line 3 field "text" is null, not a string' in refused(path, 2)
    assert [document.text for document in read_documents(path, [3, 0])] == ["é", "a"]


def test_a_parquet_file_that_unpacks_enormously_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.chunked_array([pa.array(["0" * (2 << 20)])] * 200)
    pq.write_table(pa.table({"text": texts}), path, compression="zstd", dictionary_pagesize_limit=4 << 20)
    assert path.stat().st_size < 100_000
    script = """
from pilekit.shards.random_access.document_reader import read_documents
value = sum(len(document.text) for document in read_documents(sys.argv[1], [199, 0, 100]))
"""
    value, memory = value_and_memory(script, path)
    assert value == 3 * (2 << 20)
    assert 0 < memory < 150_000, "kilobytes for 400 MiB"


def test_real_text(real_corpus: Path, tmp_path: Path) -> None:
    released = real_corpus / "minipile-00.jsonl.zst"
    reframe_corpus(Corpus(released), tmp_path / "reframed")
    every = [
        slow_document(bytes(line), number, "minipile-00.jsonl")
        for batch in read(released)
        for line, number in zip(batch.raw_lines(), batch.numbers.tolist(), strict=True)
    ]
    asked = np.random.default_rng(5).integers(0, len(every), 1000).tolist()
    for path in (tmp_path / "reframed" / released.name, released):
        assert list(read_documents(path, asked)) == [every[number] for number in asked]
