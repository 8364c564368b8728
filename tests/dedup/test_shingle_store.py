"""The second pass: the sets of the flagged documents of any shard; a changed shard is named; a stopped pass resumes."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Corpus, Shard, load_manifest, shard_of
from pilekit.dedup import shingle_store as module
from pilekit.dedup.document_table import DocumentTable
from pilekit.dedup.shingle_store import ShingleStore, ends_file, find_set, sets_file, store_shingles
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.shingles import shingle_set
from pilekit.errors import PilekitError
from pilekit.shards import corpus_job
from pilekit.shards.corpus_job import CorpusJob
from tests.dedup.given import sketch
from tests.shards.making import LABELS, lines, slow_documents, some_lines, zstd_frame
from tests.stopping import tree


def one_process(shards: Sequence[Shard]) -> CorpusJob:
    return CorpusJob(Corpus.of_shards(shards, load_manifest()), jobs=1)


def document_table_of(paths: Sequence[Path], folder: Path, **settings: Any) -> tuple[DocumentTable, list[Shard]]:
    sketches = [sketch(path, folder / "sketches", bands=Bands(2, 2), on_error="skip", **settings) for path in paths]
    return DocumentTable(sketches, "first", folder), [shard_of(str(path)) for path in paths]


def write(path: Path, data: bytes) -> Path:
    """Write decompressed lines as a shard of the kind that the suffix names."""
    if path.suffix == ".zst":
        cuts = [0, len(data) // 3, len(data)]
        path.write_bytes(b"".join(zstd_frame(data[a:b]) for a, b in pairwise(cuts)))
    elif path.suffix == ".parquet":
        rows = [{"text": text, "meta": {"pile_set_name": label}} for _, text, label in slow_documents(data)]
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    else:
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@given(suffix=st.sampled_from([".jsonl.zst", ".jsonl.gz", ".jsonl", ".parquet"]), data=st.data())
def test_the_sets_of_flagged_documents_of_any_shard(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    bad = [b"{", b'{"text": 1}'] if suffix != ".parquet" else []
    contents = [
        b"\n".join(data.draw(st.lists(st.one_of(lines(), *map(st.just, bad)), min_size=1, max_size=12)))
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    of_each = [slow_documents(content, bad=[]) for content in contents]
    if not all(of_each):
        return
    subsets = data.draw(st.none() | st.lists(st.sampled_from(LABELS[:5]), min_size=1, unique=True))
    ngram = data.draw(st.integers(1, 4))
    paths = [write(folder / f"{place:02}{suffix}", content) for place, content in enumerate(contents)]
    document_table, shards = document_table_of(paths, folder, ngram=ngram, subsets=subsets)
    texts = [text for found in of_each for _, text, label in found if subsets is None or label in subsets]
    assert document_table.documents == len(texts)
    flagged = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    told: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_job, "usable_cpus", lambda: data.draw(st.integers(1, 3)))
        wanted = np.array(flagged, dtype=bool)
        job = CorpusJob(Corpus.of_shards(shards, load_manifest()), jobs=1, advance=told.append)
        list_bytes = data.draw(st.integers(1, 100))
        store = store_shingles(job, document_table, shards, wanted, folder / "sets", list_bytes=list_bytes)
    for id, text in enumerate(texts):
        if flagged[id]:
            expected = shingle_set(np.frombuffer(text.encode(), dtype=np.uint8), ngram)
            assert find_set(store.mapped, id).tolist() == expected.tolist()
    assert sum(told) == sum(path.stat().st_size for path in paths)


def test_a_shard_that_is_not_the_sketched_one_or_changes_while_it_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path / f"{i}.jsonl", b"\n".join(some_lines(20))) for i in range(2)]
    document_table, shards = document_table_of(paths, tmp_path)

    def fails(left: list[str]) -> None:
        with pytest.raises(PilekitError, match=r"1\.jsonl: (has changed since it was sketched|no such file)"):
            store_shingles(one_process(shards), document_table, shards, np.ones(40, dtype=bool), tmp_path / "sets")
        assert sorted(name for name in tree(tmp_path / "sets") if not name.endswith(".bits")) == left

    sound, real = paths[1].read_bytes(), module.shingle_sets
    changes = iter([lambda: None, lambda: paths[1].write_bytes(sound[::-1])])

    def changed_meanwhile(*arguments: Any) -> Any:
        next(changes)()
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "shingle_sets", changed_meanwhile)
        fails(["0.ends", "0.sets"])
    paths[1].write_bytes(sound[:-40])
    fails(["0.ends", "0.sets"])
    paths[1].unlink()
    fails(["0.ends", "0.sets"])


def test_complete_files_are_used_again(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i}.jsonl", b"\n".join(some_lines(20 + i))) for i in range(2)]
    document_table, shards = document_table_of(paths, tmp_path)
    store_shingles(one_process(shards), document_table, shards, np.arange(41) % 2 == 0, tmp_path / "sets")
    whole, before = tree(tmp_path / "sets"), ends_file(tmp_path / "sets", 0).stat().st_ino
    ends_file(tmp_path / "sets", 1).unlink()
    store_shingles(one_process(shards), document_table, shards, np.arange(41) % 2 == 0, tmp_path / "sets")
    assert tree(tmp_path / "sets") == whole
    assert ends_file(tmp_path / "sets", 0).stat().st_ino == before


def test_damaged_files_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "0.jsonl", b"\n".join(some_lines(20)))
    document_table, shards = document_table_of([path], tmp_path)
    store_shingles(one_process(shards), document_table, shards, np.ones(20, dtype=bool), tmp_path)
    content = sets_file(tmp_path, 0).read_bytes()
    sets_file(tmp_path, 0).write_bytes(content[:-8])
    with pytest.raises(PilekitError, match=r"0\.sets: is damaged"):
        ShingleStore(tmp_path, document_table.base)
    ends_file(tmp_path, 0).unlink()
    with pytest.raises(PilekitError, match=r"0\.ends: cannot be read: No such file"):
        ShingleStore(tmp_path, document_table.base)
