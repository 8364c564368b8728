"""Parquet shards give the same documents and the same bad rows, in bounded memory."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pilekit.shards.read.reader import read
from tests.shards.making import LABELS, slow_documents
from tests.shards.reading import documents, error, value_and_memory


def test_parquet(tmp_path: Path) -> None:
    rows = [
        {"text": f"row {i}", "meta": {"pile_set_name": LABELS[i % 3] if i % 7 else None}, "other": i}
        for i in range(1000)
    ]
    nested, flat, bare = tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "c.parquet"
    pq.write_table(pa.Table.from_pylist(rows), nested)
    labels = pa.array([row["meta"]["pile_set_name"] for row in rows])  # type: ignore[index]
    pq.write_table(pa.table({"text": [row["text"] for row in rows], "meta.pile_set_name": labels}), flat)
    pq.write_table(pa.table({"text": [row["text"] for row in rows]}), bare)
    expected = slow_documents("\n".join(map(json.dumps, rows)).replace("null", '"(none)"').encode())
    told: list[int] = []
    assert documents(read(nested, advance=told.append)) == expected
    assert sum(told) == nested.stat().st_size
    assert documents(read(flat)) == expected
    assert documents(read(bare)) == [(number, text, "(none)") for number, text, _ in expected]
    assert documents(read(nested, ["ArXiv"], start=500)) == [d for d in expected if d[2] == "ArXiv" and d[0] >= 500]


def test_bad_parquet(tmp_path: Path) -> None:
    whole, cut, other, null = (tmp_path / f"{name}.parquet" for name in ("whole", "cut", "other", "null"))
    pq.write_table(pa.table({"text": ["a"] * 100}), whole)
    cut.write_bytes(whole.read_bytes()[:-20])
    pq.write_table(pa.table({"content": ["a"]}), other)
    pq.write_table(pa.table({"text": ["a", None]}), null)
    assert "not a whole Parquet file" in error(cut)
    assert 'no column "text"' in error(other)
    assert "line 2" in error(null)
    for meta, why in (("{}", '"meta" is a string, not an object'), ({"pile_set_name": 3}, "is a number, not a string")):
        pq.write_table(pa.table({"text": ["a"], "meta": [meta]}), other)
        assert why in error(other)
    pq.write_table(pa.table({"text": ["a"], "meta": [{"url": "x"}]}), other)
    assert documents(read(other)) == [(0, "a", "(none)")]
    reader = read(null, on_error="skip")
    assert documents(reader) == [(0, "a", "(none)")]
    assert reader.skipped.count == 1


def test_parquet_text_that_is_not_utf8(tmp_path: Path) -> None:
    def strings(*values: bytes) -> pa.Array:
        return pa.array(values, pa.binary()).view(pa.string())

    path, binary, flat = (tmp_path / f"{name}.parquet" for name in ("a", "b", "c"))
    pq.write_table(pa.table({"text": strings(b"a", b"\xff\xfe", "é".encode())}), path)
    assert "line 2: is not valid UTF-8" in error(path)
    reader = read(path, on_error="skip")
    assert documents(reader) == [(0, "a", "(none)"), (2, "é", "(none)")]
    assert [(bad.line, bad.reason) for bad in reader.skipped.examples] == [(2, "is not valid UTF-8")]
    pq.write_table(pa.table({"text": strings(b"a", b"b"), "meta.pile_set_name": strings(b"\xff", b"ArXiv")}), flat)
    assert documents(read(flat, on_error="skip")) == [(1, "b", "ArXiv")]
    pq.write_table(pa.table({"text": [b"a"], "meta": [{"pile_set_name": 3}]}), binary)
    assert 'field "text" is bytes, not a string' in error(binary)


@pytest.mark.parametrize("encoding", ["dictionary", "arrow dictionary", "plain"])
def test_a_parquet_bomb_is_read_in_little_memory(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.parquet"
    long = pa.array(["0" * (2 << 20)])
    if encoding == "arrow dictionary":
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), long)
    else:
        texts = pa.chunked_array([long] * 200)
    pq.write_table(
        pa.table({"text": texts}),
        path,
        compression="zstd",
        use_dictionary=encoding != "plain",
        dictionary_pagesize_limit=4 << 20,
    )
    assert path.stat().st_size < 100_000
    assert "row 1: is longer than 1,048,576 bytes; split the document" in error(path, max_document_bytes=1 << 20)
    script = "value = sum(sum(map(len, batch.texts)) for batch in read(sys.argv[1]))"
    value, memory = value_and_memory(script, path)
    assert value == 200 * (2 << 20)
    assert 0 < memory < 60_000, "kilobytes of memory for 400 MiB in rows of 2 MiB"


def test_parquet_batches_hold_a_bounded_number_of_bytes_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = ["x" * (i % 7) if i % 100 else "y" * 500_000 for i in range(4000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=1111)
    expected = [(i, text, "(none)") for i, text in enumerate(texts)]
    assert documents(read(path, start=1500)) == expected[1500:]
    batches = list(read(path))
    assert documents(batches) == expected
    assert max(len(batch) for batch in batches) <= 1024
    assert max(sum(map(len, batch.texts)) for batch in batches) < 5 << 20
    assert len(batches) < 10
