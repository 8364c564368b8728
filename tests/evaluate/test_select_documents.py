"""Which documents are scored: subsets, limits, held-out shards; which of them are in the training shards."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import MAX_SUBSETS, Corpus, load_manifest
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.compare import compare
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result_folder import read_result
from pilekit.evaluate.select_documents import selected, text_bytes_selected
from pilekit.evaluate.settings import ScoreSettings
from pilekit.evaluate.training_copies import count_training_copies
from pilekit.shards.index.build import index_corpus
from pilekit.shards.read.change_check import version_of
from pilekit.shards.read.read_errors import SkippedLines
from tests.evaluate.documents import manifest_of, write
from tests.refusing import refused


def test_subsets_are_in_the_manifests_order_then_as_they_come(tmp_path: Path, model_dir: Path) -> None:
    labels = ["zebra", "ArXiv", None, "apple", "Pile-CC", "Github", "ArXiv"]
    shard = write(tmp_path / "a.jsonl", [(label, f"text {label}") for label in labels])
    result = bits_per_byte(model_dir, shard)
    assert list(result.subsets) == ["Pile-CC", "ArXiv", "Github", "zebra", "(none)", "apple"]
    assert result.subsets["ArXiv"].documents == 2
    assert list(bits_per_byte(model_dir, shard, subsets=["(none)", "github"]).subsets) == ["Github", "(none)"]
    names = [subset.name for subset in load_manifest().subsets]
    shard = write(tmp_path / "b.jsonl", [(name, f"text of {name}") for name in reversed(names)])
    assert list(bits_per_byte(model_dir, shard).subsets) == names


def test_a_limit_takes_the_first_documents_of_each_subset(tmp_path: Path, model_dir: Path) -> None:
    texts = [("ArXiv", "a" * n) for n in range(1, 6)] + [("Github", "b"), (None, "cc"), (None, "ccc"), (None, "c")]
    result = bits_per_byte(model_dir, write(tmp_path / "a.jsonl", texts), limit=2)
    sizes = {name: (score.documents, score.bytes) for name, score in result.subsets.items()}
    assert sizes == {"ArXiv": (2, 3), "Github": (1, 1), "(none)": (2, 5)}


@given(
    documents=st.lists(
        st.tuples(st.sampled_from(["A", "B", "other", None]), st.text("aé漢", max_size=9)), min_size=1, max_size=30
    ),
    limit=st.none() | st.integers(1, 4),
    limit_bytes=st.integers(1, 40),
    subsets=st.none() | st.sampled_from([("A",), ("B", "A")]),
)
def test_a_limit_of_bytes_takes_whole_documents_until_a_subset_has_them(
    documents: list[tuple[str | None, str]], limit: int | None, limit_bytes: int, subsets: tuple[str, ...] | None
) -> None:
    expected: dict[str, list[tuple[str, int]]] = {}
    kept = [False] * len(documents)

    def is_over(name: str) -> bool:
        before = expected.get(name, [])
        has = sum(len(documents[number][1].encode()) for _, number in before)
        return has >= limit_bytes or (limit is not None and len(before) >= limit)

    names = ["A", "B"] if subsets is None else list(subsets)
    for place, (label, _) in enumerate(documents):
        name = label or "(none)"
        if place and place % 11 == 0 and all(map(is_over, names)):
            break  # all subsets that are known by the end of a shard are full
        names += [name] * (subsets is None and name not in names)
        if (subsets is None or name in subsets) and not is_over(name):
            expected.setdefault(name, []).append((f"{place // 11}.jsonl", place))
            kept[place] = True
    with tempfile.TemporaryDirectory() as folder:
        for begin in range(0, max(1, len(documents)), 11):
            write(Path(folder) / f"{begin // 11}.jsonl", documents[begin : begin + 11])
        options = ScoreSettings(subsets=subsets, limit=limit, limit_bytes=limit_bytes)
        corpus = Corpus(folder, manifest_of("A", "B"))
        plan: Any = SimpleNamespace(
            options=options,
            corpus=corpus,
            subsets=subsets,
            shard_versions={shard.path: version_of(shard.path) for shard in corpus.shards},
        )
        labels: dict[str, int] = {}
        found: dict[str, list[tuple[str, int]]] = {}
        for batch in selected(plan, labels, SkippedLines(), lambda _: None):
            for subset, number in zip(batch.subsets, batch.numbers.tolist(), strict=True):
                found.setdefault(subset, []).append((f"{batch.shard}", number + 11 * int(batch.shard[0])))
        total = sum(len(text.encode()) for (_, text), taken in zip(documents, kept, strict=True) if taken)
        assert text_bytes_selected(plan) == total
        for shard in corpus.shards[::2]:
            index_corpus(Corpus(shard.path, corpus.manifest))
        assert text_bytes_selected(plan) == total
    assert found == expected
    assert {label: count for label, count in labels.items() if count} == {name: len(of) for name, of in found.items()}


def test_a_limit_of_bytes_is_in_protocol_and_key_and_ends_reading(tmp_path: Path, model_dir: Path) -> None:
    write(tmp_path / "corpus" / "00.jsonl", [("A", "a"), ("B", "bbbb"), ("A", "aaa"), ("A", "a"), ("B", "b")])
    (tmp_path / "corpus" / "01.jsonl").write_text("this is no document\n")
    corpus = Corpus(tmp_path / "corpus", manifest_of("A", "B"))
    result = bits_per_byte(model_dir, corpus, limit_bytes=3, out=tmp_path / "out")
    assert {name: (of.documents, of.bytes) for name, of in result.subsets.items()} == {"A": (2, 4), "B": (1, 4)}
    assert result.protocol["limit_bytes"] == 3
    assert bits_per_byte(model_dir, corpus, limit_bytes=3, out=tmp_path / "out").to_dict() == result.to_dict()
    one = bits_per_byte(model_dir, corpus, limit_bytes=3, limit=1, out=tmp_path / "out")
    assert one.protocol["records"] != result.protocol["records"]
    assert {name: of.documents for name, of in one.subsets.items()} == {"A": 1, "B": 1}
    assert "limit_bytes" not in bits_per_byte(model_dir, corpus, limit=1).protocol
    assert compare([result, one]).left_out == (1, 0)
    refused("limit_bytes", bits_per_byte, model_dir, corpus, limit_bytes=0)


def test_a_limit_ends_reading_when_all_subsets_are_full(tmp_path: Path, model_dir: Path) -> None:
    write(tmp_path / "corpus" / "00.jsonl", [("A", "a"), ("B", "b"), ("A", "aa")])
    (tmp_path / "corpus" / "01.jsonl").write_text("this is no document\n")
    for names, subsets, reads_on in (
        (("A", "B"), None, False),
        (("A", "B", "C"), None, True),
        (("A", "B", "C"), ("A", "B"), False),
        ((), ("B",), False),
        ((), None, True),  # the labels of later files are unknown
    ):
        corpus = Corpus(tmp_path / "corpus", manifest_of(*names))
        if reads_on:
            refused(r"01\.jsonl, line 1", bits_per_byte, model_dir, corpus, limit=1, subsets=subsets)
        else:
            assert set(bits_per_byte(model_dir, corpus, limit=1, subsets=subsets).subsets) == set(subsets or names)
    write(tmp_path / "more" / "00.jsonl", [("A", "a"), ("A", "a"), ("X", "x")])
    write(tmp_path / "more" / "01.jsonl", [("X", "x"), ("X", "x")])
    result = bits_per_byte(model_dir, Corpus(tmp_path / "more", manifest_of("A")), limit=2)
    assert {name: score.documents for name, score in result.subsets.items()} == {"A": 2, "X": 2}


def test_empty_selections(tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    shard = write(tmp_path / "a.jsonl", [("ArXiv", "x")])
    (tmp_path / "blank.jsonl").write_text("\n")
    for data, subsets, words in (
        (shard, ["Books3"], r"no documents of Books3 in the 1 shard of .*; `pilekit stats` shows"),
        (shard, [], "subsets is empty"),
        (shard, ["Bux"], "unknown subset"),
        (tmp_path / "blank.jsonl", None, "no documents in the 1 shard of"),
    ):
        refused(words, bits_per_byte, model_dir, data, subsets=subsets)
    caplog.clear()
    assert list(bits_per_byte(model_dir, shard, subsets=["Books3", "arxiv"]).subsets) == ["ArXiv"]
    assert "no documents of Books3 in " in caplog.text


def test_held_out_shards_among_others_are_scored_alone(
    tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "train" / "00.jsonl", [("ArXiv", "train")])
    write(tmp_path / "val.jsonl", [("ArXiv", "val")])
    write(tmp_path / "test.jsonl", [("ArXiv", "test")])
    result = bits_per_byte(model_dir, tmp_path)
    assert [shard["name"] for shard in result.protocol["data"]] == ["test.jsonl", "val.jsonl"]
    assert result.overall.bytes == 7
    assert "only the held-out shards are taken: test.jsonl, val.jsonl" in caplog.text
    assert bits_per_byte(model_dir, tmp_path / "train").overall.bytes == 5


def test_bad_lines_are_skipped_and_counted_on_demand(
    tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = write(tmp_path / "good.jsonl", [("ArXiv", "one"), ("Github", "two"), ("ArXiv", "three")])
    lines = good.read_text().splitlines()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "00.jsonl").write_text("\n".join([lines[0], "this is no document", lines[1]]) + "\n")
    (tmp_path / "bad" / "01.jsonl").write_text("\n".join(["{}", lines[2]]) + "\n")
    refused(r"00\.jsonl, line 2", bits_per_byte, model_dir, tmp_path / "bad")
    caplog.clear()
    result = bits_per_byte(model_dir, tmp_path / "bad", on_error="skip")
    assert result.subsets == bits_per_byte(model_dir, good).subsets
    assert result.protocol["skipped_lines"] == 2
    [said] = caplog.messages
    assert said.startswith("skipped 2 bad lines, the first: ")
    assert "00.jsonl, line 2" in said


def test_foreign_labels(tmp_path: Path, model_dir: Path) -> None:
    """The protocol lists 30 foreign labels, and there is a limit to labels."""
    labels = [*(f"label {n}" for n in range(100)), "Github", "ArXiv"]
    shard = write(tmp_path / "a.jsonl", [(label, "x") for label in labels])
    result = bits_per_byte(model_dir, shard, subsets=["Github"])
    assert (len(result.protocol["labels"]), result.overall.documents) == (32, 1)
    assert set(result.protocol["labels"]) == {*labels[:30], "Github", "ArXiv"}
    many = write(tmp_path / "b.jsonl", [(f"label {number}", "x") for number in range(MAX_SUBSETS + 1)])
    refused("more than 4,096 different subset labels", bits_per_byte, model_dir, Corpus(many, manifest_of()))


def test_published_figures_need_the_piles_labels(tmp_path: Path, model_dir: Path) -> None:
    """Also if only one subset is requested: skipped labels count, on a first reading and from records."""
    labels = [subset.name for subset in load_manifest().subsets]
    cases: list[tuple[int | None, list[str], bool]] = [(None, [], True), (None, ["Mine"], False), (2, [], False)]
    for number, (limit, more, is_shown) in enumerate(cases):
        folder = tmp_path / str(number)
        write(folder / "corpus" / "val" / "0.jsonl", [("ArXiv", "a text"), ("ArXiv", "one more")])
        write(folder / "corpus" / "val" / "1.jsonl", [(label, "a text") for label in (*labels, *more)])
        for _ in range(2):
            result = bits_per_byte(model_dir, folder / "corpus", subsets=["arxiv"], limit=limit, out=folder / "out")
            assert (result.published is not None) == is_shown
            assert read_result(folder / "out").published == result.published


TEXTS = st.sampled_from(["", "a", "b", "a ", "A", "é", "e\u0301", "\x00", "a\nb", "long " * 200])
DOCUMENTS = st.lists(st.tuples(TEXTS, st.sampled_from(["ArXiv", "Github", "New"])), max_size=12)


def corpus_with(folder: Path, *shards: list[tuple[str, str]]) -> Corpus:
    for number, documents in enumerate(shards):
        write(folder / f"{number:02d}.jsonl", [(label, text) for text, label in documents])
    return Corpus(folder)


def records(documents: list[tuple[str, str]]) -> Records:
    scored = [
        ScoredDocument("val.jsonl", number, xxhash.xxh3_64_intdigest(text.encode()), label, len(text.encode()), 1, 1.0)
        for number, (text, label) in enumerate(documents)
    ]
    return Records.of(scored, ["val.jsonl"], load_manifest())


@given(evaluated=DOCUMENTS, first=DOCUMENTS.filter(bool), second=DOCUMENTS.filter(bool))
def test_copies_are_the_documents_whose_text_is_in_a_training_shard(
    evaluated: list[tuple[str, str]], first: list[tuple[str, str]], second: list[tuple[str, str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = count_training_copies(records(evaluated), corpus_with(Path(folder), first, second))
    texts = {text for text, _ in first + second}
    expected = dict.fromkeys((label for _, label in evaluated), 0)
    for text, label in evaluated:
        expected[label] += text in texts
    assert found.subsets == expected
    assert found.to_dict() == {
        "overall": sum(expected.values()),
        "subsets": expected,
        "shards": ["00.jsonl", "01.jsonl"],
    }


def test_held_out_shards_and_bad_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus_with(tmp_path, [("a", "ArXiv")], [("b", "ArXiv")])
    (tmp_path / "01.jsonl").rename(tmp_path / "val.jsonl")
    found = count_training_copies(records([("b", "ArXiv")]), Corpus(tmp_path))
    assert (found.overall, found.shards) == (0, ("00.jsonl",))
    assert "left out, as held-out shards: val.jsonl" in caplog.text
    with (tmp_path / "00.jsonl").open("ab") as file:
        file.write(b"no document\n")
    refused(r"00\.jsonl", count_training_copies, records([("a", "ArXiv")]), Corpus(tmp_path))
    assert count_training_copies(records([("a", "ArXiv")]), Corpus(tmp_path), on_error="skip").overall == 1
