"""Assembled corpora against a slow reference, and the same bytes whatever happens."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import Corpus, PilekitError, corpus_stats, read
from pilekit.assemble import assemble_corpus
from tests.assemble.reference import Case, Part
from tests.stopping import tree

DOCUMENTS = st.lists(st.tuples(st.text("ab\n", max_size=4), st.sampled_from("rst"), st.just("")), max_size=25)
PARTS = st.tuples(DOCUMENTS, DOCUMENTS, st.sampled_from([0.0, 0.4, 0.5, 1.0, 1.3, 2.0, 3.5]), st.booleans())
SHARES = st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.9])


@given(st.lists(PARTS, min_size=1, max_size=3), SHARES, SHARES, st.integers(1, 4), st.integers(0, 3))
def test_counts_are_exact(
    drawn: list[tuple[list[tuple[str, str, str]], list[tuple[str, str, str]], float, bool]],
    val: float,
    test: float,
    shards: int,
    seed: int,
) -> None:
    """Repeated texts, texts and groups in several subsets, more asked for than there is."""
    parts = [
        Part(
            f"part {place}",
            epochs,
            {
                f"{place}/{form}": [(text, group, f"{form}{number}") for number, (text, group, _) in enumerate(some)]
                for form, some in (("a.jsonl", one), ("b.jsonl", other))
            },
            grouped,
        )
        for place, (one, other, epochs, grouped) in enumerate(drawn)
    ]
    case = Case(parts, val, test, shards, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = case.write(folder)
        try:
            made = assemble_corpus(manifest, folder / "out", jobs=1)
        except PilekitError as error:
            assert "nothing is left for train" in str(error)
            assert not (folder / "out" / "train").exists()
            return
        case.check(made.summary, folder / "out")


def five_subsets(texts: list[str]) -> Case:
    """All forms of sources; a text in two subsets, and a group in two, of which one keeps it in text files."""
    fifth = len(texts) // 5
    parts, forms = (
        [],
        (["a.jsonl", "b.jsonl.gz"], ["c.jsonl.zst"], ["d.parquet", "e.jsonl"], ["files"], ["g.jsonl.zst"]),
    )
    for place, (epochs, names) in enumerate(zip((0.5, 1.0, 1.5, 2.0, 3.0), forms, strict=True)):
        own = texts[place * fifth : (place + 1) * fifth]
        sources: dict[str, list[tuple[str, str, str]]] = {name: [] for name in names}
        for number, text in enumerate(own):
            sources[names[number % len(names)]].append((text, f"files/repo {number // 3 % 40}", f"{number}"))
        parts.append(Part(f"Set {place}", epochs, sources, grouped=place in (3, 4)))
    for name in ("a.jsonl", "d.parquet"):
        parts[2 if name == "d.parquet" else 0].sources[name].append(("planted in two subsets", "files/repo 1", "p"))
    return Case(parts, 0.05, 0.1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Path]:
    """A small corpus of five subsets."""
    folder = tmp_path_factory.mktemp("made")
    case = five_subsets([f"document {number}\n" + "words and words " * (number % 50) for number in range(600)] + [""])
    assembled = assemble_corpus(case.write(folder), folder / "out", jobs=1)
    case.check(assembled.summary, folder / "out")
    assert assembled.summary["removed"] > 0
    return case, folder


def content(out: Path) -> dict[str, bytes]:
    """All files but the header, which tells the times of the sources."""
    return {name: data for name, data in tree(out).items() if name != "pilekit.json"}


def test_the_same_bytes_for_any_jobs_memory_and_order_of_sources(made: tuple[Case, Path], tmp_path: Path) -> None:
    case, folder = made
    manifest = case.write(tmp_path, turned=True)
    planned = assemble_corpus(manifest, tmp_path / "out", plan=True, jobs=2)
    assert not planned.written
    assert not list((tmp_path / "out").rglob("*.zst"))
    assembled = assemble_corpus(manifest, tmp_path / "out", memory=64 * 10**6, jobs=2)
    assert assembled.summary == planned.summary
    assert content(tmp_path / "out") == content(folder / "out")
    assert not (tmp_path / "out" / "scratch").exists()
    shutil.rmtree(tmp_path / "out" / "train")
    assemble_corpus(manifest, tmp_path / "out", memory=64 * 10**6, jobs=2)
    assert content(tmp_path / "out") == content(folder / "out")
    other = Case(case.parts, case.val, case.test, seed=7)
    assert (
        content(folder / "out")
        .items()
        .isdisjoint(content(assemble_corpus(other.write(tmp_path), tmp_path / "other").folder).items())
    )


@pytest.mark.slow
def test_real_text_in_all_forms(real_corpus: Path, tmp_path: Path) -> None:
    """The counts of `stats` agree, and 2 jobs in little memory give the same bytes."""
    texts = [text for batch in read(real_corpus / "minipile-00.jsonl.zst") for text in batch.texts[::4]]
    case = five_subsets(texts)
    manifest = case.write(tmp_path)
    summary = assemble_corpus(manifest, tmp_path / "out", jobs=1).summary
    case.check(summary, tmp_path / "out")
    stats = corpus_stats(Corpus(tmp_path / "out", manifest), copies=True).to_dict()["subsets"]
    for name, row in summary["subsets"].items():
        assert stats[name]["documents"] == row["train"] + row["val"] + row["test"]
        assert stats[name]["copies"] >= row["train"] - row["train_documents"]
    assert sum(row["copies"] for row in stats.values()) == summary["train"] - different_in_train(tmp_path / "out")
    other = tmp_path / "other"
    other.mkdir()
    assemble_corpus(case.write(other, turned=True), other / "out", jobs=2, memory=64 * 10**6)
    assert content(other / "out") == content(tmp_path / "out")


def different_in_train(out: Path) -> int:
    return len({text for batch in read(out / "train") for text in batch.texts})
