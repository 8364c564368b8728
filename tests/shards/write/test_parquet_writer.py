"""Written Parquet shards are read back by `read` and pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import DocumentBatch, Manifest, read
from pilekit.documents import RecordFormat
from pilekit.shards.write.parquet_writer import parquet_writer
from tests.shards import making

PILE = RecordFormat()
documents = st.lists(st.tuples(making.tricky_texts, st.sampled_from([*making.LABELS, "(none)"])), max_size=30)


def write(path: Path, pairs: list[tuple[str, str]], format: RecordFormat = PILE, size: int = 7, **options: int) -> Path:
    """Write the documents in batches of `size`."""
    with parquet_writer(path, format, **options) as writer:
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            texts, labels = [text for text, _ in part], [label for _, label in part]
            writer.write(DocumentBatch(texts, labels, "00.jsonl", np.arange(len(part))))
    return path


def pairs_read(path: Path, **arguments: Any) -> list[tuple[str, str]]:
    with read(path, **arguments) as reader:
        return [pair for batch in reader for pair in zip(batch.texts, batch.subsets, strict=True)]


@given(documents, st.integers(1, 9))
def test_documents_are_read_back_and_the_bytes_depend_on_them_alone(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], size: int
) -> None:
    folder = tmp_path_factory.mktemp("parquet")
    path = write(folder / "00.parquet", pairs)
    assert pairs_read(path) == pairs
    assert pq.read_table(path).to_pylist() == [
        {"text": text, "meta": {"pile_set_name": None if label == "(none)" else label}} for text, label in pairs
    ]
    assert write(folder / "b.parquet", pairs, size=size).read_bytes() == path.read_bytes()


def test_the_manifest_names_the_columns(tmp_path: Path) -> None:
    pairs = [("one", "X"), ("two", "(none)"), ("three", "Y")]
    for label_path, kind in [("source", pa.string()), ("a.b.c", pa.struct([("b", pa.struct([("c", pa.string())]))]))]:
        path = write(tmp_path / "00.parquet", pairs, RecordFormat("body", tuple(label_path.split("."))))
        schema = pq.read_schema(path)
        assert (schema.names, schema.types) == (["body", label_path.split(".")[0]], [pa.string(), kind])
        assert pairs_read(path, manifest=Manifest(name="mine", text_field="body", label_path=label_path)) == pairs


def test_row_groups_are_bounded_in_text_and_in_rows(tmp_path: Path) -> None:
    long, count = "é" * 3000, 40  # 6,000 bytes each
    path = write(
        tmp_path / "long.parquet", [(f"{number}{long}", "Github") for number in range(count)], group_bytes=40_000
    )
    table = pq.ParquetFile(path)
    rows = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
    assert sum(rows) == count
    assert {*rows[:-1]} == {-(-40_000 // len(f"0{long}".encode()))}
    empty = write(tmp_path / "empty.parquet", [("", "Github")] * 1400, size=500, group_bytes=40_000)
    assert pq.ParquetFile(empty).num_row_groups == 2
    assert len(pairs_read(empty)) == 1400
