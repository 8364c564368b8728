"""Readers of token files that share nothing with pilekit: plain struct, written from the formats' descriptions."""

from __future__ import annotations

import csv
import gzip
import re
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Documents = list[list[int]]


def items(data: bytes, size: int) -> list[int]:
    assert len(data) % size == 0
    return list(struct.unpack(f"<{len(data) // size}{'H' if size == 2 else 'i'}", data))


def megatron(stem: Path) -> Documents:
    """The documents of `stem.bin` and `stem.idx`."""
    index = Path(f"{stem}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, count, length = struct.unpack("<QBQQ", index[9:34])
    assert version == 1
    size = {8: 2, 4: 4}[code]
    sizes = struct.unpack(f"<{count}i", index[34 : 34 + 4 * count])
    pointers = struct.unpack(f"<{count}q", index[34 + 4 * count : 34 + 12 * count])
    firsts = struct.unpack(f"<{length}q", index[34 + 12 * count :])
    data = Path(f"{stem}.bin").read_bytes()
    assert firsts[0] == 0
    assert firsts[-1] == count
    assert [*pointers, len(data)] == [sum(sizes[:at]) * size for at in range(count + 1)]
    ids = [items(data[begin : begin + length * size], size) for begin, length in zip(pointers, sizes, strict=True)]
    return [[one for part in ids[begin:end] for one in part] for begin, end in pairwise(firsts)]


def npy(stem: Path, size: int) -> tuple[Documents, list[list[str]]]:
    """The documents of `stem.npy` and `stem.csv.gz`, and the last three columns."""
    ids = items(Path(f"{stem}.npy").read_bytes(), size)
    with gzip.open(f"{stem}.csv.gz", "rt", newline="") as file:
        rows = list(csv.reader(file))
    assert [int(row[0]) for row in rows] == [0, *(int(row[1]) for row in rows[:-1])]
    assert int(rows[-1][1]) == len(ids)
    return [ids[int(row[0]) : int(row[1])] for row in rows], [row[2:] for row in rows]


def ds(stem: Path, size: int) -> Documents:
    ids = items(Path(f"{stem}.ds").read_bytes(), size)
    index = Path(f"{stem}.ds.index").read_bytes()
    ends = struct.unpack(f"<{len(index) // 8}Q", index)
    name, count, shown = Path(f"{stem}.ds.metadata").read_text().split("\n")
    assert re.fullmatch(r"[0-9.]+ [kMG]?T", shown)  # of tokens, for people: 32 MT
    assert name.rpartition("|")[2] == str(size)
    assert int(count) == ends[-1] == len(ids)
    return [ids[begin:end] for begin, end in pairwise([0, *ends])]


def llmc(path: Path, size: int) -> list[int]:
    data = path.read_bytes()
    head = struct.unpack("<256i", data[:1024])
    assert head[:2] == ((20240520, 1) if size == 2 else (20240801, 7))
    assert not any(head[3:])
    ids = items(data[1024:], size)
    assert head[2] == len(ids) > 0
    return ids


def parquet(path: Path, size: int) -> tuple[Documents, list[dict[str, Any]]]:
    table = pq.read_table(path)
    assert str(table.schema.field("input_ids").type.value_type) == {2: "uint16", 4: "int32"}[size]
    rows = table.to_pylist()
    return [row.pop("input_ids") for row in rows], rows
