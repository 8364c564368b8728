"""Which documents are scored: subsets, limits, held-out shards; which of them are in the training shards."""

from __future__ import annotations

import re
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
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result_folder import read_result
from pilekit.evaluate.select_documents import selected_batches, text_bytes_selected
from pilekit.evaluate.settings import ScoreSettings
from pilekit.evaluate.training_copies import count_training_copies
from pilekit.pipeline.stages import Sample
from pilekit.shards.index.build import index_corpus
from pilekit.shards.read.change_check import version_of
from pilekit.shards.read.read_errors import SkippedLines
from tests.evaluate.documents import manifest_of, write
from tests.refusing import refused


@given(
    documents=st.lists(
        st.tuples(st.sampled_from(["A", "B", "other", None]), st.text("aé漢", max_size=9)), min_size=1, max_size=30
    ),
    limit=st.none() | st.integers(1, 4),
    limit_bytes=st.none() | st.integers(1, 40),
    subsets=st.none() | st.sampled_from([("A",), ("B", "A")]),
    described=st.sampled_from([("A", "B"), ("A", "B", "C"), ()]),
    sample=st.none() | st.floats(0, 1),
)
def test_documents_are_selected_until_their_subset_is_full_and_reading_ends_when_all_are(
    documents: list[tuple[str | None, str]],
    limit: int | None,
    limit_bytes: int | None,
    subsets: tuple[str, ...] | None,
    described: tuple[str, ...],
    sample: float | None,
) -> None:
    """A bad line behind all documents is found only if reading goes on to the end."""
    expected: dict[str, list[tuple[str, int]]] = {}
    size = 0
    names = list(described if subsets is None else subsets)

    def is_over(name: str) -> bool:
        before = [len(documents[place][1].encode()) for _, place in expected.get(name, [])]
        return (limit_bytes is not None and sum(before) >= limit_bytes) or (limit is not None and len(before) >= limit)

    def is_sampled(place: int) -> bool:
        hashed = xxhash.xxh3_64_intdigest(f"7\0{place // 11}.jsonl\0{place % 11}".encode())
        return sample is None or hashed < sample * 2**64

    def ends() -> bool:
        has_names = bool(described if subsets is None else subsets)
        return has_names and (limit, limit_bytes) != (None, None) and all(map(is_over, names))

    for place, (label, text) in enumerate(documents):
        name = label or "(none)"
        if place and place % 11 == 0 and ends():
            break  # all subsets that are known by the end of a shard are full
        names += [name] * (subsets is None and name not in names)
        if is_sampled(place) and (subsets is None or name in subsets) and not is_over(name):
            expected.setdefault(name, []).append((f"{place // 11}.jsonl", place))
            size += len(text.encode())
    with tempfile.TemporaryDirectory() as folder:
        for begin in range(0, len(documents), 11):
            write(Path(folder) / f"{begin // 11}.jsonl", documents[begin : begin + 11])
        (Path(folder) / "9.jsonl").write_text("this is no document\n")
        corpus = Corpus(folder, manifest_of(*described))
        plan: Any = SimpleNamespace(
            options=ScoreSettings(subsets=subsets, limit=limit, limit_bytes=limit_bytes, on_error="skip"),
            corpus=corpus,
            subsets=subsets,
            sample=None if sample is None else Sample(sample, seed=7),
            shard_versions={shard.path: version_of(shard.path) for shard in corpus.shards},
        )
        labels, skipped = dict[str, int](), SkippedLines()
        found: dict[str, list[tuple[str, int]]] = {}
        for batch in selected_batches(plan, labels, skipped, lambda _: None):
            for subset, number in zip(batch.subsets, batch.numbers.tolist(), strict=True):
                found.setdefault(subset, []).append((batch.shard, number + 11 * int(batch.shard[0])))
        assert text_bytes_selected(plan) == (None if (limit, limit_bytes) == (None, None) else size)
        index_corpus(Corpus(folder, corpus.manifest), on_error="skip")
        assert text_bytes_selected(plan) == size
    assert found == expected
    assert skipped.count == (not ends())
    assert {name: count for name, count in labels.items() if count} == {name: len(own) for name, own in found.items()}


def test_empty_selections(tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    shard = write(tmp_path / "a.jsonl", [("ArXiv", "x")])
    (tmp_path / "blank.jsonl").write_text("\n")
    for data, subsets, words in (
        (shard, ["Books3"], r"no documents of Books3 in the 1 shard of .*; `pilekit stats` shows"),
        (tmp_path / "blank.jsonl", None, "no documents in the 1 shard of"),
    ):
        refused(words, bits_per_byte, model_dir, data, subsets=subsets)
    caplog.clear()
    assert list(bits_per_byte(model_dir, shard, subsets=["Books3", "arxiv"]).subsets) == ["ArXiv"]
    assert "no documents of Books3 in " in caplog.text


def test_held_out_shards_among_others_are_scored_and_bad_lines_counted(
    tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "train" / "00.jsonl", [("ArXiv", "train")])
    bad = write(tmp_path / "val.jsonl", [("ArXiv", "val"), ("Github", "")])
    with bad.open("a") as file:
        file.write("this is no document\n{}\n")
    refused(r"val\.jsonl, line 3", bits_per_byte, model_dir, tmp_path)
    caplog.clear()
    result = bits_per_byte(model_dir, tmp_path, on_error="skip")
    assert [shard["name"] for shard in result.protocol["data"]] == ["val.jsonl"]
    assert (result.overall.documents, result.overall.bytes, result.protocol["skipped_lines"]) == (2, 3, 2)
    notice, warning = caplog.messages
    assert "only the held-out shards are taken: val.jsonl" in notice
    assert re.match(r"skipped 2 bad lines, the first: .*val\.jsonl, line 3", warning)


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


def test_held_out_training_shards_are_left_out_and_bad_lines_of_others_are_errors(tmp_path: Path) -> None:
    corpus_with(tmp_path, [("a", "ArXiv")], [("b", "ArXiv")])
    (tmp_path / "01.jsonl").rename(tmp_path / "val.jsonl")
    copies = count_training_copies(records([("b", "ArXiv")]), Corpus(tmp_path))
    assert (copies.overall, copies.shards) == (0, ("00.jsonl",))
    with (tmp_path / "00.jsonl").open("ab") as file:
        file.write(b"no document\n")
    refused(r"00\.jsonl", count_training_copies, records([("a", "ArXiv")]), Corpus(tmp_path))
    assert count_training_copies(records([("a", "ArXiv")]), Corpus(tmp_path), on_error="skip").overall == 1
