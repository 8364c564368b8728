"""The second pass: the sets of the flagged documents of any shard; a changed shard is named; a killed pass resumes."""

from __future__ import annotations

import gzip
import os
import signal
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Manifest, Shard, shard_of
from pilekit.dedup import in_threads
from pilekit.dedup.compare import candidate_texts
from pilekit.dedup.compare import store_shingles as module
from pilekit.dedup.compare.shingle_store import ShingleStore, ends_file, sets_file
from pilekit.dedup.compare.store_shingles import store_shingles
from pilekit.dedup.match.population import Population
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.shingles import shingle_set
from pilekit.errors import PilekitError
from pilekit.shards import processes
from tests.dedup.sketching import sketch
from tests.shards.making import LABELS, lines, slow_documents, some_lines, zstd_frame
from tests.stopping import tree

Document = tuple[int, str, str]


def population_of(
    paths: Sequence[Path],
    folder: Path,
    *,
    ngram: int = 3,
    manifest: Manifest | None = None,
    subsets: list[str] | None = None,
) -> tuple[Population, list[Shard]]:
    settings = {"bands": Bands(2, 2), "ngram": ngram, "subsets": subsets, "manifest": manifest, "on_error": "skip"}
    sketches = [sketch(path, folder / "sketches", **settings) for path in paths]
    return Population(sketches, "first", folder), [shard_of(str(path)) for path in paths]


def flags(flagged: Sequence[bool]) -> np.ndarray:
    return np.array(flagged, dtype=bool)


def check(store: ShingleStore, documents: list[str], flagged: Sequence[bool], ngram: int) -> None:
    for id, text in enumerate(documents):
        if flagged[id]:
            assert store.get(id).tolist() == shingle_set(np.frombuffer(text.encode(), dtype=np.uint8), ngram).tolist()


def write_zstd(path: Path, data: bytes) -> Path:
    cuts = [0, len(data) // 3, len(data)]
    path = path.with_suffix(".jsonl.zst")
    path.write_bytes(b"".join(zstd_frame(data[a:b]) for a, b in pairwise(cuts)))
    return path


def write_gzip(path: Path, data: bytes) -> Path:
    path = path.with_suffix(".jsonl.gz")
    path.write_bytes(gzip.compress(data))
    return path


def write_plain(path: Path, data: bytes) -> Path:
    path = path.with_suffix(".jsonl")
    path.write_bytes(data)
    return path


def write_parquet(path: Path, data: bytes) -> Path:
    path = path.with_suffix(".parquet")
    rows = [{"text": text, "meta": {"pile_set_name": label}} for _, text, label in slow_documents(data)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return path


@pytest.mark.parametrize("write", [write_zstd, write_gzip, write_plain, write_parquet])
@given(data=st.data())
def test_the_sets_of_flagged_documents_of_any_shard(
    tmp_path_factory: pytest.TempPathFactory, write: Callable[[Path, bytes], Path], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    bad = [b"{", b'{"text": 1}'] if write is not write_parquet else []
    contents = [
        b"\n".join(data.draw(st.lists(st.one_of(lines(), *map(st.just, bad)), min_size=1, max_size=12)))
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    documents = [document for content in contents for document in readable(content)]
    if not documents or not all(map(readable, contents)):
        return
    subsets = data.draw(st.none() | st.lists(st.sampled_from(LABELS[:5]), min_size=1, unique=True))
    ngram = data.draw(st.integers(1, 4))
    paths = [write(folder / f"{place:02}", content) for place, content in enumerate(contents)]
    population, shards = population_of(paths, folder, ngram=ngram, subsets=subsets)
    texts = [text for _, text, label in documents if subsets is None or label in subsets]
    assert population.documents == len(texts)
    flagged = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    told: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate_texts, "LIST_BYTES", data.draw(st.integers(1, 100)))
        patch.setattr(in_threads, "LARGE_BYTES", data.draw(st.sampled_from([1, 200, 1 << 20])))
        patch.setattr(module, "_WRITTEN", data.draw(st.integers(1, 20)))
        patch.setattr(processes, "usable_cpus", lambda: data.draw(st.integers(1, 3)))
        store = store_shingles(population, shards, flags(flagged), folder / "sets", jobs=1, advance=told.append)
    check(store, texts, flagged, ngram)
    assert sum(told) == sum(path.stat().st_size for path in paths)


def readable(content: bytes) -> list[Document]:
    """The documents of decompressed bytes that may hold two kinds of bad lines."""
    good = [b"" if line in (b"{", b'{"text": 1}') else line for line in content.split(b"\n")]
    return slow_documents(b"\n".join(good))


def test_processes_threads_and_places_of_texts_and_labels_change_nothing(tmp_path: Path) -> None:
    manifest = Manifest(name="odd", text_field="body", label_path="of.set")
    some = [f'{{"body": "{"word " * (i % 9)}{i} end", "of": {{"set": "X"}}}}'.encode() for i in range(400)]
    paths = [write_zstd(tmp_path / f"{i}", b"\n".join(some[i::3])) for i in range(3)]
    population, shards = population_of(paths, tmp_path, manifest=manifest)
    flagged = flags([i % 3 != 0 for i in range(400)])
    for jobs in (1, 2):
        store_shingles(population, shards, flagged, tmp_path / f"sets-{jobs}", jobs=jobs)
    assert tree(tmp_path / "sets-1") == tree(tmp_path / "sets-2")
    assert len(tree(tmp_path / "sets-1")) == 6


def other_content(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = data[len(data) // 2 :][::-1]
    path.write_bytes(data)


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def test_a_shard_that_is_not_the_sketched_one_is_named(tmp_path: Path) -> None:
    paths = [write_plain(tmp_path / f"{i}", b"\n".join(some_lines(20))) for i in range(2)]
    population, shards = population_of(paths, tmp_path)
    for change in (other_content, shorter, Path.unlink):
        change(paths[1])
        with pytest.raises(PilekitError, match=r"1\.jsonl: (is not the shard any more|no such file)"):
            store_shingles(population, shards, flags([True] * 40), tmp_path / "sets", jobs=1)
        assert sorted(tree(tmp_path / "sets")) == ["0.ends", "0.sets"]


def test_a_shard_that_changes_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_plain(tmp_path / "0", b"\n".join(some_lines(20)))
    population, shards = population_of([path], tmp_path)
    sound = module.shingle_sets

    def changed_meanwhile(*arguments: object) -> object:
        other_content(path)
        return sound(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "shingle_sets", changed_meanwhile)
    with pytest.raises(PilekitError, match=r"0\.jsonl: is not the shard any more"):
        store_shingles(population, shards, flags([True] * 20), tmp_path / "sets", jobs=1)
    assert not ends_file(tmp_path / "sets", 0).exists()


def test_a_killed_pass_keeps_finished_shards(tmp_path: Path) -> None:
    """The pass is killed after the first shard; the next run leaves its files unchanged."""
    paths = [write_plain(tmp_path / f"{i}", b"\n".join(some_lines(20 + i))) for i in range(2)]
    population, shards = population_of(paths, tmp_path)
    flagged = flags([i % 2 == 0 for i in range(41)])
    store_shingles(population, shards, flagged, tmp_path / "whole", jobs=1)
    child = os.fork()
    if child == 0:
        real = module.candidate_texts
        module.candidate_texts = lambda shard, *rest, **options: (  # type: ignore[assignment]
            real(shard, *rest, **options) if shard == shards[0] else os.kill(os.getpid(), signal.SIGKILL)
        )
        store_shingles(population, shards, flagged, tmp_path / "sets", jobs=1)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    before = ends_file(tmp_path / "sets", 0).stat().st_ino
    store_shingles(population, shards, flagged, tmp_path / "sets", jobs=1)
    files = {name: content for name, content in tree(tmp_path / "sets").items() if not name.endswith(".partial")}
    assert files == tree(tmp_path / "whole")
    assert ends_file(tmp_path / "sets", 0).stat().st_ino == before


def test_damaged_files_are_an_error(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "0", b"\n".join(some_lines(20)))
    population, shards = population_of([path], tmp_path)
    store_shingles(population, shards, flags([True] * 20), tmp_path, jobs=1).release()
    content = sets_file(tmp_path, 0).read_bytes()
    sets_file(tmp_path, 0).write_bytes(content[:-8])
    with pytest.raises(PilekitError, match=r"0\.sets: is damaged"):
        ShingleStore(tmp_path, population.base)
    ends_file(tmp_path, 0).unlink()
    with pytest.raises(PilekitError, match=r"0\.ends: cannot be read: No such file"):
        ShingleStore(tmp_path, population.base)
