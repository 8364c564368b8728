"""Parquet shards give the same documents and the same bad rows, in bounded memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pilekit.shards.read.reader import read
from tests.shards.making import LABELS, slow_documents
from tests.shards.reading import documents, error, value_and_memory


def write(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table({name.replace("__", "."): column for name, column in columns.items()}), path)
    return path


def strings(*values: bytes) -> pa.Array:
    """Strings that need not be UTF-8."""
    return pa.array(values, pa.binary()).view(pa.string())


def test_parquet(tmp_path: Path) -> None:
    metas = [{"pile_set_name": LABELS[i % 3] if i % 7 else None} for i in range(1000)]
    texts = [f"row {i}" for i in range(1000)]
    nested = write(tmp_path / "a.parquet", text=texts, meta=metas, other=range(1000))
    flat = write(tmp_path / "b.parquet", text=texts, meta__pile_set_name=[meta["pile_set_name"] for meta in metas])
    bare = write(tmp_path / "c.parquet", text=texts)
    lines = (json.dumps({"text": text, "meta": meta}) for text, meta in zip(texts, metas, strict=True))
    expected = slow_documents("\n".join(lines).replace("null", '"(none)"').encode())
    told: list[int] = []
    assert documents(read(nested, advance=told.append)) == expected
    assert sum(told) == nested.stat().st_size
    assert documents(read(flat)) == expected
    assert documents(read(bare)) == [(number, text, "(none)") for number, text, _ in expected]
    assert documents(read(nested, ["ArXiv"], start=500)) == [d for d in expected if d[2] == "ArXiv" and d[0] >= 500]


def test_bad_files_and_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", text=["a"] * 100)
    path.write_bytes(path.read_bytes()[:-20])
    assert "not a whole Parquet file" in error(path)
    path = write(tmp_path / "a.parquet", text=["a"], **{"naïve": [1]})
    path.write_bytes(path.read_bytes().replace("naïve".encode(), b"na\xb6\xb6ve"))
    assert "not a whole Parquet file" in error(path)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"content": ["a"]}, 'no column "text"'),
        ({"text": ["a"], "meta": ["{}"]}, '"meta" is a string, not an object'),
        ({"text": ["a"], "meta": [{"pile_set_name": 3}]}, "is a number, not a string"),
        ({"text": [b"a"], "meta": [{"pile_set_name": 3}]}, 'field "text" is bytes, not a string'),
        ({"text": ["a", None]}, 'line 2: field "text" is null'),
        ({"text": strings(b"a", b"\xff\xfe")}, "line 2: is not valid UTF-8"),
    ]
    for columns, why in wrong:
        assert why in error(write(path, **columns))
    for names, repeated in ((["text", "text"], "text"), (["text", "meta", "meta"], "meta")):
        pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * len(names), names=names), path)
        assert error(path).startswith(f'{path}: has 2 columns "{repeated}"; write it again with one of them')
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, names=["text", "other", "other"]), path)
    assert documents(read(path)) == [(0, "a", "(none)")]
    assert documents(read(write(path, text=["a"], meta=[{"url": "x"}]))) == [(0, "a", "(none)")]


def test_skipped_rows_keep_the_numbers_of_the_others(tmp_path: Path) -> None:
    reader = read(write(tmp_path / "a.parquet", text=strings(b"a", b"\xff\xfe", "é".encode())), on_error="skip")
    assert documents(reader) == [(0, "a", "(none)"), (2, "é", "(none)")]
    assert [(bad.line, bad.reason) for bad in reader.skipped.examples] == [(2, "is not valid UTF-8")]
    flat = write(tmp_path / "b.parquet", text=["a", "b"], meta__pile_set_name=strings(b"\xff", b"ArXiv"))
    assert documents(read(flat, on_error="skip")) == [(1, "b", "ArXiv")]


@pytest.mark.parametrize("encoding", ["dictionary", pytest.param("plain", marks=pytest.mark.slow)])
def test_a_parquet_bomb_is_read_in_little_memory(tmp_path: Path, encoding: str) -> None:
    path, text, dictionary = tmp_path / "a.parquet", pa.array(["0" * (2 << 20)]), encoding == "dictionary"
    texts: Any = pa.chunked_array([text] * 200)
    if dictionary:
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), text)
    options: dict[str, Any] = {"use_dictionary": dictionary, "dictionary_pagesize_limit": 4 << 20}
    pq.write_table(pa.table({"text": texts}), path, compression="zstd", **options)
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
