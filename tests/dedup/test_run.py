"""Whole runs: removals are proven, similar documents are found, nothing is lost, with any topology."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import datasketch
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit import Corpus, PilekitError
from pilekit.dedup import scratch_space
from pilekit.dedup.run import deduplicate
from pilekit.dedup.sketch.shingles import shingle_set
from tests.dedup import reference
from tests.dedup.checking import Identity, check, corpus_documents, write_corpus
from tests.dedup.planted import planted
from tests.shards import making
from tests.stopping import tree

LABELS = ["Github", "ArXiv", "Pile-CC"]


def lines_of(texts: list[str], labels: list[str] = LABELS) -> list[bytes]:
    return [making.record(text, labels[number % len(labels)]) for number, text in enumerate(texts)]


def planted_corpus(folder: Path, pairs: int, seed: int) -> Path:
    """Pairs of near-duplicates of similarities from 0.5 on, some exact copies, empty and short ones, over 3 shards."""
    found = planted(pairs, seed, alone=pairs // 4, words=(5, 200))
    rng = random.Random(seed)
    texts = found.texts + rng.choices(found.texts, k=pairs // 5) + ["", "", " ", "\n", "one", "One!", "one two", "…"]
    rng.shuffle(texts)
    lines = lines_of(texts)
    third = len(lines) // 3
    shards = {"train/00": lines[:third], "train/01": lines[third : 2 * third], "val": lines[2 * third :]}
    return write_corpus(folder, shards)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_corpus(tmp_path_factory.mktemp("corpus"), 120, 1)


def missed(folder: Path, removed: set[Identity], threshold: float) -> tuple[int, int]:
    """(similar pairs of which both are kept, all similar pairs), by brute force."""
    documents = corpus_documents(folder)
    names = list(documents)
    pairs = reference.similar_pairs([document.text for document in documents.values()], threshold)
    both_kept = [pair for pair in pairs if names[pair[0]] not in removed and names[pair[1]] not in removed]
    return len(both_kept), len(pairs)


@pytest.mark.parametrize(("threshold", "keep"), [(0.5, "longest"), (0.8, "longest"), (0.8, "first"), (0.9, "first")])
def test_planted_near_duplicates(corpus: Path, tmp_path: Path, threshold: float, keep: reference.Keep) -> None:
    deduplicate(corpus, threshold=threshold, keep=keep, out=tmp_path / "out", jobs=1)
    removed = check(tmp_path / "out", corpus_documents(corpus), threshold=threshold, keep=keep)
    both_kept, pairs = missed(corpus, removed, threshold)
    assert pairs > 20
    assert both_kept <= 0.01 * pairs


word = st.sampled_from(["a", "b", "c", "d", "é", "B"])
short_text = st.lists(word, max_size=9).map(" ".join) | st.sampled_from(["", " ", "...", "a-b", "\x00"])


@settings(max_examples=15)
@given(
    st.lists(st.lists(short_text, max_size=12), min_size=1, max_size=3),
    st.sampled_from([0.3, 0.5, 0.8, 1.0]),
    st.integers(1, 3),
    st.sampled_from(["longest", "first"]),
)
def test_adversarial_short_texts(
    tmp_path_factory: pytest.TempPathFactory,
    shards: list[list[str]],
    threshold: float,
    ngram: int,
    keep: reference.Keep,
) -> None:
    folder = tmp_path_factory.mktemp("short")
    write_corpus(folder / "data", {f"{place:02d}": [b"", *lines_of(texts)] for place, texts in enumerate(shards)})
    out = folder / "out"
    deduplicate(folder / "data", threshold=threshold, ngram=ngram, keep=keep, out=out, jobs=1)
    removed = check(out, corpus_documents(folder / "data"), threshold=threshold, ngram=ngram, keep=keep)
    first_of: dict[str, Identity] = {}
    for name, document in corpus_documents(folder / "data").items():
        assert first_of.setdefault(document.text, name) == name or name in removed
    shutil.rmtree(folder)


def test_the_bytes_depend_on_nothing_but_shards_and_parameters(corpus: Path, tmp_path: Path) -> None:
    files = [corpus / name for name in ("val.jsonl.zst", "train/01.jsonl.zst", "train/00.jsonl.zst")]
    deduplicate(corpus, out=tmp_path / "a", jobs=1)
    deduplicate(files, out=tmp_path / "b", jobs=2, memory=64 << 20)
    deduplicate(list(reversed(files)), out=tmp_path / "c")
    expected = tree(tmp_path / "a")
    assert set(expected) == {
        "pilekit.json",
        "removed.parquet",
        "summary.json",
        *(f"sketches/{name}.parquet" for name in ("train/00.jsonl", "train/01.jsonl", "val.jsonl")),
        *(f"masks/{name}.mask" for name in ("train/00.jsonl", "train/01.jsonl", "val.jsonl")),
        *(f"clean/{name}.zst" for name in ("train/00.jsonl", "train/01.jsonl", "val.jsonl")),
        *(f"clean/{name}.zst.index.parquet" for name in ("train/00.jsonl", "train/01.jsonl", "val.jsonl")),
    }
    assert tree(tmp_path / "b") == expected
    assert tree(tmp_path / "c") == expected


def test_without_writing_all_else_is_the_same(corpus: Path, tmp_path: Path) -> None:
    deduplicate(corpus, out=tmp_path / "written", jobs=1)
    deduplicate(corpus, out=tmp_path / "not", jobs=1, write=False)
    check(tmp_path / "not", corpus_documents(corpus), clean=False)
    written, not_written = (tree(tmp_path / name) for name in ("written", "not"))
    for name in not_written:
        assert not name.startswith("clean/")
        if name.startswith(("masks/", "sketches/", "summary.json")):
            assert not_written[name] == written[name]


@pytest.mark.parametrize(("only", "bad"), [(False, False), (False, True), (True, True)])
def test_other_subsets_pass_through_or_are_left_out(tmp_path: Path, only: bool, bad: bool) -> None:
    rng = random.Random(0)
    texts = rng.choices(planted(20, 5).texts, k=150)
    lines = lines_of(texts)
    if bad:
        lines = [line for one in lines for line in (one, rng.choice([b"", b"{", b"[]", b'{"text": 1}']))]
    write_corpus(tmp_path / "data", {"00": lines[: len(lines) // 2], "01": lines[len(lines) // 2 :]})
    documents = corpus_documents(tmp_path / "data")
    skipped = sum(bool(line) for line in lines) - len(documents)
    out = tmp_path / "out"
    result = deduplicate(
        tmp_path / "data", subsets=["arxiv", "Pile-CC"], only=only, out=out, jobs=1, on_error="skip", threshold=0.7
    )
    removed = check(out, documents, threshold=0.7, subsets={"ArXiv", "Pile-CC"}, only=only, skipped=skipped)
    assert len(removed) > 50
    assert result.skipped.count == skipped
    assert len(result.skipped.examples) == min(skipped, 100)
    assert {documents[name].subset for name in removed} == {"ArXiv", "Pile-CC"}


def test_a_bad_line_is_an_error_unless_it_is_to_be_skipped(tmp_path: Path) -> None:
    write_corpus(tmp_path / "data", {"00": [making.record("a"), b"{", making.record("a")]})
    with pytest.raises(PilekitError, match=r"00\.jsonl\.zst, line 2:"):
        deduplicate(tmp_path / "data", out=tmp_path / "out")
    write_corpus(tmp_path / "data", {"01": [making.record("b")]})
    with pytest.raises(PilekitError, match=r"00\.jsonl\.zst, line 2:"):
        deduplicate(tmp_path / "data", out=tmp_path / "out")
    for _ in range(2):  # The first call resumes that run and finishes it.
        assert deduplicate(tmp_path / "data", out=tmp_path / "out", on_error="skip").skipped.count == 1
        assert check(tmp_path / "out", corpus_documents(tmp_path / "data"), skipped=1) == {("00.jsonl", 2)}
    before = tree(tmp_path / "out")
    with pytest.raises(PilekitError, match=r"00\.jsonl\.zst, line 2:"):
        deduplicate(tmp_path / "data", out=tmp_path / "out")
    assert tree(tmp_path / "out") == before


def test_shards_in_memory(corpus: Path, tmp_path: Path) -> None:
    """`memory://` shards exist in this process only."""
    import fsspec

    files = fsspec.filesystem("memory")
    for path in corpus.rglob("*.zst"):
        files.pipe(f"/dedup/{path.relative_to(corpus)}", path.read_bytes())
    deduplicate("memory://dedup", out=tmp_path / "memory", jobs=2)
    deduplicate(corpus, out=tmp_path / "local", jobs=1)
    found, expected = (tree(tmp_path / name) for name in ("memory", "local"))
    del found["pilekit.json"], expected["pilekit.json"]  # where each shard was read
    assert found == expected
    files.rm("/dedup", recursive=True)


def test_more_documents_than_are_looked_up_at_a_time(tmp_path: Path) -> None:
    """Row groups, chunks and batches end in the middle; copies lie far from their originals."""
    documents = [(place, number) for place in range(2) for number in range(80_000)]
    of = [(31 * i) % 30_000 if i % 3 else i for i in range(len(documents))]
    lines = [making.record(f"text {text}", LABELS[i % 3]) for i, text in enumerate(of)]
    (tmp_path / "data").mkdir()
    for place in range(2):
        (tmp_path / "data" / f"{place}.jsonl").write_bytes(b"\n".join(lines[80_000 * place : 80_000 * (place + 1)]))
    result = deduplicate(tmp_path / "data", out=tmp_path / "out", jobs=1, memory=64 << 20)
    first_of: dict[int, int] = {}
    # Of "text 7" and "text 12345" the longer would be kept, but they are no copies of each other.
    expected = [(i, first) for i, text in enumerate(of) if (first := first_of.setdefault(text, i)) != i]
    table = result.removed
    found = [
        (80_000 * int(shard[0]) + number, 80_000 * int(kept_shard[0]) + kept_number)
        for shard, number, kept_shard, kept_number in zip(
            *(table[name].to_pylist() for name in ("shard", "number", "kept_shard", "kept_number")), strict=True
        )
    ]
    assert len(expected) > 1 << 16
    assert found == expected
    assert table["subset"].to_pylist() == [LABELS[i % 3] for i, _ in expected]
    assert table["kept_subset"].to_pylist() == [LABELS[first % 3] for _, first in expected]
    assert set(table["reason"].to_pylist()) == {"exact"}
    kept = b"".join(making.unzstd(path) for path in sorted((tmp_path / "out" / "clean").glob("*.zst")))
    gone = {i for i, _ in expected}
    assert kept == b"".join(line + b"\n" for i, line in enumerate(lines) if i not in gone)


# The result.


def test_minhash_is_datasketch_s(corpus: Path, tmp_path: Path) -> None:
    result = deduplicate(corpus, out=tmp_path / "out", jobs=1, threshold=0.7)
    assert result.removed.num_rows == result.summary["removed"]
    documents = corpus_documents(corpus)
    for name in [*list(documents)[:3], ("val.jsonl", 5)]:
        found = result.minhash(name)
        expected = datasketch.MinHash(130, 1, scheme="affine32", hashfunc=lambda shingle: shingle & 0xFFFFFFFF)
        for shingle in shingle_set(np.frombuffer(documents[name].text.encode(), dtype=np.uint8)).tolist():
            expected.update(shingle)
        assert found.jaccard(expected) == 1
        assert (found.hashvalues == expected.hashvalues).all()
        found.update(12345)
        expected.update(12345)
        assert (found.hashvalues == expected.hashvalues).all()
    with pytest.raises(PilekitError, match="no shard elsewhere"):
        result.minhash(("elsewhere", 0))
    with pytest.raises(PilekitError, match="no document 100,000"):
        result.minhash(("val.jsonl", 100_000))


def test_progress_of_every_step_comes_to_its_end(corpus: Path, tmp_path: Path) -> None:
    done: dict[str, int] = {}
    totals: dict[str, int] = {}

    def advance(step: str, amount: int, total: int) -> None:
        done[step] = done.get(step, 0) + amount
        assert totals.setdefault(step, total) == total

    deduplicate(corpus, out=tmp_path / "out", jobs=1, advance=advance)
    assert list(done) == ["sketching", "matching", "reading candidates", "comparing", "writing"]
    assert done == totals


# What is refused.


def test_what_cannot_be_done(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def fails(match: str, data: Any = corpus, **options: Any) -> None:
        with pytest.raises(PilekitError, match=match):
            deduplicate(data, **{"out": out, **options})
        assert not out.exists()

    fails(r"standard input \(-\)", "-")
    fails("out is empty", out="")
    fails("against is empty", against="")
    for options in (
        {"threshold": 0},
        {"threshold": 1.5},
        {"threshold": float("nan")},
        {"threshold": "0.8"},
        {"ngram": 0},
        {"ngram": 2.5},
        {"ngram": True},
        {"num_perm": 4097},
        {"memory": 64 * 10**6 - 1},
        {"memory": "4GB"},
        {"jobs": 0},
        {"write": "no"},
        {"only": 1},
        {"keep": "shortest"},
        {"on_error": "ignore"},
    ):
        fails(rf"deduplicate: .*\.{next(iter(options))}`", **options)
    fails("unknown subset", subsets=["nothing"])
    fails("subsets is empty", subsets=[])
    fails("name subsets too", only=True)
    (tmp_path / "two").mkdir()
    for name in ("a.jsonl", "a.parquet"):
        shutil.copy(corpus / "val.jsonl.zst", tmp_path / "two" / name)
    fails("would both be written", tmp_path / "two")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 10**4))
    fails(r"deduplicating needs about 0\.\d MB, the disk has 0\.1 MB free.*--out")
    with pytest.raises(PilekitError, match="--out"):
        deduplicate(corpus, out=corpus / "train")


def test_free_disk_is_asked_for_again_when_it_is_known_what_is_needed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.disk_usage
    for times, what in ((1, "matching"), (2, "writing clean shards"), (3, "comparing"), (4, "writing clean shards")):
        asked: list[Path] = []

        def disk_usage(path: Path, times: int = times, asked: list[Path] = asked) -> Any:
            asked.append(path)
            return real(path)._replace(free=10**12 if len(asked) <= times else 100)

        monkeypatch.setattr(scratch_space.shutil, "disk_usage", disk_usage)
        with pytest.raises(PilekitError, match=f"{what} needs about .* MB, the disk has 0.1 MB free"):
            deduplicate(corpus, out=tmp_path / "out", jobs=1)
    monkeypatch.undo()
    deduplicate(corpus, out=tmp_path / "out", jobs=1)
    check(tmp_path / "out", corpus_documents(corpus))


def test_what_it_writes_is_no_input(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "in")
    deduplicate(tmp_path / "in", out=tmp_path / "in" / "dedup", jobs=1)
    assert len(Corpus(tmp_path / "in")) == 3
    again = deduplicate(tmp_path / "in", out=tmp_path / "in" / "dedup")
    assert again.summary["read"] == len(corpus_documents(corpus))
    clean = deduplicate(tmp_path / "in" / "dedup" / "clean", out=tmp_path / "again", jobs=1)
    assert clean.summary["read"] == again.summary["kept"]
    assert clean.summary["removed"] <= 2  # of similar pairs that no band had found


# Real text.


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_real_near_duplicates(real_corpus: Path, tmp_path: Path, threshold: float) -> None:
    from scipy.sparse import csr_matrix

    data = tmp_path / "data"
    data.mkdir()
    (data / "neardup.jsonl.zst").symlink_to(real_corpus / "neardup.jsonl.zst")
    documents = corpus_documents(data)
    numbers: dict[reference.Shingle, int] = {}
    sets = [
        [numbers.setdefault(shingle, len(numbers)) for shingle in reference.shingles(document.text)]
        for document in documents.values()
    ]
    begins = np.cumsum([0, *map(len, sets)])
    ones = np.ones(begins[-1], dtype=np.int32)
    matrix = csr_matrix((ones, np.concatenate(sets), begins), shape=(len(sets), len(numbers)))
    shared = (matrix @ matrix.T).tocoo()
    sizes = np.diff(begins)
    similarity = shared.data / (sizes[shared.row] + sizes[shared.col] - shared.data)
    similar = (similarity >= threshold) & (shared.row < shared.col)
    for keep in ("longest", "first"):
        out = tmp_path / keep
        deduplicate(data, threshold=threshold, keep=keep, out=out, jobs=1)  # type: ignore[arg-type]
        removed = check(out, documents, threshold=threshold, keep=keep)  # type: ignore[arg-type]
        kept = np.array([name not in removed for name in documents])
        both_kept = int((kept[shared.row[similar]] & kept[shared.col[similar]]).sum())
        print(f"threshold {threshold}, {keep}: {similar.sum()} pairs, {both_kept} of them kept, {len(removed)} removed")
        assert both_kept <= 0.01 * similar.sum()
