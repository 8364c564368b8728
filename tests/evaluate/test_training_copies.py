"""Copies in the training shards, against a set of their texts."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.corpus import Corpus, load_manifest
from pilekit.errors import PilekitError
from pilekit.evaluate import training_copies
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.score.causal_nll import ScoredDocument
from pilekit.evaluate.training_copies import count_training_copies
from pilekit.shards.index.format import index_places
from tests.shards import making

TEXTS = st.sampled_from(["", "a", "b", "a ", "A", "é", "e\u0301", "\x00", "a\nb", "long " * 200])
DOCUMENTS = st.lists(st.tuples(TEXTS, st.sampled_from(["ArXiv", "Github", "New"])), max_size=12)


def corpus(folder: Path, *shards: list[tuple[str, str]]) -> Corpus:
    for number, documents in enumerate(shards):
        (folder / f"{number:02d}.jsonl").write_bytes(
            b"".join(making.record(text, label) + b"\n" for text, label in documents) or b"\n"
        )
    return Corpus(folder)


def records(documents: list[tuple[str, str]]) -> Records:
    return Records.of(
        [
            ScoredDocument(
                "val.jsonl", number, xxhash.xxh3_64_intdigest(text.encode()), label, len(text.encode()), 1, 1.0
            )
            for number, (text, label) in enumerate(documents)
        ],
        ["val.jsonl"],
        load_manifest(),
    )


@settings(max_examples=40)
@given(evaluated=DOCUMENTS, first=DOCUMENTS, second=DOCUMENTS)
def test_they_are_the_documents_whose_text_is_in_any_training_shard(
    evaluated: list[tuple[str, str]], first: list[tuple[str, str]], second: list[tuple[str, str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = count_training_copies(records(evaluated), corpus(Path(folder), first, second))
    texts = {text for text, _ in first + second}
    expected = dict.fromkeys((label for _, label in evaluated), 0)
    for text, label in evaluated:
        expected[label] += text in texts
    assert found.subsets == expected
    assert found.overall == sum(expected.values())
    assert found.to_dict() == {"overall": found.overall, "subsets": expected, "shards": ["00.jsonl", "01.jsonl"]}


def test_a_warning_tells_of_copies_and_of_none_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = corpus(tmp_path, [("a", "ArXiv"), ("b", "Github"), ("b", "Github")])
    assert count_training_copies(records([("c", "ArXiv")]), train).overall == 0
    assert caplog.records == []
    count_training_copies(records([("a", "x\x1b"), ("b", "x\x1b"), ("b", "ArXiv"), ("c", "ArXiv")]), train)
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("3 of 4 evaluation documents occur word for word in the training shards (most in x\\x1b: 2)")


def test_indexes_are_built_once_and_then_taken(tmp_path: Path) -> None:
    train = corpus(tmp_path, [("a", "ArXiv")])
    [index] = [Path(index_places(shard)[0]) for shard in train.shards]
    told: list[int] = []
    assert count_training_copies(records([("a", "ArXiv")]), train, advance=told.append).overall == 1
    assert sum(told) == train.size
    made = index.stat().st_mtime_ns
    assert count_training_copies(records([("a", "ArXiv")]), train).overall == 1
    assert index.stat().st_mtime_ns == made


def test_held_out_shards_in_a_training_folder_are_not_training_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus(tmp_path, [("a", "ArXiv")], [("b", "ArXiv")])
    (tmp_path / "01.jsonl").rename(tmp_path / "val.jsonl")
    found = count_training_copies(records([("b", "ArXiv")]), Corpus(tmp_path))
    assert (found.overall, found.shards) == (0, ("00.jsonl",))
    assert "left out, as held-out shards: val.jsonl" in caplog.text


def test_training_hashes_go_by_and_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each group of rows one column is read, and those before are gone when the next one is made."""
    train = corpus(tmp_path, [("a", "ArXiv")])
    rows = 20_000
    copies = [xxhash.xxh3_64_intdigest(text) for text in (b"7", b"49")]

    class Index:
        def row_groups(self, names: list[str]) -> Iterator[pa.Table]:
            assert names == ["text_hash"]
            for group in range(20):
                assert pa.total_allocated_bytes() <= before + 8 * rows + 4096  # the last one, until this one is bound
                hashes = pa.array(range(group * rows, (group + 1) * rows), type=pa.uint64())
                column = pa.concat_arrays([hashes, pa.array(copies[group : group + 1], type=pa.uint64())])
                yield pa.table({"text_hash": column})
                del hashes, column

    before = pa.total_allocated_bytes()
    monkeypatch.setattr(training_copies, "index_corpus", lambda *_, **__: [Index()])
    assert count_training_copies(records([("7", "ArXiv"), ("49", "Github"), ("50", "Github")]), train).overall == 2


def test_a_bad_line_of_a_training_shard(tmp_path: Path) -> None:
    train = corpus(tmp_path, [("a", "ArXiv")])
    with (tmp_path / "00.jsonl").open("ab") as file:
        file.write(b"no document\n")
    train = Corpus(tmp_path)
    with pytest.raises(PilekitError, match=r"00\.jsonl"):
        count_training_copies(records([("a", "ArXiv")]), train)
    assert count_training_copies(records([("a", "ArXiv")]), train, on_error="skip").overall == 1
