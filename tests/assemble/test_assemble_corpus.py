"""Assembled corpora against a slow reference, and the same bytes for any processes, memory and order."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import Corpus, PilekitError, corpus_stats, read
from pilekit.assemble import assemble_corpus
from tests.assemble.reference import Case, Part
from tests.shards import making
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
    forms = (["a.jsonl", "b.jsonl.gz"], ["c.jsonl.zst"], ["d.parquet", "e.jsonl"], ["files"], ["g.jsonl.zst"])
    parts = []
    for place, (epochs, names) in enumerate(zip((0.5, 1.0, 1.5, 2.0, 3.0), forms, strict=True)):
        own = texts[place * fifth : (place + 1) * fifth]
        sources: dict[str, list[tuple[str, str, str]]] = {name: [] for name in names}
        for number, text in enumerate(own):
            sources[names[number % len(names)]].append((text, f"files/repo {number // 3 % 40}", f"{number}"))
        parts.append(Part(f"Set {place}", epochs, sources, grouped=place in (3, 4)))
    for place, name in ((0, "a.jsonl"), (2, "d.parquet")):
        parts[place].sources[name].append(("planted in two subsets", "files/repo 1", "p"))
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
    assemble_corpus(Case(case.parts, case.val, case.test, seed=7).write(tmp_path), tmp_path / "other")
    assert content(folder / "out").items().isdisjoint(content(tmp_path / "other").items())


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
    different = {text for batch in read(tmp_path / "out/train") for text in batch.texts}
    assert sum(row["copies"] for row in stats.values()) == summary["train"] - len(different)
    other = tmp_path / "other"
    other.mkdir()
    assemble_corpus(case.write(other, turned=True), other / "out", jobs=2, memory=64 * 10**6)
    assert content(other / "out") == content(tmp_path / "out")


def test_held_out_shards_beside_others_are_no_sources_unless_they_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("raw/00.jsonl", "raw/val.jsonl", "raw/test/00.jsonl", "code/main.py", "code/test/case.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name if name.endswith("py") else "".join(f'{{"text": "{name} {i}"}}\n' for i in range(4)))
    told = "left out, as held-out shards: raw/test/00.jsonl, raw/val.jsonl; to take them, name them alone"
    for sources, documents, notices in (
        (["raw"], 4, [told]),
        (["raw/**/*.jsonl"], 4, [told]),
        (["raw", "raw/val.jsonl"], 8, [told]),
        (["raw/test"], 4, []),
        (["code"], 2, []),  # of files of text, no name says that they are held out
    ):
        listed = json.dumps(sources)
        (tmp_path / "mine.toml").write_text(f'name = "mine"\n[[subsets]]\nname = "A"\nsources = {listed}\n')
        caplog.clear()
        found = assemble_corpus(tmp_path / "mine.toml", tmp_path / f"out-{len(listed)}", plan=True, jobs=1)
        assert found.summary["read"] == documents
        assert [record.message for record in caplog.records if "held-out" in record.message] == notices


def test_kept_fields_of_lines_are_copied_byte_for_byte(tmp_path: Path) -> None:
    values = [
        b"296336254116318163954371823645001234567",
        b"1.0e+2",
        b'{ "a":[0.10 ,"\\u00e9"], "a":1}',
        b'"\\/"',
        b"[]",
    ]
    lines = [
        b'{"x": {"id":1}, "x": {"id": 2, "i\\u0064" : %s }, "null": null, "text": "text %d"}' % (value, number)
        for number, value in enumerate(values * 4)
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines, b'{"text": "no such field", "x": 1}']))
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\n[assemble]\nval = 0.1\ntest = 0.0\nshards = 1\n[[subsets]]\nname = "A"\nsources = ["a.jsonl"]\n'
        'keep = ["x.id", "null"]\n'
    )
    assemble_corpus(tmp_path / "mine.toml", tmp_path / "out", jobs=1)
    written = [line for path in (tmp_path / "out").rglob("*.zst") for line in making.unzstd(path).split(b"\n")[:-1]]
    expected = [
        b'{"text":"text %d","meta":{"pile_set_name":"A","id":%s}}' % (number, value)
        for number, value in enumerate(values * 4)
    ]
    assert sorted(written) == sorted([*expected, b'{"text":"no such field","meta":{"pile_set_name":"A"}}'])
