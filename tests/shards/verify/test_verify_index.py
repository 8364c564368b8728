"""An index that does not say what its shard says is found, with the line from which on they differ."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pilekit.corpus import Corpus
from pilekit.corpus.shard import shard_of
from pilekit.shards.index.build import build_index
from pilekit.shards.index.metadata import index_metadata
from pilekit.shards.verify.verify import verify_corpus
from tests.shards.making import record, some_lines
from tests.shards.verify.verified import (
    findings,
    index,
    only,
    released,
    verify,
    write,
)


def test_an_index_of_another_shard(shard: Path) -> None:
    other = write(shard.parent / "other" / "01.jsonl.zst", some_lines(1300)[100:])
    index(other).rename(f"{shard}.index.parquet")
    finding = only(shard)
    assert finding.line == 1
    assert "differ from line 1 on" in finding.problem
    assert "pilekit index" in finding.problem


def test_an_index_of_the_same_text_stored_otherwise(shard: Path) -> None:
    index(shard)
    write(shard, some_lines(1200), frame_bytes=8192)
    finding = only(shard)
    assert finding.line is None
    assert "with the same documents" in finding.problem


def test_an_index_of_a_longer_and_of_a_shorter_shard(tmp_path: Path) -> None:
    lines = some_lines(50)
    path = write(tmp_path / "00.jsonl.zst", lines)
    index(path)
    write(path, lines[:40])
    assert only(path).line == 41
    write(path, [*lines, record("one more")])
    assert only(path).line == 51


def test_an_index_of_other_fields_is_told_and_its_documents_are_not_compared(tmp_path: Path) -> None:
    path = released(tmp_path / "00.jsonl.zst", some_lines(5))
    index(path)
    (tmp_path / "own.toml").write_text('name = "own"\nlabel_path = "source"\n')
    corpus = Corpus(str(path), str(tmp_path / "own.toml"))
    found = verify_corpus(corpus, jobs=1)
    assert found.ok
    [told] = found.notes
    assert told.startswith("00.jsonl: the index is of another text_field or label_path")
    # What does not depend on the fields is compared.
    place = build_index(shard_of(str(path)))
    header = msgspec.structs.replace(place.header, content_hash="0" * 32)
    table = place.columns()
    with pq.ParquetWriter(place.path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(index_metadata(header, place.frames))
    [finding] = verify_corpus(corpus, jobs=1).findings
    assert "says otherwise of the whole shard (content_hash)" in finding.problem
    # And an index of another shard is one.
    released(path, some_lines(6))
    [finding] = verify_corpus(corpus, jobs=1).findings
    assert "was made of a shard of" in finding.problem


@pytest.mark.parametrize("column", ["number", "subset", "text_bytes", "text_hash"])
@pytest.mark.parametrize("row", [0, 123, 1199])
def test_an_edited_row_of_an_index(tmp_path: Path, column: str, row: int) -> None:
    path = write(tmp_path / "00.jsonl.zst", [*some_lines(1200), b""])
    place = index(path)
    metadata, table = pq.read_metadata(place).metadata, pq.read_table(place)
    values = table.column(column).to_pylist()
    if column == "number":
        values[row:] = [value + 1 for value in values[row:]]
    else:
        values[row] = "ArXiv" if column == "subset" else values[row] ^ 1
    kind = table.schema.field(column)
    edited = pa.array(values, pa.uint64() if column == "text_hash" else None).cast(kind.type)
    table = table.set_column(table.schema.get_field_index(column), kind, edited)
    with pq.ParquetWriter(place, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({key: value for key, value in metadata.items() if key.startswith(b"pilekit")})
    finding = only(path)
    assert finding.problem.startswith(f"its index {place} says otherwise from line {row + 1:,} on")
    assert "pilekit index" in finding.problem
    assert finding.line == row + 1


@pytest.mark.parametrize(
    "figure", ["lines", "text_bytes", "content_bytes", "content_hash", "skipped", "examples", "frames"]
)
def test_an_edited_figure_of_an_index(tmp_path: Path, figure: str) -> None:
    path = write(tmp_path / "00.jsonl.zst", [*some_lines(100), b"", *[b"bad"] * 150])
    place = build_index(shard_of(str(path)), on_error="skip")
    header, frames, table = place.header, place.frames, place.columns()
    if figure == "frames":
        frames = replace(frames, line_at=frames.line_at + np.arange(len(frames)))
    else:
        value = {"content_hash": "0" * 32, "examples": [(102, "another"), *header.examples[1:]]}
        header = msgspec.structs.replace(header, **{figure: value.get(figure) or getattr(header, figure) + 1})
    with pq.ParquetWriter(place.path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(index_metadata(header, frames))
    wrong, bad, *_ = findings(path)
    assert f"says otherwise of the whole shard ({figure})" in wrong.problem
    assert (wrong.line, bad.line) == (None, 102)


def test_a_damaged_index(shard: Path) -> None:
    place = index(shard)
    whole = place.read_bytes()
    rng = random.Random(0)
    for position in rng.sample(range(len(whole)), 30):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.randrange(8)
        place.write_bytes(damaged)
        found = findings(shard)
        assert all(str(place) in finding.problem for finding in found), position
        assert len(found) <= 1
    place.write_bytes(b"no index")
    assert "pilekit index" in only(shard).problem


def test_an_index_in_the_cache_is_compared_too(shard: Path, cache: Path) -> None:
    place = index(shard)
    inside = cache / "index"
    from pilekit.shards.index.format import index_places

    cached = Path(index_places(shard_of(str(shard)))[-1])
    assert inside in cached.parents
    cached.parent.mkdir(parents=True)
    place.rename(cached)
    assert verify(shard).ok
    write(shard, some_lines(7))
    assert str(cached) in only(shard).problem
