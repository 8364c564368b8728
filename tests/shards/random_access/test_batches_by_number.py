"""Many documents of a shard at once, by number: what one by one gives, each frame decoded once, damage told alike."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import shard_of
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.shards.index import frame_lines
from pilekit.shards.index.build import index_of
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.random_access import frame_lru, lines_by_number, rows_by_number
from pilekit.shards.random_access.document_reader import DocumentReader, read_documents
from pilekit.shards.read.zstd_frames import decompress_whole
from pilekit.shards.write.shard_writer import ShardWriter
from tests.shards.making import LABELS, lines, record, slow_documents, some_lines, zstd_frame
from tests.shards.reading import value_and_memory
from tests.web_server import serving


def batch_of(
    path: Path | str, numbers: list[int], index: ShardIndex | None = None, labels: set[str] | None = None
) -> DocumentBatch:
    shard = shard_of(str(path))
    with closing(DocumentReader(shard, index or index_of(shard, on_error="skip"))) as reader:
        return reader.batch(np.array(numbers, dtype=np.int64), labels)


def rows(batch: DocumentBatch) -> list[tuple[int, str, str]]:
    return list(zip(batch.numbers.tolist(), batch.texts, batch.subsets, strict=True))


@given(
    st.lists(lines(), min_size=1, max_size=30),
    st.booleans(),
    st.sampled_from([1 << 26, 300, 40, 0]),
    st.sampled_from([8 << 20, 100, 0]),
    st.sampled_from([2 << 20, 64, 7]),
    st.sampled_from([64, 1]),
    st.data(),
)
def test_however_it_is_stored_and_cut(
    tmp_path_factory: pytest.TempPathFactory,
    some: list[bytes],
    ends: bool,
    held: int,
    at_once: int,
    block: int,
    few: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("stored")
    text = b"\n".join(some) + (b"\n" if ends else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" * data.draw(st.integers(0, 1))
    (folder / "a.jsonl").write_bytes(text)
    (folder / "b.jsonl.zst").write_bytes(b"".join(zstd_frame(part) + skippable for part in parts))
    one_call = zstandard.ZstdCompressor(write_checksum=True).compress  # frames that tell the size of their text
    (folder / "c.jsonl.zst").write_bytes(b"".join(one_call(part) for part in parts))
    (folder / "d.jsonl.gz").write_bytes(b"".join(gzip.compress(part) for part in parts))
    documents = slow_documents(text)
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(documents))))) if documents else [])
    expected = [documents[i] for i in chosen]
    labels = data.draw(st.sets(st.sampled_from([*LABELS, "(none)"])))
    with pytest.MonkeyPatch.context() as patch:
        for module in (frame_lru, lines_by_number):
            patch.setattr(module, "HELD_BYTES", held)
        patch.setattr(lines_by_number, "READ_AT_ONCE", at_once)
        patch.setattr(frame_lru, "_BLOCK", block)
        patch.setattr(frame_lru, "_FEW", few)
        patch.setattr(frame_lines, "MARK_BYTES", 50)
        for path in sorted(folder.iterdir()):
            if not path.stat().st_size:
                continue
            batch = batch_of(path, [number for number, _, _ in expected])
            assert rows(batch) == expected
            assert batch.shard == path.name.removesuffix(".zst").removesuffix(".gz")
            some_labels = batch_of(path, [number for number, _, _ in expected], labels=labels)
            assert rows(some_labels) == [row for row in expected if row[2] in labels]
            every = text.split(b"\n")
            assert [bytes(line) for line in batch.lines or []] == [every[number] for number, _, _ in expected]


@pytest.mark.parametrize("held", [1 << 26, 5000])
def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    path = tmp_path / "a.parquet"
    documents = [(i, f"document {i} é" + "x" * (i * 37 % 300), "ArXiv" if i % 3 else "(none)") for i in range(300)]
    metas = [{"pile_set_name": label if label != "(none)" else None} for _, _, label in documents]
    pq.write_table(pa.table({"text": [text for _, text, _ in documents], "meta": metas}), path, row_group_size=50)
    for module in (frame_lru, rows_by_number):
        monkeypatch.setattr(module, "HELD_BYTES", held)
    for chosen in ([], [0], list(range(300)), [3, 49, 50, 51, 299]):
        assert rows(batch_of(path, chosen)) == [documents[i] for i in chosen]
        assert rows(batch_of(path, chosen, labels={"(none)"})) == [documents[i] for i in chosen if i % 3 == 0]
    bad = pa.table({"text": ["a", None, "b"], "meta": metas[:3]})
    pq.write_table(bad, path)
    assert [number for number, _, _ in rows(batch_of(path, [0, 2]))] == [0, 2]
    with pytest.raises(PilekitError, match=r'a\.parquet, line 2: field "text" is null, not a string; its index has'):
        batch_of(path, [0, 1, 2])


def test_each_frame_is_decoded_once_and_only_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, some = tmp_path / "a.jsonl.zst", some_lines(400)
    with ShardWriter(path, frame_bytes=5000) as writer:
        writer.write_lines(some)
    index = index_of(shard_of(str(path)))
    sizes: list[int] = []

    def counting(data: memoryview, size: int) -> bytes | None:
        sizes.append(size)
        return decompress_whole(data, size)

    def never(*_: object, **__: object) -> Iterator[bytes]:
        raise AssertionError("nothing is wrong with these frames")

    monkeypatch.setattr(lines_by_number, "decompress_whole", counting)
    monkeypatch.setattr(lines_by_number, "decompress_frame_at", never)
    frame_of = np.searchsorted(index.frames.line, np.arange(400), side="right") - 1
    every = np.diff(index.frames.text_offset, append=index.header.content_bytes)
    for numbers in (range(400), range(57, 91), range(0, 400, 39), [399]):
        sizes.clear()
        assert rows(batch_of(path, list(numbers), index)) == [slow_documents(b"\n".join(some))[i] for i in numbers]
        assert sizes == every[np.unique(frame_of[list(numbers)])].tolist()


def test_neighbouring_frames_are_one_request(tmp_path: Path) -> None:
    path, some = tmp_path / "a.jsonl.zst", some_lines(2000)
    with ShardWriter(path, frame_bytes=5000) as writer:
        writer.write_lines(some)
    index = index_of(shard_of(str(path)))
    with serving(tmp_path) as server:
        shard = shard_of(f"{server.url}{path.name}")
        with closing(DocumentReader(shard, index)) as reader:
            server.requests.clear()
            assert rows(reader.batch(np.arange(700, 900))) == slow_documents(b"\n".join(some))[700:900]
            assert len(server.requests) == 1
            assert server.sent < path.stat().st_size / 8


def test_memory_is_that_of_the_lines_and_not_of_their_frames(tmp_path: Path) -> None:
    path, filler = tmp_path / "a.jsonl.zst", record("x" * (1 << 20))
    with ShardWriter(path) as writer:
        writer.write_lines(line for i in range(300) for line in (record(str(i)), filler))
    assert len(index_of(shard_of(str(path))).frames) >= 300
    script = """
import numpy as np
from pilekit.corpus import shard_of
from pilekit.shards.index.build import index_of
from pilekit.shards.random_access.document_reader import DocumentReader
shard = shard_of(sys.argv[1])
value = len(DocumentReader(shard, index_of(shard)).batch(np.arange(0, 600, 2)))
"""
    documents, memory = value_and_memory(script, path)
    assert documents == 300
    assert memory < 50 << 10, "KiB, of 300 MiB of frames"


def test_what_is_no_document_is_told_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    some = [record("a"), b"", b"{", b'{"text": 1}', record("b")]
    path.write_bytes(zstd_frame(b"\n".join(some) + b"\n"))
    assert rows(batch_of(path, [0, 4])) == [(0, "a", "Github"), (4, "b", "Github")]
    for numbers, line, why in (
        ([0, 1, 4], 2, "is blank"),
        ([0, 1, 2], 2, "is blank"),
        ([2, 4], 3, "is not JSON"),
        ([0, 3], 4, 'field "text" is a number, not a string'),
    ):
        with pytest.raises(PilekitError) as raised:
            batch_of(path, numbers)
        assert str(raised.value).startswith(f"{path}, line {line}: {why}")
        assert str(raised.value).endswith("its index has a document there: make it anew with `pilekit index`")
    for beyond in ([-1, 0], [4, 5]):
        with pytest.raises(PilekitError, match="has no document"):
            batch_of(path, beyond)


def test_damage_and_misfit_are_told_as_one_by_one(tmp_path: Path) -> None:
    path, some = tmp_path / "a.jsonl.zst", some_lines(60)
    with ShardWriter(path, frame_bytes=5000) as writer:
        writer.write_lines(some)
    index, good = index_of(shard_of(str(path))), path.read_bytes()
    middle = int(index.frames.offset[2])
    numbers = list(range(int(index.frames.line[2]), int(index.frames.line[3])))
    longer = replace(index.frames, text_offset=index.frames.text_offset + (np.arange(len(index.frames)) > 2))
    other = replace(index.frames, line=index.frames.line + (np.arange(len(index.frames)) > 2))
    for data, used in (
        (good[:middle] + b"\0" + good[middle + 1 :], index),
        (good[: middle + 30], index),
        (good[: middle + 200] + bytes([good[middle + 200] ^ 1]) + good[middle + 201 :], index),
        (good, replace(index, frames=longer)),
        (good, replace(index, frames=other)),
    ):
        path.write_bytes(data)
        with pytest.raises(PilekitError) as raised:
            batch_of(path, numbers, used)
        with closing(DocumentReader(shard_of(str(path)), used)) as reader, pytest.raises(PilekitError) as alone:
            reader.document(numbers[0])
        assert str(raised.value) == str(alone.value)
    path.write_bytes(good)
    assert len(batch_of(path, numbers, index)) == len(numbers)


@pytest.mark.parametrize("sized", [True, False])
def test_no_changed_byte_of_a_frame_gives_other_text(tmp_path: Path, sized: bool) -> None:
    text = b"\n".join(some_lines(3))
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(text) if sized else zstd_frame(text, checksum=True)
    assert decompress_whole(memoryview(frame + b"behind it"), len(text)) == text
    assert decompress_whole(memoryview(frame), len(text) + 1) is None
    assert decompress_whole(memoryview(frame), len(text) - 1) is None
    for end in range(len(frame)):
        assert decompress_whole(memoryview(frame)[:end], len(text)) is None, end
    for place in range(len(frame)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[place] ^= 1 << bit
            assert decompress_whole(memoryview(changed), len(text)) in (None, text), (place, bit)


def test_what_a_frame_says_of_its_size_is_not_allocated() -> None:
    text = b"x" * 100
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=False).compress(text))
    huge = frame[:4] + bytes([frame[4] | 0xC0, *b"\xff" * 7, 0x0F]) + frame[6:]
    assert zstandard.frame_content_size(bytes(huge)) > 1 << 50
    assert decompress_whole(memoryview(huge), len(text)) is None
    wide = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    ).compressobj()
    far = wide.compress(text) + wide.flush()
    assert decompress_whole(memoryview(far), len(text)) is None
    assert decompress_whole(memoryview(far), len(text), max_window=1 << 28) == text


def test_real_text(real_corpus: Path) -> None:
    shard = shard_of(str(real_corpus / "minipile-00.jsonl.zst"))
    index = index_of(shard)
    some = np.unique(np.random.default_rng(0).integers(0, index.header.documents, 500))
    with closing(DocumentReader(shard, index)) as reader:
        found = rows(reader.batch(some))
    assert found == [(each.number, each.text, each.subset) for each in read_documents(shard, some.tolist())]
