"""Sketches: a row for each selected document, all documents counted, and a wrong sketch is never accepted."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Manifest
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.minhash import band_keys, permutations, signatures
from pilekit.dedup.sketch.sketch_format import ShardSketch, key_column, load_sketch
from pilekit.errors import PilekitError
from tests.benchmarks.generating import write_shard
from tests.dedup.given import sketch
from tests.shards.making import LABELS, lines, record, slow_documents, some_lines, zstd_frame
from tests.shards.reading import value_and_memory

BANDS = Bands(5, 3)
KEYS = [key_column(band) for band in range(BANDS.bands)]
COLUMNS = ["number", "text_bytes", "subset", "hash_high", "hash_low", *KEYS]


def rows_of(sketch: ShardSketch) -> list[tuple[Any, ...]]:
    rows = []
    for chunk in sketch.chunks(COLUMNS):
        columns = {name: chunk[name].tolist() for name in COLUMNS}
        columns["subset"] = [sketch.subset_names[place] for place in columns["subset"]]
        rows += list(zip(*columns.values(), strict=True))
    return rows


def expected_row(number: int, text: str, label: str, ngram: int = 3) -> tuple[Any, ...]:
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    signature = signatures(data, np.array([0, len(data)]), ngram, *permutations(BANDS.num_perm))
    keys = band_keys(signature, BANDS.bands, BANDS.rows)[:, 0].tolist()
    high, low = divmod(xxhash.xxh3_128_intdigest(text.encode()), 2**64)
    return number, len(data), label, high, low, *keys


@given(st.lists(lines(), max_size=12), st.sampled_from([None, LABELS[:1], ["(none)", *LABELS[1:4]]]), st.integers(1, 3))
def test_rows_and_counts_of_any_shard(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], subsets: list[str] | None, threads: int
) -> None:
    folder = tmp_path_factory.mktemp("sketch")
    data = b"\n".join([*content, b"", record("last", "ArXiv")])
    path = folder / "00.jsonl"
    path.write_bytes(data)
    manifest = Manifest(name="test")  # It lists no subsets, so names stay as they are.
    made = sketch(path, folder, subsets=subsets, manifest=manifest, threads=threads)
    documents = slow_documents(data)
    chosen = [document for document in documents if subsets is None or document[2] in subsets]
    assert rows_of(made) == [expected_row(*document) for document in chosen]
    assert made.documents == len(chosen)
    header = made.header
    assert header.lines == documents[-1][0] + 1
    assert header.subsets == (None if subsets is None else sorted(subsets))
    counted = Counter(label for _, _, label in documents)
    assert header.counts == {
        label: (counted[label], sum(len(text.encode()) for _, text, of in documents if of == label))
        for label in counted
    }
    assert made.subset_names == list(counted)
    assert load_sketch(made.path) == made


@functools.cache
def many_lines() -> list[bytes]:
    """Short lines for three row groups, with a few labels that do not all occur in each; long lines between."""
    documents = [record(f"t{i} " * (i % 4), f"label {i // 3000}{'abc'[i % 3]}") for i in range(14_000)]
    documents[1000:1000] = some_lines(300)
    documents[8000] = record("word " * 700_000)
    return documents


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shard") / "00.jsonl"
    path.write_bytes(b"\n".join(many_lines()) + b"\n")
    return path


@pytest.fixture(scope="module")
def made(shard: Path, tmp_path_factory: pytest.TempPathFactory) -> ShardSketch:
    """A sketch with row groups of 6,553 rows."""
    return sketch(shard, tmp_path_factory.mktemp("made"), rows_per_group=6553)


def test_storage_and_threads_change_nothing_but_the_fingerprint(shard: Path, made: ShardSketch, tmp_path: Path) -> None:
    """With other batches the tables are equal, row group by row group."""
    content = many_lines()
    frames, parquet = tmp_path / "00.jsonl.zst", tmp_path / "00.jsonl.parquet"
    frames.write_bytes(b"".join(zstd_frame(b"\n".join(content[i : i + 999]) + b"\n") for i in range(0, 15_000, 999)))
    pq.write_table(pa.Table.from_pylist([json.loads(line) for line in content]), parquet, row_group_size=5000)
    for path in (frames, parquet):
        other = sketch(path, tmp_path / "sketches", threads=1, rows_per_group=6553)
        with pq.ParquetFile(made.path) as one, pq.ParquetFile(other.path) as two:
            assert one.metadata.num_row_groups == two.metadata.num_row_groups == 3
            for group in range(3):
                there, here = (file.read_row_group(group) for file in (one, two))
                assert there.equals(here)
        for name in ("lines", "counts", "subsets", "skipped"):
            assert getattr(other.header, name) == getattr(made.header, name)
    before = Path(made.path).stat()
    assert sketch(shard, Path(made.path).parent) == made
    after = Path(made.path).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns), "a sketch that fits is used again"


def test_bad_lines_are_an_error_or_counted_and_a_shard_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "00.jsonl"
    path.write_bytes(b"\n".join([record("one"), b"{", b"", record("two"), b'{"text": 1}']))
    with pytest.raises(PilekitError, match=r"00.jsonl, line 2: is not JSON"):
        sketch(path, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    made = sketch(path, tmp_path / "out", on_error="skip")
    assert (made.header.skipped, made.header.lines) == (2, 4)
    assert [line for line, _ in made.header.examples] == [2, 5]
    assert [row[0] for row in rows_of(made)] == [0, 3]
    (tmp_path / "01.jsonl").write_bytes(b"\n\n")
    empty = sketch(tmp_path / "01.jsonl", tmp_path)
    assert (empty.documents, empty.header.lines, empty.header.counts, rows_of(empty)) == (0, 0, {}, [])
    # A sketch that is used again equals a new one.
    assert sketch(path, tmp_path / "out", on_error="skip") == made
    with pytest.raises(PilekitError, match=r"00.jsonl, line 2: is not JSON"):
        sketch(path, tmp_path / "out")


def test_documents_of_a_subset_that_the_header_lacks_are_damage(made: ShardSketch) -> None:
    forged = msgspec.structs.replace(made.header, counts={"label 0a": (1, 1)})
    with pytest.raises(PilekitError, match=r"is damaged .it has documents of subsets that its header"):
        rows_of(ShardSketch(made.path, forged))


SKETCH = """
from pilekit.dedup.sketch.bands import Bands
from tests.dedup.given import sketch
value = sketch(Path(sys.argv[1]), Path(sys.argv[1]).parent, bands=Bands(21, 6), ngram=5).documents
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_shard(tmp_path: Path) -> None:
    peaks = []
    for size in (50_000_000, 400_000_000):
        path = tmp_path / f"{size}.jsonl.zst"
        write_shard(path, size)
        peaks.append(value_and_memory(SKETCH, path)[1])
    assert peaks[1] < peaks[0] + (50 << 10)
