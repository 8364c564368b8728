"""`find_copies` finds each pair that comparing every pair finds, with the same similarity."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pilekit import Corpus
from pilekit.dedup.find_copies import find_copies
from pilekit.shards.corpus_job import CorpusJob
from tests.dedup import reference
from tests.dedup.checking import write_corpus
from tests.dedup.planted import planted
from tests.refusing import refused
from tests.shards import making

Found = list[tuple[str, int, tuple[str, int], float, str]]

NAMES = ("00.jsonl", "01.jsonl")


def expected(originals: list[str], texts: list[list[str]], threshold: float) -> tuple[Found, int]:
    """The copies, by comparing each pair, in their order; and how many given documents have one."""
    found = []
    for number, original in enumerate(originals):
        if originals.index(original) == number:
            for place, shard in enumerate(texts):
                for document, text in enumerate(shard):
                    similarity = reference.jaccard(reference.shingles(original), reference.shingles(text))
                    if similarity >= threshold:
                        found.append((number, -similarity, place, document, "exact" if text == original else "near"))
    copied = {originals[number] for number, *_ in found}
    rows = [
        (NAMES[place], document, ("given.jsonl", number), -s, reason)
        for number, s, place, document, reason in sorted(found)
    ]
    return rows, sum(original in copied for original in originals)


def assert_found(folder: Path, originals: list[str], texts: list[list[str]], threshold: float, jobs: int = 1) -> None:
    corpus = write_corpus(
        folder / "data",
        {name[:2]: [making.record(text) for text in shard] for name, shard in zip(NAMES, texts, strict=True)},
    )
    given = write_corpus(folder / "given", {"given": [making.record(text) for text in originals]})
    search = find_copies(Corpus(given), CorpusJob.of_steps(Corpus(corpus), jobs=jobs), threshold)
    rows, copied = expected(originals, texts, threshold)
    assert [tuple(copy) for copy in search.copies] == rows
    assert (search.originals, search.copied) == (len(originals), copied)
    assert search.documents == sum(map(len, texts))
    assert search.skipped.count == 0


WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=24).map(" ".join)
TEXTS = st.one_of(WORDS, WORDS.map(str.upper), st.sampled_from(["", " ", "!?", "a b c d " * 9, "b a, " * 20]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(TEXTS, min_size=1, max_size=6),
    st.tuples(st.lists(TEXTS, min_size=1, max_size=8), st.lists(TEXTS, min_size=1, max_size=8)),
    st.sampled_from([0.1, 0.5, 0.8, 1.0]),
)
@example(["", ""], (["", "a"], ["!"]), 0.8)
def test_all_pairs_of_short_texts(
    tmp_path_factory: pytest.TempPathFactory, originals: list[str], texts: tuple[list[str], list[str]], threshold: float
) -> None:
    assert_found(tmp_path_factory.mktemp("copies"), originals, list(texts), threshold)


@pytest.mark.parametrize("jobs", [1, 2])
def test_all_pairs_of_edited_documents_on_any_number_of_processes(tmp_path: Path, jobs: int) -> None:
    """Their similarities spread over 0.5 to 0.99; many are near the threshold, and of none is the fate a chance."""
    documents = planted(200, seed=7, alone=20, words=(20, 120))
    originals = [documents.texts[pair.original] for pair in documents.pairs]
    copies = [documents.texts[pair.copy] for pair in documents.pairs]
    assert_found(tmp_path, [*originals, originals[3]], [copies[:120], [*copies[120:], originals[3]]], 0.8, jobs)


def test_nothing_given_is_an_error_and_bad_lines_are_counted(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "data", {"00": [making.record("some text")]})
    (tmp_path / "none.jsonl").write_text("\n")
    refused("holds no document", find_copies, Corpus(tmp_path / "none.jsonl"), CorpusJob.of_steps(Corpus(corpus)))
    (tmp_path / "bad.jsonl").write_text('{"text": "Some text."}\nbad\n')
    job = CorpusJob.of_steps(Corpus(corpus), on_error="skip")
    search = find_copies(Corpus(tmp_path / "bad.jsonl"), job)
    assert [copy.reason for copy in search.copies] == ["near"]
    assert search.skipped.count == 1
