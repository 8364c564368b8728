"""Whole runs: removals are proven, similar documents are found, nothing is lost, with any topology."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import datasketch
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit import PilekitError
from pilekit.dedup.output.removed_format import ROWS_PER_GROUP
from pilekit.dedup.output.removed_table import Decisions
from pilekit.dedup.result import REMOVED, DedupResult
from pilekit.dedup.run import dedup_corpus
from pilekit.dedup.sketch.shingles import shingle_set
from tests.dedup import reference
from tests.dedup.checking import Identity, check, corpus_documents, removed_rows, write_corpus
from tests.dedup.planted import planted, planted_corpus
from tests.shards import making
from tests.stopping import tree

LABELS = ["Github", "ArXiv", "Pile-CC"]


def lines_of(texts: list[str]) -> list[bytes]:
    return [making.record(text, LABELS[number % 3]) for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_corpus(tmp_path_factory.mktemp("corpus"), 120, 1)


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> DedupResult:
    """A run with default settings, whose progress was checked."""
    done: Counter[str] = Counter()
    totals: dict[str, int] = {}

    def advance(step: str, amount: int, total: int) -> None:
        done[step] += amount
        assert totals.setdefault(step, total) == total

    result = dedup_corpus(corpus, out=tmp_path_factory.mktemp("whole") / "out", jobs=1, advance=advance)
    assert list(done) == ["sketching", "matching", "reading candidates", "comparing", "writing"]
    assert done == totals
    return result


@pytest.mark.parametrize(("threshold", "keep"), [(0.5, "longest"), (0.8, "longest"), (0.8, "first"), (0.9, "first")])
def test_planted_near_duplicates(corpus: Path, tmp_path: Path, threshold: float, keep: reference.Keep) -> None:
    """By brute force: 99 % of the similar pairs lost at least one document."""
    documents = corpus_documents(corpus)
    dedup_corpus(corpus, threshold=threshold, keep=keep, out=tmp_path / "out", jobs=1)
    removed = check(tmp_path / "out", documents, threshold=threshold, keep=keep)
    names = list(documents)
    pairs = reference.similar_pairs([document.text for document in documents.values()], threshold)
    assert len(pairs) > 20
    assert sum(not removed & {names[one], names[other]} for one, other in pairs) <= 0.01 * len(pairs)
    if threshold > 0.5:
        return
    # Exact copies of a document that was itself removed count as near-duplicates.
    texts = Counter(
        documents[row["shard"], row["number"]].text for row in removed_rows(tmp_path / "out") if row["reason"] == "near"
    )
    assert max(texts.values()) > 1


word = st.sampled_from(["a", "b", "c", "d", "é", "B"])
short_text = st.lists(word, max_size=9).map(" ".join) | st.sampled_from(["", " ", "...", "a-b", "\x00"])


@settings(max_examples=15)
@given(st.lists(st.lists(short_text, max_size=12), min_size=1, max_size=3), st.data())
def test_adversarial_short_texts(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[str]], data: st.DataObject
) -> None:
    how: dict[str, Any] = {"threshold": data.draw(st.sampled_from([0.3, 0.5, 0.8, 1.0]))}
    how |= {"ngram": data.draw(st.integers(1, 3)), "keep": data.draw(st.sampled_from(["longest", "first"]))}
    folder = tmp_path_factory.mktemp("short")
    write_corpus(folder / "data", {f"{place:02d}": [b"", *lines_of(texts)] for place, texts in enumerate(shards)})
    out, documents = folder / "out", corpus_documents(folder / "data")
    dedup_corpus(folder / "data", out=out, jobs=1, **how)
    removed = check(out, documents, **how)
    first_of: dict[str, Identity] = {}
    for name, document in documents.items():
        assert first_of.setdefault(document.text, name) == name or name in removed
    shutil.rmtree(folder)


def test_the_bytes_depend_only_on_shards_and_parameters(corpus: Path, whole: DedupResult, tmp_path: Path) -> None:
    names = [f"{name}.jsonl" for name in ("train/00", "train/01", "web")]
    files = [corpus / f"{name}.zst" for name in names]
    dedup_corpus(files, out=tmp_path / "b", jobs=2, memory=64 << 20)
    dedup_corpus(list(reversed(files)), out=tmp_path / "c")
    expected = tree(whole.folder)
    kinds = ("sketches/{}.parquet", "masks/{}.mask", "clean/{}.zst", "clean/{}.zst.index.parquet")
    of_shards = {kind.format(name) for kind in kinds for name in names}
    assert set(expected) == {"pilekit.json", "removed.parquet", "summary.json", *of_shards}
    assert tree(tmp_path / "b") == tree(tmp_path / "c") == expected

    dedup_corpus(corpus, out=tmp_path / "masks", jobs=1, write=False)
    check(tmp_path / "masks", corpus_documents(corpus), clean=False)
    for name, content in tree(tmp_path / "masks").items():
        assert name in ("pilekit.json", "removed.parquet") or content == expected[name]

    import fsspec

    memory = fsspec.filesystem("memory")  # Its shards exist in this process only.
    for path in files:
        memory.pipe(f"/dedup/{path.relative_to(corpus)}", path.read_bytes())
    dedup_corpus("memory://dedup", out=tmp_path / "memory", jobs=2)
    memory.rm("/dedup", recursive=True)
    found = tree(tmp_path / "memory")
    assert {**found, "pilekit.json": b""} == {**expected, "pilekit.json": b""}  # where each shard was read


@pytest.mark.parametrize(("only", "bad"), [(False, False), (False, True), (True, True)])
def test_other_subsets_pass_through_or_are_left_out(tmp_path: Path, only: bool, bad: bool) -> None:
    rng = random.Random(0)
    lines = lines_of(rng.choices(planted(20, 5).texts, k=150))
    if bad:
        lines = [line for one in lines for line in (one, rng.choice([b"", b"{", b"[]", b'{"text": 1}']))]
    data, out = tmp_path / "data", tmp_path / "out"
    write_corpus(data, {"00": lines[: len(lines) // 2], "01": lines[len(lines) // 2 :]})
    documents = corpus_documents(data)
    skipped = sum(bool(line) for line in lines) - len(documents)
    subsets = ["arxiv", "Pile-CC"]
    result = dedup_corpus(data, subsets=subsets, only=only, out=out, jobs=1, on_error="skip", threshold=0.7)
    removed = check(out, documents, threshold=0.7, subsets={"ArXiv", "Pile-CC"}, only=only, skipped=skipped)
    assert len(removed) > 50
    rows = [{"subset": name, **counts} for name, counts in result.summary["subsets"].items()]
    assert result.to_arrow().to_pylist() == rows
    assert (result.skipped.count, len(result.skipped.examples)) == (skipped, min(skipped, 100))
    assert {documents[name].subset for name in removed} == {"ArXiv", "Pile-CC"}


def test_more_documents_than_are_looked_up_at_a_time(tmp_path: Path) -> None:
    """Row groups, chunks and batches end in the middle; copies lie far from their originals."""
    count = ROWS_PER_GROUP + 5000  # in each of two shards
    of = [(31 * i) % 1875 if i % 3 else i for i in range(2 * count)]
    lines = lines_of([f"text {text}" for text in of])
    (tmp_path / "data").mkdir()
    for place in range(2):
        (tmp_path / "data" / f"{place}.jsonl").write_bytes(b"\n".join(lines[count * place : count * (place + 1)]))
    result = dedup_corpus(tmp_path / "data", out=tmp_path / "out", jobs=1, memory=64 << 20)
    first_of: dict[int, int] = {}
    # Of "text 7" and "text 12345" the longer would be kept, but they are no copies of each other.
    expected = [(i, first) for i, text in enumerate(of) if (first := first_of.setdefault(text, i)) != i]
    rows = result.removed.to_pylist()
    found = [tuple(count * int(row[f"{one}shard"][0]) + row[f"{one}number"] for one in ("", "kept_")) for row in rows]
    assert len(expected) > ROWS_PER_GROUP
    assert found == expected
    assert [(row["subset"], row["kept_subset"]) for row in rows] == [
        (LABELS[i % 3], LABELS[first % 3]) for i, first in expected
    ]
    assert {row["reason"] for row in rows} == {"exact"}
    kept = b"".join(making.unzstd(path) for path in sorted((tmp_path / "out" / "clean").glob("*.zst")))
    gone = {i for i, _ in expected}
    assert kept == b"".join(line + b"\n" for i, line in enumerate(lines) if i not in gone)


@pytest.mark.parametrize("at_a_time", [1, 7, 100])
def test_removals_come_in_groups_of_any_size(tmp_path: Path, at_a_time: int) -> None:
    removed = np.flatnonzero(np.random.default_rng(0).random(90) < 0.4) + 1
    decisions = Decisions(100, tmp_path, at_a_time)
    decisions.add_copies(np.stack([np.zeros(len(removed)), removed]).astype(np.uint64) | np.uint64(1 << 63))
    for size in (1, 3, 50):
        groups = [ids.tolist() for ids, _ in decisions.removals(size)]
        assert list(chain.from_iterable(groups)) == removed.tolist()
        assert {len(group) for group in groups[:-1]} <= {size}


def test_minhash_is_datasketch_s(corpus: Path, whole: DedupResult) -> None:
    assert whole.removed.num_rows == whole.summary["removed"]
    documents = corpus_documents(corpus)
    for name in [*list(documents)[:3], ("web.jsonl", 5)]:
        found = whole.minhash(name)
        expected = datasketch.MinHash(126, 1, scheme="affine32", hashfunc=lambda shingle: shingle & 0xFFFFFFFF)
        for shingle in shingle_set(np.frombuffer(documents[name].text.encode(), dtype=np.uint8)).tolist():
            expected.update(shingle)
        for _ in range(2):
            assert found.jaccard(expected) == 1
            assert (found.hashvalues == expected.hashvalues).all()
            found.update(12345)
            expected.update(12345)
    with pytest.raises(PilekitError, match="no shard elsewhere"):
        whole.minhash(("elsewhere", 0))
    with pytest.raises(PilekitError, match="no document 100,000"):
        whole.minhash(("web.jsonl", 100_000))


def test_wrong_arguments_are_refused_before_a_folder_is_made(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, two = tmp_path / "out", tmp_path / "two"

    def fails(match: str, data: Any = corpus, **options: Any) -> None:
        with pytest.raises(PilekitError, match=match):
            dedup_corpus(data, **{"out": out, **options})
        assert not out.exists()

    fails(r"standard input \(-\)", "-")
    fails("out is empty", out="")
    fails("against is empty", against="")
    for name, value in (
        ("threshold", 0),
        ("threshold", float("nan")),
        ("ngram", 2.5),
        ("num_perm", 4097),
        ("memory", 64 * 10**6 - 1),
        ("write", "no"),
        ("keep", "shortest"),
    ):
        fails(rf"^{name} = .*: must be ", **{name: value})
    fails("unknown subset", subsets=["nothing"])
    fails("subsets is empty", subsets=[])
    fails("name subsets too", only=True)
    two.mkdir()
    for name in ("a.jsonl", "a.parquet"):
        shutil.copy(corpus / "web.jsonl.zst", two / name)
    fails("would both be written", two)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 10**4))
    fails(r"deduplicating needs about [\d.]+ kB, the disk has 10\.0 kB free.*--out")
    with pytest.raises(PilekitError, match="--out"):
        dedup_corpus(corpus, out=corpus / "train")


def test_free_disk_is_asked_for_again_when_the_candidates_are_known(
    corpus: Path, whole: DedupResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answers = shutil.disk_usage, iter([10**12, 100])
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=next(answers)))
        with pytest.raises(PilekitError, match=r"comparing needs about .*, the disk has 100 B free"):
            dedup_corpus(corpus, out=tmp_path / "out", jobs=1)
    dedup_corpus(corpus, out=tmp_path / "out", jobs=1)
    assert tree(tmp_path / "out") == tree(whole.folder)


def test_a_finished_run_of_another_pilekit_is_refused_by_the_same_command_as_by_others(tmp_path: Path) -> None:
    write_corpus(tmp_path / "data", {"00": lines_of(["one text that stands here twice"] * 2)})
    result = dedup_corpus(tmp_path / "data", tmp_path / "out", jobs=1)
    path = tmp_path / "out" / REMOVED
    stored = path.read_bytes()
    assert stored.count(b'"format":2') == 1
    path.write_bytes(stored.replace(b'"format":2', b'"format":1'))
    message = r"removed.parquet: is a table of removed documents of format 1 from .*; run `pilekit dedup` again, into"
    for again in (lambda: result.removed, lambda: dedup_corpus(tmp_path / "data", tmp_path / "out", jobs=1)):
        with pytest.raises(PilekitError, match=message):
            again()
