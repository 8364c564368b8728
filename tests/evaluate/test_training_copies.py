"""Copies in the training shards, against a set of their texts."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.corpus import Corpus, load_manifest
from pilekit.errors import PilekitError
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.training_copies import count_training_copies
from tests.evaluate.documents import write

TEXTS = st.sampled_from(["", "a", "b", "a ", "A", "é", "e\u0301", "\x00", "a\nb", "long " * 200])
DOCUMENTS = st.lists(st.tuples(TEXTS, st.sampled_from(["ArXiv", "Github", "New"])), max_size=12)


def corpus(folder: Path, *shards: list[tuple[str, str]]) -> Corpus:
    for number, documents in enumerate(shards):
        write(folder / f"{number:02d}.jsonl", [(label, text) for text, label in documents])
    return Corpus(folder)


def records(documents: list[tuple[str, str]]) -> Records:
    scored = [
        ScoredDocument("val.jsonl", number, xxhash.xxh3_64_intdigest(text.encode()), label, len(text.encode()), 1, 1.0)
        for number, (text, label) in enumerate(documents)
    ]
    return Records.of(scored, ["val.jsonl"], load_manifest())


@settings(max_examples=20)
@given(evaluated=DOCUMENTS, first=DOCUMENTS.filter(bool), second=DOCUMENTS.filter(bool))
def test_copies_are_the_documents_whose_text_is_in_a_training_shard(
    evaluated: list[tuple[str, str]], first: list[tuple[str, str]], second: list[tuple[str, str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = count_training_copies(records(evaluated), corpus(Path(folder), first, second))
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


def test_a_warning_tells_of_copies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = corpus(tmp_path, [("a", "ArXiv"), ("b", "Github"), ("b", "Github")])
    assert count_training_copies(records([("c", "ArXiv")]), train).overall == 0
    assert caplog.records == []
    count_training_copies(records([("a", "x\x1b"), ("b", "x\x1b"), ("b", "ArXiv"), ("c", "ArXiv")]), train)
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("3 of 4 evaluation documents occur word for word in the training shards (most in x\\x1b: 2)")


def test_held_out_shards_and_bad_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus(tmp_path, [("a", "ArXiv")], [("b", "ArXiv")])
    (tmp_path / "01.jsonl").rename(tmp_path / "val.jsonl")
    found = count_training_copies(records([("b", "ArXiv")]), Corpus(tmp_path))
    assert (found.overall, found.shards) == (0, ("00.jsonl",))
    assert "left out, as held-out shards: val.jsonl" in caplog.text
    with (tmp_path / "00.jsonl").open("ab") as file:
        file.write(b"no document\n")
    with pytest.raises(PilekitError, match=r"00\.jsonl"):
        count_training_copies(records([("a", "ArXiv")]), Corpus(tmp_path))
    assert count_training_copies(records([("a", "ArXiv")]), Corpus(tmp_path), on_error="skip").overall == 1
