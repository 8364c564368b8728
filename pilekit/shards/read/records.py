"""`decoded_records`: the decoded records of a file, for callers that need more fields than text and label."""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import closing

import numpy as np

from pilekit.corpus.shuffle import Int64
from pilekit.shards.read.change_check import open_unchanged
from pilekit.shards.read.json_records import record_of
from pilekit.shards.read.lines import Line
from pilekit.shards.read.open import is_parquet
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES, read_lines
from pilekit.workers import Advance


def decoded_records(
    path: str, fields: Collection[str], *, advance: Advance = lambda size: None, ahead: bool = False
) -> Generator[tuple[Int64, list[object], list[Line] | None], None, None]:
    """Yield records in blocks: their numbers, int64 [records], the records, and their lines if the file has lines.

    A `BadRecord` stands for what cannot be decoded.

    fields   what is read of a Parquet file; all of its columns if it has none of these
    """
    if not is_parquet(path):
        with closing(read_lines(path, advance=advance, ahead=ahead)) as blocks:
            for numbers, lines, _ in blocks:
                yield numbers, [record_of(line) for line in lines], lines
        return
    import pyarrow as pa

    from pilekit.shards.read.parquet import RowBlocks, decoded_rows, located_rows, open_table

    rows: RowBlocks | None = None
    with open_unchanged(path) as (file, _), located_rows(path, lambda: rows.read if rows is not None else 0):
        table = open_table(file, size := file.seek(0, 2))
        there = [name for name in table.schema_arrow.names if name in fields]
        rows = RowBlocks(table, there or None, path, MAX_DOCUMENT_BYTES)
        for block in rows:
            yield np.arange(rows.read - len(block), rows.read), decoded_rows(pa.Table.from_batches(block)), None
        advance(size)
