"""Documents by number, one by one and many at once, equal those of reading; only their own frames are decoded."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import load_manifest, shard_of
from pilekit.documents import Document, DocumentBatch
from pilekit.errors import PilekitError
from pilekit.shards.index.build import index_of
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.random_access import lines_by_number
from pilekit.shards.random_access.document_reader import DocumentReader, read_documents
from pilekit.shards.random_access.frame_cache import FrameLRU, frames_fit
from pilekit.shards.random_access.lines_by_number import READ_AT_ONCE, LinesByNumber, after_newlines
from pilekit.shards.random_access.pile_documents import PileDocuments
from pilekit.shards.read.zstd_frames import decompress_whole
from tests.shards.index_reference import index_with_marks
from tests.shards.making import LABELS, lines, record, some_lines, write_shard, zstd_frame
from tests.shards.reading import error, value_and_memory
from tests.web_server import serving


def slow_document(line: bytes, number: int, shard: str = "a.jsonl") -> Document:
    """The document of a line, by the standard library."""
    record = json.loads(line)
    subset = record.get("meta", {}).get("pile_set_name", "(none)")
    meta = record["meta"] if "meta" in record else {key: value for key, value in record.items() if key != "text"}
    return Document(record["text"], meta, subset, number, shard)


def refused(path: Path | str, number: int) -> str:
    """The one-line error for a number that cannot be read."""
    return error(path, read_documents, [number])


def batch_of(
    path: Path | str, numbers: list[int], index: ShardIndex | None = None, labels: set[str] | None = None
) -> DocumentBatch:
    shard = shard_of(str(path))
    with closing(DocumentReader(shard, index or index_of(shard, on_error="skip"))) as reader:
        return reader.batch(np.array(numbers, dtype=np.int64), labels)


def read_documents_with(
    path: Path, numbers: list[int], held_bytes: int, read_at_once: int = READ_AT_ONCE
) -> list[Document]:
    """What `read_documents` gives, with other bounds of memory and of requests."""
    shard = shard_of(str(path))
    with closing(DocumentReader(shard, index_of(shard, on_error="skip"), frames=FrameLRU(held_bytes))) as reader:
        if isinstance(reader._stored, LinesByNumber):
            reader._stored.read_at_once = read_at_once
        return list(reader.read(numbers))


def rows(batch: DocumentBatch) -> list[tuple[int, str, str]]:
    return list(zip(batch.numbers.tolist(), batch.texts, batch.subsets, strict=True))


def written(path: Path, some: list[bytes], frame_bytes: int) -> ShardIndex:
    return index_of(shard_of(str(write_shard(path, some, frame_bytes))))


@given(st.lists(lines(), min_size=1, max_size=30), st.booleans(), st.data())
def test_any_storage_any_frames(
    tmp_path_factory: pytest.TempPathFactory, some: list[bytes], ends: bool, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("stored")
    text = b"\n".join(some) + (b"\n" if ends else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    parts = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" * data.draw(st.integers(0, 1))
    (folder / "a.jsonl").write_bytes(text)
    (folder / "b.jsonl.zst").write_bytes(b"".join(zstd_frame(part) + skippable for part in parts))
    sized = zstandard.ZstdCompressor(write_checksum=True).compress  # frames that tell the size of their text
    (folder / "c.jsonl.zst").write_bytes(b"".join(sized(part) for part in parts))
    (folder / "d.jsonl.gz").write_bytes(b"".join(gzip.compress(part) for part in parts))
    every = text.removesuffix(b"\n").split(b"\n") if text else []
    good = [number for number, line in enumerate(every) if line.strip()]
    asked = data.draw(st.lists(st.sampled_from(good), max_size=40)) if good else []
    labels = data.draw(st.sets(st.sampled_from([*LABELS, "(none)"])))
    held_bytes = data.draw(st.sampled_from([1 << 26, 2000, 300, 0]))
    read_at_once = data.draw(st.sampled_from([8 << 20, 100, 0]))
    for path in sorted(folder.iterdir()):
        if not path.stat().st_size:
            continue
        name = path.name.removesuffix(".zst").removesuffix(".gz")
        expected = [slow_document(every[number], number, name) for number in asked]
        index_with_marks(path, 50)
        assert list(read_documents(path, asked)) == expected
        assert read_documents_with(path, asked, held_bytes, read_at_once) == expected
        for blank in set(range(len(every))) - set(good):
            assert f"number {blank} is no document: line {blank + 1} is blank" in refused(path, blank)
        assert f"has no document {len(every)}" in refused(path, len(every))
        numbers = sorted(set(asked))
        of_number = {document.number: (document.number, document.text, document.subset) for document in expected}
        batch = batch_of(path, numbers)
        assert rows(batch) == [of_number[number] for number in numbers]
        assert [bytes(line) for line in batch.lines or []] == [every[number] for number in numbers]
        assert rows(batch_of(path, numbers, labels=labels)) == [row for row in rows(batch) if row[2] in labels]


@given(st.lists(st.integers(0, 3000), max_size=20), st.booleans(), st.integers(0, 21))
def test_the_places_after_newlines_are_bounded(lengths: list[int], ended: bool, most: int) -> None:
    """Short and long lines are searched in different ways."""
    data = b"\n".join(b"x" * length for length in lengths) + b"\n" * ended
    places = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    found = after_newlines(data, most)
    assert (None if found is None else found.tolist()) == (places if len(places) <= most else None)


def test_numbers_and_shards_are_taken_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    written(path, some_lines(100), 3000)
    endless = read_documents(path, itertools.cycle([7, 80]))  # cannot be sorted, and need not be
    assert [document.number for document in itertools.islice(endless, 5)] == [7, 80, 7, 80, 7]
    assert [document.number for document in read_documents(shard_of(str(path)), np.array([5, 2]))] == [5, 2]
    about = tmp_path / "other.toml"
    about.write_text('name = "other"\ntext_field = "content"\nlabel_path = "source.name"\n')
    path.write_bytes(zstd_frame(b'{"content": "a", "source": {"name": "web"}, "meta": "no object", "url": null}\n'))
    (document,) = read_documents(path, [0], manifest=load_manifest(about))
    fields = {"source": {"name": "web"}, "meta": "no object", "url": None}
    assert document == Document("a", fields, "web", 0, "a.jsonl")
    assert repr(document) == "Document('a.jsonl', 0, 'web', 1 character)"


def test_a_line_that_is_no_document_says_why(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    some = [record("a"), b"", b"{", b'{"text": 1}', b'{"txt": ""}', b"[]", b'{"text": "\xff"}', b'{"text": "b"}']
    path.write_bytes(zstd_frame(b"\n".join(some) + b"\n"))
    reasons = [
        "line 2 is blank",
        "line 3 is not JSON",
        'line 4 field "text" is a number, not a string',
        'line 5 has no "text" field',
        "line 6 is a list, not a JSON object",
        "line 7 is not valid UTF-8",
    ]
    for number, why in enumerate(reasons, 1):
        assert f"number {number} is no document: {why}" in refused(path, number)
    assert "has no document 8: its numbers go from 0 to 7" in refused(path, 8)
    assert "has no document -1: numbers begin at 0" in refused(path, -1)
    with pytest.raises(PilekitError, match="a document's number is an integer, not '7'"):
        list(read_documents(path, ["7"]))  # type: ignore[list-item]
    assert list(read_documents(path, [7])) == [Document("b", {}, "(none)", 7, "a.jsonl")]
    assert rows(batch_of(path, [0, 7])) == [(0, "a", "Github"), (7, "b", "(none)")]
    for numbers, line, why in (([0, 1, 2], 2, "is blank"), ([2, 7], 3, "is not JSON"), ([0, 3], 4, 'field "text"')):
        with pytest.raises(PilekitError, match="its index has a document there") as raised:
            batch_of(path, numbers)
        assert str(raised.value).startswith(f"{path}, line {line}: {why}")
    for beyond in ([-1, 0], [7, 8]):
        with pytest.raises(PilekitError, match="has no document"):
            batch_of(path, beyond)
    path.write_bytes(zstd_frame(b""))
    assert "has no document 0: it has no lines" in refused(path, 0)
    with pytest.raises(PilekitError, match=r"standard input \(-\).*save it to a file first"):
        read_documents("-", [0])


@pytest.mark.parametrize("value", [2**64 - 1, 2**64, -(2**63), -(2**64), 2**64 - 0.5, 1.5, "1.5", True, None, 0])
@pytest.mark.parametrize("nest", [lambda value: value, lambda value: [0, {"b": [value]}], lambda value: {"b": value}])
def test_numbers_of_meta_are_read_exactly(tmp_path: Path, value: object, nest: Callable[[object], object]) -> None:
    line = json.dumps({"text": "a", "meta": {"pile_set_name": "Github", "id": nest(value), "last": value}})
    (tmp_path / "a.jsonl").write_text(line + "\n")
    [document] = read_documents(tmp_path / "a.jsonl", [0])
    assert json.dumps(document.meta) == json.dumps(json.loads(line)["meta"])


def test_each_frame_is_decoded_once_and_only_if_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, some = tmp_path / "a.jsonl.zst", some_lines(400)
    text, size = b"\n".join(some), 5000  # cuts lines in two
    path.write_bytes(b"".join(zstd_frame(text[at : at + size]) for at in range(0, len(text), size)))
    index_of(shard_of(str(path)))
    begins = np.cumsum([0, *(len(line) + 1 for line in some)])
    decoded: list[int] = []

    def counting(stored: memoryview, size: int) -> bytes | None:
        decoded.append(len(stored))
        return decompress_whole(stored, size)

    monkeypatch.setattr(lines_by_number, "decompress_whole", counting)
    for number in (0, 1, 57, 200, 398, 399):
        decoded.clear()
        list(read_documents(path, [number]))
        first, last = begins[number] // size, (begins[number + 1] - 2) // size
        # The newline itself may be the next frame's first byte.
        assert len(decoded) - (last - first + 1) in (0, 1), number
    decoded.clear()
    assert len(list(read_documents(path, [*range(400), *reversed(range(400))]))) == 800
    assert len(decoded) == len(text) // size + 1
    index = written(path, some, 5000)
    for numbers in (range(400), range(57, 91), range(0, 400, 39), [399]):
        decoded.clear()
        assert len(batch_of(path, list(numbers), index)) == len(numbers)
        assert len(decoded) == len(np.unique(np.searchsorted(index.frames.line, list(numbers), side="right")))


def test_remote_frames_cost_one_request_each_and_neighbours_share_one(tmp_path: Path) -> None:
    path, some = tmp_path / "a.jsonl.zst", some_lines(3000)
    index = written(path, some, 5000)
    most = int(np.diff(index.frames.offset).max())
    with serving(tmp_path) as server:
        shard = shard_of(f"{server.url}{path.name}")
        with closing(DocumentReader(shard, index)) as reader:
            for number in (0, 1200, 2900):
                server.requests.clear()
                before = server.sent
                assert reader.document(number).number == number
                assert server.sent - before <= most
                assert len(server.requests) == 1
            server.requests.clear()
            assert reader.batch(np.arange(700, 900)).numbers.tolist() == list(range(700, 900))
            assert len(server.requests) == 1
        assert server.sent < path.stat().st_size / 4


def test_a_shard_of_long_frames_is_read_once_in_order(tmp_path: Path) -> None:
    path, some = tmp_path / "a.jsonl.zst", some_lines(8000)
    path.write_bytes(b"".join(zstd_frame(b"\n".join(part) + b"\n") for part in (some[:4000], some[4000:])))
    shard, amounts = shard_of(str(path)), list[int]()
    for known in (index_of(shard), None):
        with closing(DocumentReader(shard, known, frames=FrameLRU(100_000), advance=amounts.append)) as reader:
            for asked in ([7000, 20, 7999, 21, 3999, 4000, 20], list(range(7999, -1, -7))):
                amounts.clear()
                assert list(reader.read(asked)) == [slow_document(some[number], number) for number in asked]
                assert sum(amounts) <= path.stat().st_size
            assert reader.document(5).number == 5
            assert reader.batch(np.array([3, 3999, 4000])).numbers.tolist() == [3, 3999, 4000]
    path.write_bytes(zstd_frame(b"".join([record("x" * 5000) + b"\n"] * 14_000)))
    with pytest.raises(PilekitError, match=r"frames are longer .* reframe it first \(`pilekit reframe`\)"):
        PileDocuments(path)


def test_one_long_document_does_not_end_random_access(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    some = [*some_lines(300), record("long " * 10_000), record("after"), *some_lines(3000)]
    index = written(path, some, 8000)
    sizes = np.diff(index.frames.text_offset, append=index.header.content_bytes)
    assert (sizes > 20_000).sum() == 1
    assert frames_fit(index, 20_000)
    assert not frames_fit(index, 20_000, max_document_bytes=20_000)
    numbers = [300, 299, 301, 0, 3301]
    expected = [slow_document(some[number], number) for number in numbers]
    assert read_documents_with(path, numbers, 20_000) == expected


def test_memory_does_not_grow_with_frames_that_are_not_held(tmp_path: Path) -> None:
    some = [record(f"{i} " + np.random.default_rng(i).bytes(8000).hex()) for i in range(500)]
    block = b"".join(line + b"\n" for line in some)
    released, reframed = tmp_path / "a.jsonl.zst", tmp_path / "b.jsonl.zst"
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    released.write_bytes(b"".join(stream.compress(block) for _ in range(20)) + stream.flush())
    filler = record("x" * (1 << 20))
    written(reframed, [line for i in range(100) for line in (record(str(i)), filler)], 1 << 20)
    index_of(shard_of(str(released)))
    script = f"""
import numpy as np
from pilekit.corpus import shard_of
from pilekit.shards.index.build import index_of
from pilekit.shards.random_access.document_reader import DocumentReader, read_documents
value = sum(len(document.text) for document in read_documents(sys.argv[1], [500 * 20 - 1, 5, 500 * 10]))
shard = shard_of("{reframed}")
value += len(DocumentReader(shard, index_of(shard)).batch(np.arange(0, 200, 2)))
"""
    value, memory = value_and_memory(script, released)
    assert value == sum(len(slow_document(some[number], number).text) for number in (499, 5, 0)) + 100
    assert 0 < memory < 60_000, "KiB of 160 MB in one frame, then of 100 MiB in small frames of which one line is kept"


def test_parquet(tmp_path: Path) -> None:
    names = ["ArXiv", None, "Github"]
    some: list[dict[str, Any]] = [
        {"text": f"row {i} " + "é" * (i % 50), "meta": {"pile_set_name": names[i % 3], "url": f"u{i}"}, "other": i}
        for i in range(1000)
    ]
    nested, flat = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.Table.from_pylist(some), nested, row_group_size=130)
    labels = pa.array([row["meta"]["pile_set_name"] for row in some])
    texts, others = ([row[name] for row in some] for name in ("text", "other"))
    pq.write_table(pa.table({"text": texts, "meta.pile_set_name": labels, "other": others}), flat, row_group_size=77)
    asked = [999, 0, 129, 130, 130, 131, 5, 500, 4]
    every = [(i, row["text"], row["meta"]["pile_set_name"] or "(none)") for i, row in enumerate(some)]
    expected = [Document(every[i][1], some[i]["meta"], every[i][2], i, "a.parquet") for i in asked]
    for held_bytes in (1 << 26, 500, 0):
        assert read_documents_with(nested, asked, held_bytes) == expected
        for found, of_nested in zip(read_documents_with(flat, asked, held_bytes), expected, strict=True):
            assert (found.text, found.subset, found.number) == of_nested[:1] + of_nested[2:4]
            label = of_nested.meta["pile_set_name"]
            assert found.meta == {"meta.pile_set_name": label, "other": found.number}
        assert "has no document 1,000: its numbers go from 0 to 999" in refused(nested, 1000)
        for chosen in ([], [0], list(range(1000)), [3, 129, 130, 131, 999]):
            assert rows(batch_of(nested, chosen)) == [every[i] for i in chosen]
            of_label = [every[i] for i in chosen if every[i][2] == "(none)"]
            assert rows(batch_of(nested, chosen, labels={"(none)"})) == of_label
    bad = pa.array([b"a", b"\xff\xfe", None, "é".encode()], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": bad}), flat)
    assert "number 1 is no document: line 2 is not valid UTF-8" in refused(flat, 1)
    assert 'number 2 is no document: line 3 field "text" is null, not a string' in refused(flat, 2)
    assert [document.text for document in read_documents(flat, [3, 0])] == ["é", "a"]
    with pytest.raises(PilekitError, match=r'b\.parquet, line 3: field "text" is null, not a string; its index has'):
        batch_of(flat, [0, 2, 3])


@pytest.mark.slow
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
    assert 0 < memory < 150_000, "KiB of 400 MiB"
