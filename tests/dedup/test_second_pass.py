"""The second pass: of any shard the flagged documents' sets, of a changed one none, after a kill the same again."""

from __future__ import annotations

import gzip
import os
import signal
import sys
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
from pilekit.dedup.compare import candidate_texts as flagged_texts
from pilekit.dedup.compare import second_pass, shingle_sets
from pilekit.dedup.compare.second_pass import store_shingles
from pilekit.dedup.compare.shingle_store import ShingleStore, ends_file
from pilekit.dedup.match.population import Population
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.shingles import shingle_set
from pilekit.dedup.sketch.sketch_shard import sketch_shard
from pilekit.errors import PilekitError
from pilekit.shards import processes
from pilekit.shards.index.build import build_index
from tests.shards.making import LABELS, lines, record, slow_documents, some_lines, zstd_frame
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
    shards = [shard_of(str(path)) for path in paths]
    sketches = [
        sketch_shard(
            shard,
            lambda amount: None,
            bands=Bands(2, 2),
            ngram=ngram,
            subsets=subsets,
            manifest=manifest,
            on_error="skip",
            folder=folder / "sketches",
        )
        for shard in shards
    ]
    return Population(sketches, "first"), shards


def bits(flagged: Sequence[bool]) -> np.ndarray:
    return np.packbits(np.array(flagged, dtype=bool), bitorder="little")


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
        patch.setattr(flagged_texts, "LIST_BYTES", data.draw(st.integers(1, 100)))
        if data.draw(st.booleans()):
            patch.setattr(second_pass, "LARGE_BYTES", data.draw(st.integers(1, 200)))
            patch.setattr(shingle_sets, "RANGE_VALUES", data.draw(st.integers(1, 100)))
        patch.setattr(second_pass, "_WRITTEN", data.draw(st.integers(1, 20)))
        patch.setattr(processes, "usable_cpus", lambda: data.draw(st.integers(1, 3)))
        store = store_shingles(population, shards, bits(flagged), folder / "sets", jobs=1, advance=told.append)
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
    flagged = bits([i % 3 != 0 for i in range(400)])
    for jobs in (1, 2):
        store_shingles(population, shards, flagged, tmp_path / f"sets-{jobs}", jobs=jobs)
    assert tree(tmp_path / "sets-1") == tree(tmp_path / "sets-2")
    assert len(tree(tmp_path / "sets-1")) == 6


@pytest.mark.parametrize("write", [write_zstd, write_plain, write_parquet])
def test_with_an_index_only_frames_are_read_that_hold_a_flagged_document(
    tmp_path: Path, write: Callable[[Path, bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"document {i} " + " ".join(str(i * k * 7919 % 1_000_003) for k in range(2000)) for i in range(600)]
    data = b"\n".join(map(record, texts))
    if write is write_zstd:
        path = tmp_path / "00.jsonl.zst"
        path.write_bytes(b"".join(zstd_frame(record(text) + b"\n") for text in texts))
    else:
        path = write(tmp_path / "00", data)
    population, shards = population_of([path], tmp_path)
    flagged = [i in (17, 18, 21) for i in range(len(texts))]
    whole = store_shingles(population, shards, bits(flagged), tmp_path / "whole", jobs=1)
    check(whole, texts, flagged, 3)
    build_index(shards[0])

    def not_read(*_: object, **__: object) -> None:
        raise AssertionError("the whole shard is read")

    monkeypatch.setattr(flagged_texts, "line_blocks", not_read)
    monkeypatch.setattr(flagged_texts, "parquet_batches", not_read)
    told: list[int] = []
    store_shingles(population, shards, bits(flagged), tmp_path / "some", jobs=1, advance=told.append)
    assert tree(tmp_path / "some") == tree(tmp_path / "whole")
    assert sum(told) == path.stat().st_size


def other_content(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = data[len(data) // 2 :][::-1]
    path.write_bytes(data)


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize("change", [other_content, shorter, Path.unlink])
def test_a_shard_that_is_not_the_one_that_was_sketched_is_named(tmp_path: Path, change: Callable[[Path], None]) -> None:
    paths = [write_plain(tmp_path / f"{i}", b"\n".join(some_lines(20))) for i in range(2)]
    population, shards = population_of(paths, tmp_path)
    change(paths[1])
    with pytest.raises(PilekitError, match=r"1\.jsonl: (is not the shard any more|no such file)"):
        store_shingles(population, shards, bits([True] * 40), tmp_path / "sets", jobs=1)
    assert sorted(tree(tmp_path / "sets")) == ["0.ends", "0.sets"]


def test_a_shard_that_changes_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_plain(tmp_path / "0", b"\n".join(some_lines(20)))
    population, shards = population_of([path], tmp_path)
    sound = second_pass.shingle_sets

    def changed_meanwhile(*arguments: object) -> object:
        other_content(path)
        return sound(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(second_pass, "shingle_sets", changed_meanwhile)
    with pytest.raises(PilekitError, match=r"0\.jsonl: is not the shard any more"):
        store_shingles(population, shards, bits([True] * 20), tmp_path / "sets", jobs=1)
    assert not ends_file(tmp_path / "sets", 0).exists()


CHANGES = {"open", "os.rename", "os.mkdir", "os.remove"}
"""What Python tells its audit hooks before it is done."""


def killed_at(moment: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that is killed before its file operation number `moment`; false if it has fewer."""
    child = os.fork()
    if child == 0:
        count, code = 0, 1

        def hook(event: str, _: object) -> None:
            nonlocal count
            if event in CHANGES:
                if count == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1

        try:
            sys.addaudithook(hook)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_killed_at_any_moment_it_goes_on_with_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "usable_cpus", lambda: 1)
    paths = [write_plain(tmp_path / f"{i}", b"\n".join(some_lines(20 + i))) for i in range(2)]
    population, shards = population_of(paths, tmp_path)
    flagged = bits([i % 2 == 0 for i in range(41)])
    store_shingles(population, shards, flagged, tmp_path / "whole", jobs=1)
    whole = tree(tmp_path / "whole")
    moment, went_on = 0, 0
    while True:
        folder = tmp_path / str(moment)
        killed = killed_at(moment, lambda folder=folder: store_shingles(population, shards, flagged, folder, jobs=1))  # type: ignore[misc]
        done = ends_file(folder, 0)
        before = done.stat().st_ino if done.exists() else None
        store_shingles(population, shards, flagged, folder, jobs=1)
        assert {name: content for name, content in tree(folder).items() if not name.endswith(".partial")} == whole
        if before is not None:
            assert done.stat().st_ino == before
            went_on += 1
        if not killed:
            break
        moment += 1
    assert 3 < went_on < moment
