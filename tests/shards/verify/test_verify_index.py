"""An index that disagrees with its shard is found, with the first line at which they differ."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.corpus import Corpus
from pilekit.corpus.shard import shard_of
from pilekit.shards.index.build import build_index
from pilekit.shards.index.format import ShardIndex, index_places
from pilekit.shards.index.metadata import index_metadata
from pilekit.shards.verify.verify import verify_corpus
from tests.shards.making import record, some_lines
from tests.shards.verify.verified import CUT, findings, index, only, released, write


def test_an_index_of_other_documents_or_of_the_same_stored_otherwise(shard: Path, cache: Path) -> None:
    lines = some_lines(1200)
    place = index(shard)
    write(shard, lines, frame_bytes=8192)
    finding = only(shard)
    assert finding.line is None
    assert "with the same documents" in finding.problem
    for changed, line in ((lines[:1000], 1001), ([*lines, record("one more")], 1201), (lines[100:], 1)):
        finding = only(write(shard, changed))
        assert finding.line == line
        assert f"differ from line {line:,} on" in finding.problem
        assert "pilekit index" in finding.problem
    # An index in the cache is compared too.
    cached = Path(index_places(shard_of(str(shard)))[-1])
    assert cache / "index" in cached.parents
    cached.parent.mkdir(parents=True)
    place.rename(cached)
    assert str(cached) in only(shard).problem


def test_an_index_of_other_fields_is_told_and_its_documents_are_not_compared(tmp_path: Path) -> None:
    path = released(tmp_path / "00.jsonl.zst", some_lines(5))
    index(path)
    (tmp_path / "own.toml").write_text('name = "own"\nlabel_path = "source"\n')
    found = verify_corpus(Corpus(str(path), str(tmp_path / "own.toml")), jobs=1)
    assert found.ok
    assert found.notes[-1].startswith("00.jsonl: the index is of another text_field or label_path")
    assert CUT in found.notes[0], "such an index is no proof of the shard"


def rewrite(index: ShardIndex, table: pa.Table, **header: object) -> None:
    """Write the index again with other rows or figures, and right sums."""
    frames = index.frames
    if "frames" in header:
        frames, header = replace(frames, line_at=frames.line_at + np.arange(len(frames))), {}
    with pq.ParquetWriter(index.path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(index_metadata(msgspec.structs.replace(index.header, **header), frames))


def test_an_edited_row_of_an_index(tmp_path: Path) -> None:
    path = write(tmp_path / "00.jsonl.zst", [*some_lines(1200), b""])
    built = build_index(shard_of(str(path)))
    table = built.columns()
    for column, row in (("number", 0), ("number", 1199), ("subset", 123), ("text_bytes", 123), ("text_hash", 1199)):
        values = table.column(column).to_pylist()
        if column == "number":
            values[row:] = [value + 1 for value in values[row:]]
        else:
            values[row] = "ArXiv" if column == "subset" else values[row] ^ 1
        kind = table.schema.field(column)
        edited = pa.array(values, pa.uint64() if column == "text_hash" else None).cast(kind.type)
        rewrite(built, table.set_column(table.schema.get_field_index(column), kind, edited))
        finding = only(path)
        assert finding.problem.startswith(f"its index {built.path} says otherwise from line {row + 1:,} on")
        assert "pilekit index" in finding.problem
        assert finding.line == row + 1


def test_an_edited_figure_of_an_index(tmp_path: Path) -> None:
    path = write(tmp_path / "00.jsonl.zst", [*some_lines(100), b"", *[b"bad"] * 150])
    built = build_index(shard_of(str(path)), on_error="skip")
    table, header = built.columns(), built.header
    for figure in ("lines", "text_bytes", "content_bytes", "content_hash", "skipped", "examples", "frames"):
        value = {"content_hash": "0" * 32, "examples": [(102, "another"), *header.examples[1:]], "frames": 0}
        rewrite(built, table, **{figure: value[figure] if figure in value else getattr(header, figure) + 1})
        wrong, bad, *_ = findings(path)
        assert f"says otherwise of the whole shard ({figure})" in wrong.problem
        assert (wrong.line, bad.line) == (None, 102)


def test_a_damaged_index(shard: Path) -> None:
    place = index(shard)
    whole = place.read_bytes()
    rng = random.Random(0)
    for position in rng.sample(range(len(whole)), 15):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.randrange(8)
        place.write_bytes(damaged)
        found = findings(shard)
        assert all(str(place) in finding.problem for finding in found), position
        assert len(found) <= 1
    place.write_bytes(b"no index")
    assert "pilekit index" in only(shard).problem
