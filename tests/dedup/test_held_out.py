"""Held-out shards among others: never read as train, or compared and kept whole, by slow references."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit import (
    Corpus,
    PilekitError,
    PileStream,
    clean_corpus,
    decontaminate_corpus,
    select_corpus,
    substrings_corpus,
)
from pilekit.dedup.run import dedup_corpus
from tests.cli.running import run
from tests.cutting import test_substrings as substrings
from tests.dedup import reference
from tests.dedup.checking import Document, Identity, check, corpus_documents, mask_of, removed_rows, write_corpus
from tests.pipeline.making import lines_of
from tests.shards import making
from tests.stopping import tree

LEFT_OUT = "left out, as held-out shards: test.jsonl, val.jsonl; to take them, name them alone"
LONG = " ".join(f"word{number}" for number in range(60))


def lines(*texts: str, label: str = "Pile-CC") -> list[bytes]:
    return [making.record(text, label) for text in texts]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """`val` and `test` have a copy and a near-copy of each other, and of `00`, whose near-copies are longer."""
    shards = {
        "00": lines(f"{LONG} end of train", "only train", "copied", "only train"),
        "test": lines(LONG, "only test"),
        "val": lines(f"{LONG} end", "copied", "copied", "only val", LONG),
    }
    return write_corpus(tmp_path / "data", shards)


MAKING: dict[str, Callable[..., Any]] = {
    "dedup": partial(dedup_corpus, jobs=1),
    "substrings": substrings_corpus,
    "decontaminate": partial(decontaminate_corpus, against="quiz.jsonl"),
    "clean": partial(clean_corpus, rules="gopher-quality"),
    "select": partial(select_corpus, min_bytes=1),
}
OPTIONS = {
    "decontaminate": ("--against", "quiz.jsonl"),
    "clean": ("--rules", "gopher-quality"),
    "select": ("--min-bytes", 1),
}


@pytest.mark.parametrize("name", MAKING)
def test_held_out_shards_beside_others_are_left_out_with_one_notice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"the {LONG} of this and that, which is to be with all that have"
    folder = write_corpus(tmp_path / "data", {name: lines(text, f"{name} {text}") for name in ("00", "test", "val")})
    Path("quiz.jsonl").write_text(json.dumps({"text": " ".join(["zebra"] * 20)}) + "\n")
    write_corpus(tmp_path / "alone", {"00": lines(text, f"00 {text}")})

    def shards(out: Path) -> dict[str, bytes]:
        return {path: content for path, content in tree(out).items() if path.endswith((".zst", ".mask"))}

    MAKING[name](tmp_path / "alone", out=tmp_path / "expected")
    MAKING[name](folder / "val.jsonl.zst", out=tmp_path / "val")  # by name, it is a corpus like any other
    assert any(path.endswith("val.jsonl.zst") for path in shards(tmp_path / "val"))
    assert not caplog.text
    MAKING[name](Corpus(folder), out=tmp_path / "called")
    run(name, folder, "--out", "typed", *OPTIONS.get(name, ()), exit_code=0)
    assert [record.message for record in caplog.records if "held-out" in record.message] == [LEFT_OUT] * 2
    for out in ("called", "typed"):
        assert shards(tmp_path / out) == shards(tmp_path / "expected")


def test_an_evaluation_may_lie_beside_the_corpus(data: Path, tmp_path: Path) -> None:
    found = decontaminate_corpus(data, against=data / "val.jsonl.zst", out=tmp_path / "out")
    assert (found.summary["read"], found.summary["spans"]) == (4, 1)
    assert {row["shard"] for row in found.hits.to_pylist()} == {"00.jsonl"}


def test_a_stream_of_a_corpus_leaves_them_out_too(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = PileStream(Corpus(data), tokenizer=None, batch_size=1, epochs=1)
    assert {shard.name for shard in stream.corpus} == {"00.jsonl"}
    assert caplog.text.count(LEFT_OUT) == 1


def test_protected_shards_stay_whole_and_the_others_lose_their_copies(data: Path, tmp_path: Path) -> None:
    out, documents = tmp_path / "out", corpus_documents(data)
    found = dedup_corpus(data, held_out="protect", out=out, jobs=1)
    held_out = ("test.jsonl", "val.jsonl")
    removed = check(out, documents, protected=held_out)
    assert removed == {("00.jsonl", 0), ("00.jsonl", 2), ("00.jsonl", 3)}
    kept = {row["number"]: (row["kept_corpus"], row["kept_shard"], row["kept_number"]) for row in removed_rows(out)}
    assert kept == {
        0: ("held-out", "val.jsonl", 0),
        2: ("held-out", "val.jsonl", 1),
        3: ("this", "00.jsonl", 1),
    }
    assert found.summary["held_out"] == {"shards": list(held_out), "documents": 7}
    assert (found.summary["like_held_out"], found.summary["removed"], found.summary["read"]) == (2, 3, 11)
    assert lines_of(out / "clean") | {"00.jsonl": lines_of(data)["00.jsonl"]} == lines_of(data)
    assert [column.title for column in found.table().columns][-2:] == ["Like held out", "Saved"]
    shown = run("duplicates", out, exit_code=0, COLUMNS="200").stdout
    assert "kept: val.jsonl 0, Pile-CC (held out)" in shown
    assert "kept: 00.jsonl 1, Pile-CC " in shown
    done = run("dedup", data, "--held-out", "protect", "--out", out, exit_code=0)
    told = "protected: test.jsonl, val.jsonl, 7 documents; 2 of the removed documents are like these"
    assert told in done.stderr
    # A stream of train loses them, and one of the held-out shards is whole.
    for name, count in (("", 1), ("val.jsonl.zst", 5)):
        stream = PileStream(data / name, tokenizer=None, batch_size=1, epochs=1, dedup=out)
        assert sum(len(batch.texts) if hasattr(batch, "texts") else 1 for batch in stream) == count
    unwritten = dedup_corpus(data, held_out="protect", out=tmp_path / "unwritten", jobs=1, write=False)
    assert unwritten.summary == found.summary
    assert mask_of(tmp_path / "unwritten", "val.jsonl") == [True] * 5


@pytest.mark.parametrize("make", [dedup_corpus, substrings_corpus])
def test_a_run_that_protects_is_another_run_and_needs_shards_to_protect(
    make: Callable[..., Any], data: Path, tmp_path: Path
) -> None:
    make(data, held_out="protect", out=tmp_path / "protected")
    before = tree(tmp_path)
    with pytest.raises(PilekitError, match=r'made with other settings: held_out is \["test\.jsonl","val\.jsonl"\] th'):
        make(data, out=tmp_path / "protected")
    for place in (data / "val.jsonl.zst", data / "00.jsonl.zst"):
        with pytest.raises(PilekitError, match="has no held-out shards among others, so there is nothing to protect"):
            make(place, held_out="protect", out=tmp_path / "none")
    with pytest.raises(PilekitError, match=r'held_out is "leave-out" or "protect", not \'keep\''):
        make(data, held_out="keep", out=tmp_path / "none")
    assert tree(tmp_path) == before


short = st.lists(st.sampled_from(["a", "b", "c", "A"]), max_size=7).flatmap(
    lambda words: st.sampled_from([" ", "  ", "-"]).map(lambda between: between.join(words))
)
labelled = st.lists(st.tuples(short, st.sampled_from(["ArXiv", "Pile-CC"])), max_size=8)
NAMES = ("00", "test", "train/01", "val", "zz")


@settings(max_examples=40)
@given(shards=st.fixed_dictionaries(dict.fromkeys(NAMES, labelled)), earlier=st.none() | labelled, data=st.data())
def test_a_protected_dedup_is_the_references(shards: dict[str, Any], earlier: Any, data: st.DataObject) -> None:
    options: dict[str, Any] = {"keep": data.draw(st.sampled_from(["longest", "first"]))}
    options |= data.draw(st.sampled_from([{}, {"subsets": ["ArXiv"]}, {"subsets": ["ArXiv"], "only": True}]))
    protected = ("test.jsonl", "val.jsonl")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)

        def written(name: str, of: dict[str, Any]) -> dict[Identity, Document]:
            made_lines = {shard: [making.record(*one) for one in documents] for shard, documents in of.items()}
            return corpus_documents(write_corpus(folder / name, made_lines))

        documents, before = written("data", shards), None
        for threshold in (1.0, 0.5):
            given_options = {**options, "threshold": threshold, "ngram": 2}
            if earlier is not None:
                first = written("earlier", {"past": earlier})
                past = folder / f"past-{threshold}"
                dedup_corpus(folder / "earlier", out=past, jobs=1, threshold=threshold, ngram=2, keep=options["keep"])
                before = {name: first[name] for name in first if mask_of(past, name[0])[name[1]]}
                given_options["against"] = past
            out = folder / f"out-{threshold}"
            dedup_corpus(folder / "data", held_out="protect", out=out, jobs=1, **given_options)
            removed = check(
                out, documents, threshold=threshold, ngram=2, against=before, protected=protected, **options
            )
            compared = {
                name: one for name, one in documents.items() if one.subset == "ArXiv" or "subsets" not in options
            }
            fixed = [reference.shingles(one.text, 2) for one in (before or {}).values()]
            fixed += [reference.shingles(one.text, 2) for name, one in compared.items() if name[0] in protected]
            others = [name for name in compared if name[0] not in protected]
            if options["keep"] == "longest":
                others.sort(key=lambda name: -len(compared[name].text.encode()))
            # At 1, each pair has all bands in common, and at 0.5 nearly all pairs from 0.9 on: 1 - 10^-24 of them.
            kept, expected = fixed, set()
            for name in others:
                mine = reference.shingles(compared[name].text, 2)
                most = max((reference.jaccard(mine, other) for other in kept), default=0.0)
                if most >= 0.9:
                    assert name in removed
                if most == 1:
                    expected.add(name)
                if name not in removed:
                    kept.append(mine)
            assert threshold < 1 or removed == expected


@settings(max_examples=60)
@given(
    st.fixed_dictionaries(dict.fromkeys(NAMES, st.lists(st.text(st.sampled_from("aaab bé "), max_size=60), max_size=5)))
)
def test_protected_substrings_are_the_references(shards: dict[str, list[str]]) -> None:
    length = 8
    with tempfile.TemporaryDirectory() as made:
        folder = write_corpus(Path(made) / "data", {name: list(map(making.record, of)) for name, of in shards.items()})
        found = substrings_corpus(folder, min_bytes=length, held_out="protect", out=Path(made) / "out", jobs=1)
        order = ["test", "val", *(name for name in NAMES if name not in ("test", "val"))]
        texts = list(chain.from_iterable(shards[name] for name in order))
        held_out = len(shards["test"]) + len(shards["val"])
        windows = substrings.earliest(texts, length)
        windows[:held_out] = [{}] * held_out
        cuts = substrings.reference(texts, length, windows)
        in_order = {f"{name}.jsonl": list(map(making.record, shards[name])) for name in order}
        substrings.check(found, in_order, cuts)
        spans = sum(first < held_out for _, _, _, first, _ in cuts)
        assert found.summary["held_out"] == {
            "shards": ["test.jsonl", "val.jsonl"],
            "documents": held_out,
            "spans": spans,
        }
        assert {row["shard"] for row in found.repeats.to_pylist()}.isdisjoint({"test.jsonl", "val.jsonl"})


def test_protected_substrings_after_dedup_with_subsets_and_the_command(data: Path, tmp_path: Path) -> None:
    dedup_corpus(data, out=tmp_path / "plain", jobs=1)
    dedup_corpus(data, held_out="protect", out=tmp_path / "protected", jobs=1)
    for name, spans, left_out in (("plain", 1, 1), ("protected", 0, 3)):
        out = tmp_path / f"of-{name}"
        found = substrings_corpus(data, held_out="protect", dedup=tmp_path / name, out=out)
        assert (found.summary["held_out"]["spans"], found.summary["left_out"]) == (spans, left_out)
        clean = lines_of(out / "clean")
        assert {shard: clean[shard] for shard in ("test.jsonl", "val.jsonl")} == {
            shard: of for shard, of in lines_of(data).items() if shard != "00.jsonl"
        }
    found = substrings_corpus(data, held_out="protect", subsets=["ArXiv"], out=tmp_path / "arxiv", write=False)
    assert (found.summary["spans"], found.summary["untouched"]) == (0, 11)
    done = run("substrings", data, "--held-out", "protect", "--out", tmp_path / "typed", exit_code=0)
    assert "protected: test.jsonl, val.jsonl, 7 documents; 1 of the spans are text of these" in done.stderr
    dedup_corpus(data, held_out="protect", out=tmp_path / "deduplicated", jobs=1)
    run("report", tmp_path / "typed", tmp_path / "deduplicated", "--out", tmp_path / "page.html", exit_code=0)
    page = (tmp_path / "page.html").read_text()
    assert "Spans that are text of held-out documents, of which nothing was cut: 1 (test.jsonl, val.jsonl)." in page
    assert "2 of the removed documents are like held-out ones, of which none was removed: test.jsonl, val" in page
    assert "val.jsonl 0 (held out)" in page


def test_the_mini_pile_loses_the_copies_of_its_held_out_documents(real_corpus: Path, tmp_path: Path) -> None:
    shards = ("minipile-00.jsonl.zst", "minipile-01.jsonl.zst", "val.jsonl.zst")
    found = dedup_corpus([real_corpus / name for name in shards], held_out="protect", out=tmp_path / "out", write=False)
    rows = removed_rows(tmp_path / "out")
    # An inverted index over exact shingles gives these eight; three are longer than the held-out document.
    like = [(row["number"], row["kept_number"]) for row in rows if row["kept_corpus"] == "held-out"]
    expected = [(70, 980), (82, 980), (681, 273), (2059, 495), (2319, 883), (4375, 495), (5318, 273), (5467, 1028)]
    assert like == expected
    assert {row["shard"] for row in rows} == {"minipile-00.jsonl", "minipile-01.jsonl"}
    assert found.summary["kept"] + found.summary["removed"] == found.summary["read"] == 14_417
