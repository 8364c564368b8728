"""Tables that are joined."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.parquet_rows import ROWS_PER_GROUP, join_tables, required, write_rows


def test_the_rows_of_many_small_tables_share_row_groups(tmp_path: Path) -> None:
    schema = required(shard=pa.string(), number=pa.int64(), rules=pa.list_(pa.string()))
    rows = [(f"{number:03}.jsonl", number, ["a"] * (number % 3)) for number in range(100)]
    cuts = [0, 0, 1, 2, 3, 45, 46, 90, 90, 100]
    pairs = pairwise(cuts)
    parts = [write_rows(tmp_path / str(place), schema, rows[first:last]) for place, (first, last) in enumerate(pairs)]
    for size, groups in ((ROWS_PER_GROUP, 1), (30, 4)):
        joined = pq.ParquetFile(join_tables(tmp_path / "joined", schema, parts, rows_per_group=size))
        assert joined.schema_arrow.equals(schema)
        assert [tuple(row.values()) for row in joined.read().to_pylist()] == rows
        assert joined.num_row_groups == groups
    assert pq.read_table(join_tables(tmp_path / "none", schema, parts[:1])).num_rows == 0
