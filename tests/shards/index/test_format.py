"""An index is used only if it fits; a damaged or forged index is an error, never a wrong answer."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard

from pilekit.corpus import Shard, load_manifest, shard_of
from pilekit.errors import PilekitError
from pilekit.shards.index.build import index_of
from pilekit.shards.index.format import INDEX_SUFFIX, ShardIndex, find_index, index_places, load_index
from tests.shards.index_reference import places_of, rows_of
from tests.shards.making import LABELS, flipped, record, write_shard


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """A shard of five frames, 40 lines, two of them bad; with its index."""
    lines = [b"{", *(record(f"text {i}", LABELS[i % 3]) for i in range(38)), b"[]"]
    path = write_shard(tmp_path / "a.jsonl.zst", lines, frame_bytes=400)
    assert len(index_of(shard_of(str(path)), on_error="skip").frames) > 4
    return path


def index_path(shard: Path) -> Path:
    return Path(f"{shard}{INDEX_SUFFIX}")


def everything(index: ShardIndex | None) -> object:
    assert index is not None
    return index.header, places_of(index), rows_of(index)


def test_an_index_that_fits_is_found_and_is_a_table_to_others(shard: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert everything(find_index(shard_of(str(shard)))) == everything(load_index(index_path(shard)))
    assert not caplog.records
    table = pq.read_table(index_path(shard))
    assert {field.name: str(field.type) for field in table.schema} == {
        "number": "int64",
        "subset": "dictionary<values=string, indices=int32, ordered=0>",
        "text_bytes": "int64",
        "text_hash": "uint64",
    }
    assert table["number"].to_pylist() == list(range(1, 39))
    assert table["subset"].to_pylist() == [LABELS[i % 3] for i in range(38)]


def test_an_index_of_another_shard_or_other_fields_is_not_used(shard: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = shard.read_bytes()
    for content, why in (
        (whole + b"\x50\x2a\x4d\x18\0\0\0\0", r"of a shard of [\d,]+ bytes, it has [\d,]+ now"),
        (flipped(whole, len(whole) // 2), "but other bytes"),
    ):
        shard.write_bytes(content)
        caplog.clear()
        assert find_index(shard_of(str(shard))) is None
        [warning] = caplog.messages
        assert re.search(rf"{re.escape(str(index_path(shard)))}.*{why}.*pilekit index", warning)
    shard.write_bytes(whole)
    manifest = shard.parent / "other.toml"
    for field in ("text_field", "label_path"):
        manifest.write_text(f'name = "other"\n{field} = "other"\n')
        caplog.clear()
        assert find_index(shard_of(str(shard)), load_manifest(manifest)) is None
        assert field in caplog.text


def test_the_cached_index_is_used_if_the_one_beside_does_not_fit(
    shard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path / "cache"))
    beside, cached = index_places(shard_of(str(shard)))
    assert beside == str(index_path(shard))
    Path(cached).parent.mkdir(parents=True)
    shutil.move(beside, cached)
    Path(beside).write_bytes(b"garbage")
    found = find_index(shard_of(str(shard)))
    assert found is not None
    assert found.path == cached
    assert not caplog.records, "nothing is missing, so nothing is told"
    Path(cached).unlink()
    assert find_index(shard_of(str(shard))) is None
    assert "is not an index" in caplog.text


def test_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path))
    assert index_places(shard_of("-")) == []
    for path, beside in (
        ("a.jsonl", "a.jsonl.index.parquet"),
        ("/folder/b.jsonl.zst", "/folder/b.jsonl.zst.index.parquet"),
        ("https://host/c.jsonl.zst", "https://host/c.jsonl.zst.index.parquet"),
        ("https://host/..", "https://host/...index.parquet"),
        ("https://host/d.jsonl.zst?token=secret", None),
        ("zip://e.jsonl::file.zip", None),
        # As polars reads hidden files too, the name may not end in `.parquet`.
        ("/folder/b.parquet", "/folder/.b.parquet.index"),
        ("https://host/c.parquet", "https://host/.c.parquet.index"),
    ):
        *places, cached = index_places(Shard("x", path))
        assert places == ([] if beside is None else [beside])
        assert Path(cached).parent.parent == tmp_path / "index"
        assert cached.endswith(INDEX_SUFFIX)
        assert "secret" not in cached
    monkeypatch.chdir(tmp_path)
    assert index_places(shard_of("a.jsonl"))[-1] == index_places(shard_of(str(tmp_path / "a.jsonl")))[-1]


Header = dict[str, Any]


def forge(
    path: Path,
    header: Callable[[Header], object] = lambda header: None,
    frames: Callable[[np.ndarray[Any, Any]], object] = lambda frames: None,
    table: Callable[[pa.Table], pa.Table] = lambda table: table,
    metadata: Callable[[dict[bytes, bytes]], object] = lambda metadata: None,
    **options: Any,
) -> None:
    """Write a forged index: changed values with right sums."""
    values = pq.read_metadata(path).metadata
    rows = table(pq.read_table(path))
    decoded = json.loads(values[b"pilekit"])
    packed = zstandard.ZstdDecompressor().decompress(base64.b64decode(values[b"pilekit.frames"]))
    columns = np.cumsum(np.frombuffer(packed, "<i8").reshape(4, -1), axis=1)
    header(decoded)
    columns = changed if (changed := frames(columns)) is not None else columns  # type: ignore[assignment]
    made = {b"pilekit": json.dumps(decoded).encode()}
    differences = np.diff(columns, prepend=0).astype("<i8").tobytes()
    made[b"pilekit.frames"] = base64.b64encode(zstandard.compress(differences))
    metadata(made)
    if len(made) == 2:
        made[b"pilekit.sum"] = xxhash.xxh3_64_hexdigest(made[b"pilekit"] + b"\n" + made[b"pilekit.frames"]).encode()
    with pq.ParquetWriter(path, rows.schema) as writer:
        writer.write_table(rows, **options)
        writer.add_key_value_metadata(made)


def set_to(row: int, column: int, value: int) -> Callable[[np.ndarray[Any, Any]], None]:
    return lambda frames: frames.__setitem__((row, column), value)


HUGE = 2**63 - 1


def overflowing(frames: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Offsets whose differences overflow to be positive."""
    frames[0, 1:3] = HUGE, -HUGE - 1
    return frames[:, :3]


def replaced(table: pa.Table, name: str, values: list[int]) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))


def bomb(kept: int | None) -> bytes:
    """Frames that unpack to a gigabyte."""
    stream = zstandard.ZstdCompressor(level=1).compressobj(size=1 << 30)
    packed = b"".join(stream.compress(bytes(1 << 20)) for _ in range(1 << 10)) + stream.flush()
    return base64.b64encode(packed[:kept])


def of_one_group(schema: pa.Schema) -> pa.Table:
    """More rows than a group may have."""
    numbers = np.arange(100_001)
    columns = [pa.array(numbers), pa.array(["A"] * len(numbers)).dictionary_encode()]
    return pa.table([*columns, pa.array(numbers), pa.array(numbers.astype(np.uint64))], schema=schema)


FORGERIES: list[dict[str, Any]] = [
    {"header": lambda header: header.update(documents=37)},
    {"header": lambda header: header.update(lines=2**70)},
    {"header": lambda header: header.update(lines=39)},
    {"header": lambda header: header.update(storage="tar")},
    {"header": lambda header: header.update(examples=[])},
    {"header": lambda header: header.update(content_bytes=10)},
    {"header": lambda header: header.pop("sample")},
    {"frames": set_to(0, 0, -1)},
    {"frames": set_to(0, 1, 0)},
    {"frames": overflowing},
    {"frames": set_to(1, 0, 1)},
    {"frames": set_to(1, -1, HUGE)},
    {"frames": set_to(2, 0, 3)},
    {"frames": set_to(2, 1, HUGE)},
    {"frames": set_to(3, 1, -1)},
    {"frames": set_to(3, 1, 10_000)},
    {"frames": lambda frames: frames[:, :0]},
    {"frames": lambda frames: frames[:, :-1].reshape(-1)[:-1].reshape(1, -1)},
    {"metadata": lambda made: made.pop(b"pilekit.frames")},
    {"metadata": lambda made: made.update({b"pilekit.sum": b"0" * 16})},
    {"metadata": lambda made: made.update({b"pilekit.frames": base64.b64encode(b"garbage")})},
    {"metadata": lambda made: made.update({b"pilekit": b"[1]"})},
    {"table": lambda table: table.slice(1)},
    {"table": lambda table: table.drop(["text_hash"])},
    {"table": lambda table: table.set_column(1, "subset", table["subset"].cast("string"))},
    {"table": lambda table: table.take(pa.array(range(37, -1, -1)))},
    {"table": lambda table: replaced(table, "number", [*range(1, 38), 40])},
    {"table": lambda table: replaced(table, "number", [1, -HUGE - 1, -1, *range(4, 39)])},
    {"table": lambda table: replaced(table, "text_bytes", [-1] * 38)},
    {"table": lambda table: replaced(table, "number", [5, *range(1, 38)]), "row_group_size": 1},
    {
        "header": lambda header: header.update(documents=100_001, lines=100_003),
        "table": lambda table: of_one_group(table.schema),
    },
]


def test_a_forged_index_is_an_error(shard: Path) -> None:
    path = index_path(shard)
    before = everything(load_index(path))
    forge(path)
    assert everything(load_index(path)) == before, "nothing was changed"
    whole = path.read_bytes()
    for place, change in enumerate(FORGERIES):
        path.write_bytes(whole)
        forge(path, **change)
        with pytest.raises(PilekitError) as raised:
            everything(load_index(path))
        message = str(raised.value)
        assert re.fullmatch(rf"{re.escape(str(path))}: is [^\n]*`pilekit index`", message), place
    for kept in (None, 1000):
        path.write_bytes(whole)
        text = bomb(kept)
        forge(path, metadata=lambda made, text=text: made.update({b"pilekit.frames": text}))  # type: ignore[misc]
        with pytest.raises(PilekitError, match="impossible"):
            load_index(path)


def test_other_files_are_no_index(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 is how it begins, and it ends with PAR1")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "c.parquet")
    for name in "abc":
        with pytest.raises(PilekitError, match="is not an index"):
            load_index(tmp_path / f"{name}.parquet")
    with pytest.raises(PilekitError, match="no such file"):
        load_index(tmp_path / "d.parquet")


THREADS = """
import os, sys
import pyarrow.parquet  # starts a thread of its allocator
from pilekit import read
from pilekit.shards.index.format import load_index
from pilekit.shards.read.blocks import shard_blocks
from pilekit.shards.read.open import ReadOptions

shard, table = sys.argv[1:]
threads = len(os.listdir("/proc/self/task"))
assert load_index(shard + ".index.parquet").columns().num_rows == 38
assert sum(len(batch) for batch in read(table)) == 38
with shard_blocks(table, ReadOptions(), columns=["text"]) as blocks:
    assert sum(len(block.records) for block in blocks) == 38
print(len(os.listdir("/proc/self/task")) - threads)
"""


def test_no_thread_of_arrow_reads_a_python_file(shard: Path, tmp_path: Path) -> None:
    """Such a thread may free its buffer while Python ends, and that aborts the process."""
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(38)], "id": range(38)}), tmp_path / "a.parquet")
    command = [sys.executable, "-c", THREADS, str(shard), str(tmp_path / "a.parquet")]
    started = subprocess.run(command, capture_output=True, text=True, check=True)
    assert started.stdout.split() == ["0"]
